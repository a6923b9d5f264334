from __future__ import annotations

import asyncio
import functools
import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from loopwright.core import spec
from loopwright.core.errors import BudgetExceeded, EvaluatorFailed, InvalidInput
from loopwright.core.models import Candidate, EvaluationRequest, Feedback
from loopwright.core.ports import Evaluator, EvaluatorContext
from loopwright.egress import EgressClient
from loopwright.feedback.python import CallableEvaluator
from loopwright.feedback.registry import build_evaluator

from .conftest import request_for


async def score_of(function: Any, candidate: Candidate, context: EvaluatorContext) -> Feedback:
    return await CallableEvaluator(function=function).evaluate(request_for(candidate), context)


async def failure(function: Any, context: EvaluatorContext, **options: Any) -> EvaluatorFailed:
    with pytest.raises(EvaluatorFailed) as failed:
        await CallableEvaluator(function=function, **options).evaluate(request_for(Candidate(text="x")), context)
    return failed.value


SEA = Candidate(text="the sea")


@pytest.mark.parametrize(
    ("answer", "feedback"),
    [
        (1, Feedback(score=1)),
        (0.5, Feedback(score=0.5)),
        (Fraction(1, 4), Feedback(score=0.25)),
        ((0.5, "why"), Feedback(score=0.5, detail="why")),
        ((0.5, None), Feedback(score=0.5)),
        ({"score": 2, "detail": "d", "cost_usd": "0.1"}, Feedback(score=2, detail="d", cost_usd=Decimal("0.1"))),
        (Feedback(score=3, detail="d"), Feedback(score=3, detail="d")),
    ],
)
async def test_what_a_function_may_return(context: EvaluatorContext, answer: Any, feedback: Feedback):
    async def asynchronous(text: str) -> Any:
        return answer

    assert await score_of(lambda text: answer, SEA, context) == feedback
    assert await score_of(asynchronous, SEA, context) == feedback


@pytest.mark.parametrize(
    "answer", [True, None, "0.9", float("nan"), float("inf"), 10**400, (True, "x"), (1, 2), (1, "a", "b"), {}, object()]
)
async def test_what_a_function_may_not_return(context: EvaluatorContext, answer: Any):
    failed = await failure(lambda text: answer, context)
    assert failed.transient
    assert "gave no valid score" in str(failed)


async def test_the_function_gets_the_text_the_data_or_the_candidate(context: EvaluatorContext):
    got: list[Any] = []
    structured = Candidate(text='{"a": [1]}', data={"a": [1]})

    def plain(it: Any) -> int:
        got.append(it)
        return 1

    def whole(it: Candidate) -> int:
        got.append(it)
        return 1

    await score_of(plain, SEA, context)
    await score_of(plain, structured, context)
    await score_of(whole, SEA, context)
    await score_of(whole, structured, context)
    assert got == ["the sea", {"a": [1]}, SEA, structured]


async def test_a_function_can_not_change_the_record(context: EvaluatorContext):
    structured = Candidate(text='{"a": [1]}', data={"a": [1]})
    await score_of(lambda data: data["a"].append(2) or 1, structured, context)
    assert structured.data == {"a": [1]}


class Scorer:
    async def __call__(self, text: str) -> float:
        return len(text)


async def later(text: str, *, factor: float = 1) -> float:
    await asyncio.sleep(0)
    return len(text) * factor


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (len, "python len"),
        (Scorer(), "python Scorer"),
        (later, "python later"),
        (functools.partial(later, factor=1), "python partial"),
        (lambda text: later(text), "python <lambda>"),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType] # noqa: PLW0108 - sync, but gives something to await
    ],
)
async def test_any_callable_will_do(context: EvaluatorContext, function: Any, name: str):
    assert (await score_of(function, SEA, context)).score == 7
    assert CallableEvaluator(function=function).name == name


class Broken(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [Broken("it\x1b[31m broke"), SystemExit(3), StopIteration(), TimeoutError("mine"), asyncio.CancelledError()],
)
async def test_what_a_function_raises_is_a_failure_with_its_name(context: EvaluatorContext, error: BaseException):
    def sync(text: str) -> float:
        raise error

    async def asynchronous(text: str) -> float:
        raise error

    functions: list[Any] = [sync] if isinstance(error, StopIteration) else [sync, asynchronous]
    for function in functions:
        failed = await failure(function, context)
        assert failed.transient
        assert f"raised {type(error).__name__}" in str(failed)
        assert "\x1b" not in str(failed)


@pytest.mark.parametrize("error", [EvaluatorFailed("mine"), BudgetExceeded(needed=Decimal(1), available=Decimal(0))])
async def test_errors_of_the_contract_go_through(context: EvaluatorContext, error: Exception):
    def function(text: str) -> float:
        raise error

    with pytest.raises(type(error)) as raised:
        await score_of(function, SEA, context)
    assert raised.value is error


async def test_a_sync_function_does_not_hold_up_the_others(context: EvaluatorContext):
    both = threading.Barrier(2, timeout=10)
    found = await asyncio.gather(*(score_of(lambda text: both.wait() * 0 + 1, SEA, context) for _ in range(2)))
    assert [feedback.score for feedback in found] == [1, 1]


async def test_a_function_that_takes_too_long(context: EvaluatorContext):
    release = threading.Event()
    started = time.monotonic()
    sync = await failure(lambda text: release.wait(20) and 1, context, timeout_seconds=0.05)
    asynchronous = await failure(lambda text: asyncio.sleep(20), context, timeout_seconds=0.05)
    release.set()
    assert time.monotonic() - started < 5
    assert sync.transient
    assert asynchronous.transient
    assert "took longer than 0.05 s" in str(sync)


async def test_cancelling_is_not_a_failure(context: EvaluatorContext):
    begun = asyncio.Event()

    async def function(text: str) -> float:
        begun.set()
        await asyncio.Event().wait()
        return 1

    task = asyncio.create_task(score_of(function, SEA, context))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_function_that_hangs_does_not_keep_the_process_from_ending():
    code = """
import asyncio, threading
from loopwright.core.errors import EvaluatorFailed
from loopwright.core.models import Candidate, EvaluationRequest
from loopwright.feedback.python import CallableEvaluator
request = EvaluationRequest(goal="g", candidate=Candidate(text="x"), run_id="r", attempt=1, iteration=1)
hangs = CallableEvaluator(function=lambda text: threading.Event().wait(), timeout_seconds=0.05)
try:
    asyncio.run(hangs.evaluate(request, None))
except EvaluatorFailed as failed:
    print(failed)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert "took longer than 0.05 s" in ended.stdout


# From a loop file


@pytest.fixture(autouse=True)
def _path_as_it_was() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def from_file(folder: Path, function: str, **options: Any) -> Evaluator:
    described = spec.PythonEvaluator.model_validate({"kind": "python", "function": function, **options})
    return build_evaluator(described, egress=EgressClient(), folder=folder)


async def test_a_function_of_the_loop_files_folder(
    tmp_path: Path, request_: EvaluationRequest, context: EvaluatorContext
):
    (tmp_path / "lw_marks.py").write_text("def mark(text):\n    import lw_helper\n    return lw_helper.VALUE\n")
    (tmp_path / "lw_helper.py").write_text("VALUE = 0.5\n")
    evaluator = from_file(tmp_path, "lw_marks:mark", max_cost_usd="0.1")
    assert (await evaluator.evaluate(request_, context)).score == 0.5
    assert evaluator.name == "python lw_marks:mark"
    assert evaluator.max_cost_usd == Decimal("0.1")
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
    from_file(tmp_path, "lw_marks:mark")
    assert sys.path.count(str(tmp_path)) == 1


async def test_two_loops_may_call_their_modules_the_same(
    tmp_path: Path, request_: EvaluationRequest, context: EvaluatorContext
):
    evaluators: list[Evaluator] = []
    for value in (1, 2):
        folder = tmp_path / str(value)
        (folder / "lw_package").mkdir(parents=True)
        (folder / "lw_package/__init__.py").write_text("from lw_shared import VALUE\n")
        (folder / "lw_package/inner.py").write_text("import lw_package\ndef f(text): return lw_package.VALUE\n")
        (folder / "lw_shared.py").write_text(f"VALUE = {value}\n")
        evaluators.append(from_file(folder, "lw_package.inner:f"))
    assert [(await evaluator.evaluate(request_, context)).score for evaluator in evaluators] == [1, 2]


@pytest.mark.parametrize("function", ["random:f", "email.inner:f"])
async def test_a_module_may_be_called_like_one_that_the_program_has_imported(
    tmp_path: Path, request_: EvaluationRequest, context: EvaluatorContext, function: str
):
    name = function.partition(".")[0].partition(":")[0]
    theirs = importlib.import_module(name)
    (tmp_path / "email").mkdir()
    (tmp_path / "email/__init__.py").write_text("VALUE = 2\n")
    (tmp_path / "email/inner.py").write_text("from . import VALUE\ndef f(text): return VALUE\n")
    (tmp_path / "random.py").write_text("def f(text): return 2\n")
    for _ in range(2):
        assert (await from_file(tmp_path, function).evaluate(request_, context)).score == 2
    assert importlib.import_module(name) is theirs


async def test_where_a_function_failed_is_told(tmp_path: Path, request_: EvaluationRequest, context: EvaluatorContext):
    (tmp_path / "lw_typo.py").write_text("def f(text):\n    words = {}\n    return words['sea']\n")
    with pytest.raises(EvaluatorFailed, match=r"raised KeyError: 'sea' \(lw_typo\.py, line 3\)$"):
        await from_file(tmp_path, "lw_typo:f").evaluate(request_, context)


async def test_a_method_of_an_object_will_do(tmp_path: Path, request_: EvaluationRequest, context: EvaluatorContext):
    (tmp_path / "lw_object.py").write_text("class A:\n    async def f(self, text): return 3\na = A()\n")
    assert (await from_file(tmp_path, "lw_object:a.f").evaluate(request_, context)).score == 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("lw_nowhere:f", "ModuleNotFoundError"),
        ("lw_syntax:f", "SyntaxError"),
        ("lw_raises:f", "ZeroDivisionError"),
        ("lw_exits:f", "SystemExit"),
        ("lw_fine:g", r"lw_fine \(.*lw_fine\.py\) has no g"),
        ("lw_fine:f.x", "has no f.x"),
        ("lw_fine:value", "not a function but int"),
        ("json:score", r"json \(.*\) has no score"),
        ("sys:score", r"sys \(a built-in module\) has no score"),
    ],
)
def test_a_function_that_can_not_be_had_is_refused_when_the_evaluator_is_built(
    tmp_path: Path, function: str, message: str
):
    for name, code in {
        "syntax": "def f(:",
        "raises": "1 / 0",
        "exits": "raise SystemExit",
        "fine": "value = 1\ndef f(text): return 1",
    }.items():
        (tmp_path / f"lw_{name}.py").write_text(code)
    with pytest.raises(InvalidInput, match=message) as refused:
        from_file(tmp_path, function)
    assert refused.value.problems[0].field == "evaluator.function"
