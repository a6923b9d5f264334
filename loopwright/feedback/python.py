"""`python`: a function scores the candidate, from a loop file or handed to the library."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import inspect
import threading
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from ..core import spec
from ..core.errors import BudgetExceeded, EvaluatorFailed, InvalidInput, Problem
from ..core.models import Candidate, EvaluationRequest, Feedback
from ..core.ports import Evaluator, EvaluatorContext
from ..functions import load_function
from .building import Surroundings
from .parse import feedback_from_mapping, quote

Scorer = Callable[[Any], Any]
"""Takes a candidate; returns a number, `(number, detail)`, `{"score", "detail"?, "cost_usd"?}` or `Feedback`, or an
awaitable of one."""


@dataclass(frozen=True, kw_only=True)
class CallableEvaluator:
    """Calls a function, sync or async.

    The function gets the candidate's text; its JSON where the loop has an output schema; the whole `Candidate` where
    that is the annotation of its first parameter. A sync function runs in a thread, so that the loop goes on
    meanwhile. A thread can't be killed: one that outlives its timeout is left alone and ends with the process.
    """

    function: Scorer
    label: str = ""
    """What people call it; the function's own name if empty."""
    timeout_seconds: float | None = 60.0
    """After this the evaluation has failed; `None` waits for ever."""
    max_cost_usd: Decimal = Decimal(0)

    @property
    def name(self) -> str:
        """`python` and the function's name."""
        return f"python {self.label or _name_of(self.function)}"

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        """Call the function once.

        Raises:
            EvaluatorFailed: it raised, took too long or returned no score.
        """
        try:
            async with asyncio.timeout(self.timeout_seconds):
                answer = await self._call(_argument(self.function, request.candidate))
        except TimeoutError:
            raise EvaluatorFailed(f"{self.name} took longer than {self.timeout_seconds:g} s", transient=True) from None
        return _feedback(answer, who=self.name)

    async def _call(self, argument: object) -> object:
        try:
            if _is_async(self.function):
                return await self.function(argument)
            answer = await _in_thread(lambda: self.function(argument))
            return await cast("typing.Awaitable[object]", answer) if inspect.isawaitable(answer) else answer
        except (EvaluatorFailed, BudgetExceeded):
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # ours, or the timeout's
            raise self._failure(error) from error
        except (Exception, SystemExit) as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> EvaluatorFailed:
        text = f"{self.name} raised {type(error).__name__}: {quote(str(error))}{_place(error)}"
        return EvaluatorFailed(text, transient=True)


def _place(error: BaseException) -> str:
    """Where it was raised. The file's name alone, since the agent reads of it, too."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return f" ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else ""


def build(described: spec.PythonEvaluator, surroundings: Surroundings) -> Evaluator:
    """Import the function that a loop file names.

    Raises:
        InvalidInput: it can't be imported or called.
    """
    try:
        function = load_function(described.function, surroundings.folder)
    except ImportError as error:
        raise InvalidInput(Problem(field=f"{surroundings.where}.function", message=str(error))) from error
    return CallableEvaluator(
        function=function,
        label=described.function,
        timeout_seconds=described.timeout_seconds,
        max_cost_usd=described.max_cost_usd,
    )


def _feedback(answer: Any, *, who: str) -> Feedback:
    match answer:
        case Feedback():
            return answer
        case Mapping():
            return feedback_from_mapping(cast("Mapping[str, object]", answer), who=who)
        case (score, detail):
            return feedback_from_mapping({"score": score, "detail": detail}, who=who)
        case _:
            return feedback_from_mapping({"score": answer}, who=who)


def _argument(function: Scorer, candidate: Candidate) -> object:
    # A copy: what the function changes must not change the record of what the agent produced.
    if _wants_candidate(function):
        return candidate.model_copy(deep=True)
    return candidate.text if candidate.data is None else copy.deepcopy(candidate.data)


def _wants_candidate(function: Scorer) -> bool:
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    wanted = first.annotation if first else None
    # By name where annotations are text (`from __future__ import annotations`).
    return wanted is Candidate or (isinstance(wanted, str) and wanted.rpartition(".")[2] == "Candidate")


def _is_async(function: Scorer) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - its `async` is asked for, not whether it is callable


def _name_of(function: Scorer) -> str:
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)


async def _in_thread(call: Callable[[], object]) -> object:
    """Run `call` in a daemon thread: unlike one of an executor, it can't keep the process from ending if it hangs."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Callable[[], object]] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        deliver = _outcome_of(context, call)

        def settle() -> None:
            if not outcome.done():
                outcome.set_result(deliver)

        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # the event loop has ended, nobody waits any more

    threading.Thread(target=work, name="loopwright-evaluator", daemon=True).start()
    return (await outcome)()


def _outcome_of(context: contextvars.Context, call: Callable[[], object]) -> Callable[[], object]:
    """Call, and give back a function that returns or raises what came of it. (A future can't hold StopIteration.)"""
    try:
        answer = context.run(call)
    except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
        caught = error

        def again() -> object:
            raise caught

        return again
    return lambda: answer
