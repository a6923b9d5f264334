"""`python`: a function scores the candidate, from a loop file or handed to the library."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import importlib
import inspect
import sys
import threading
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
        return EvaluatorFailed(f"{self.name} raised {type(error).__name__}: {quote(str(error))}", transient=True)


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


def load_function(path: str, folder: Path) -> Callable[..., Any]:
    """Import `module:function`, where modules in `folder` go before installed ones.

    Raises:
        ImportError: there is no such function; says why.
    """
    module_name, _, attribute = path.partition(":")
    found: object = _import_from(module_name, folder.resolve())
    for part in attribute.split("."):
        if not hasattr(found, part):
            where = getattr(sys.modules.get(module_name), "__file__", None) or "a built-in module"
            raise ImportError(f"{module_name} ({where}) has no {attribute}")
        found = getattr(found, part)
    if not callable(found):
        raise ImportError(f"{path} is not a function but {type(found).__name__}")
    return found


_folders: set[Path] = set()
"""Folders that functions of this process came from."""


def _import_from(name: str, folder: Path) -> object:
    _forget_namesakes(folder)
    _folders.add(folder)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ImportError(f"importing {name} failed: {type(error).__name__}: {quote(str(error))}") from error
    finally:
        # It goes to the end of the path, where it shadows nothing and functions still find their neighbours.
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _forget_namesakes(folder: Path) -> None:
    """Forget modules from other loops' folders where this folder has one of the same name."""
    others = _folders - {folder}
    for name in {child.stem for child in folder.iterdir()} if others else ():
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and _found_in(Path(file).resolve()) in others:
            for module in [module for module in sys.modules if module.partition(".")[0] == name]:
                del sys.modules[module]


def _found_in(file: Path) -> Path:
    """The folder in which a top-level module or package is found."""
    return file.parent.parent if file.stem == "__init__" else file.parent


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
