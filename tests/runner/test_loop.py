"""The loop's behaviour through its public door."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.core.errors import AgentFailed, EvaluatorFailed, InvalidInput, UnknownPrice
from loopwright.core.events import (
    BoundOverrun,
    EvaluationRetried,
    IterationFinished,
    IterationStarted,
    MoneySettled,
    RunEvent,
    RunFinished,
    RunStarted,
)
from loopwright.core.models import EvaluationRequest, Feedback
from loopwright.core.ports import EvaluatorContext
from loopwright.core.result import RunResult
from loopwright.core.stop import Budget, MaxIterations, MaxSeconds, NoImprovement, Target, parse_stop
from loopwright.runner.library import Loop, Wiring
from loopwright.store.jsonl import read_journal

from .world import ScriptedAgent, ScriptedEvaluator, done

FAIL = EvaluatorFailed("the evaluator answered 500", transient=True)
BAD = EvaluatorFailed("score must be a number", transient=False)


def loop_of(agent: ScriptedAgent, evaluator: Any = None, **options: Any) -> Loop:
    options.setdefault("stop", MaxIterations(5))
    return Loop(agent=Wiring(agent, retry_delays=(0, 0)), evaluate=evaluator, **options)


async def test_it_runs_to_the_target_and_gives_back_the_best() -> None:
    loop = loop_of(
        ScriptedAgent(["a", "b", "c", "d"]), ScriptedEvaluator([0.2, 0.9, 0.5]), stop=Target(0.9) | MaxIterations(9)
    )
    result = await loop.run("a goal")
    assert result.stop_reason == "target_reached"
    assert result.best
    assert (result.best.text, result.best.score, result.best.number) == ("b", 0.9, 2)
    assert [i.score for i in result.iterations] == [0.2, 0.9]
    assert result.cost.total == Decimal("0.02")
    assert result.cost.by_role == {"agent": Decimal("0.02")}
    assert result.sentence == "Reached the target 0.9 in 2 iterations for $0.02 (best score 0.9)."


async def test_the_result_is_the_best_and_never_just_the_last() -> None:
    result = await loop_of(
        ScriptedAgent(["a", "b", "c"]), ScriptedEvaluator([0.1, 0.8, 0.3]), stop=MaxIterations(3)
    ).run("g")
    assert result.stop_reason == "max_iterations"
    assert result.best
    assert result.best.text == "b"


async def test_minimize_takes_the_lowest() -> None:
    loop = loop_of(
        ScriptedAgent(["a", "b", "c"]),
        ScriptedEvaluator([5, 2, 3]),
        stop=Target(1) | MaxIterations(3),
        direction="minimize",
    )
    result = await loop.run("g")
    assert result.best
    assert (result.best.text, result.stop_reason) == ("b", "max_iterations")


async def test_a_budget_is_never_exceeded_and_what_was_paid_for_is_scored() -> None:
    agent = ScriptedAgent(["a"], cost="0.03", worst="0.04")
    result = await loop_of(agent, ScriptedEvaluator([0.5]), stop=Budget("0.10")).run("g")
    # After two turns 0.06 is spent and a worst case of 0.04 still fits; after the third 0.01 is left.
    assert result.stop_reason == "budget"
    assert result.cost.total == Decimal("0.09")
    assert [i.score for i in result.iterations] == [0.5, 0.5, 0.5, None]
    assert result.iterations[-1].candidate is None
    assert "may cost up to $0.04 and $0.01 of the budget is free" in result.sentence


async def test_a_budget_smaller_than_one_request_spends_nothing_and_says_what_one_needs() -> None:
    agent = ScriptedAgent(["a"], cost="0.03", worst="0.04")
    result = await loop_of(agent, ScriptedEvaluator(), stop=Budget("0.01")).run("g")
    assert (result.stop_reason, result.cost.total, result.best) == ("budget", 0, None)
    assert "may cost up to $0.04 and $0.01 of the budget is free" in result.sentence


async def test_enough_is_kept_to_score_the_last_candidate() -> None:
    evaluator = ScriptedEvaluator([Feedback(score=0.5, cost_usd=Decimal("0.02"))], max_cost="0.02")
    agent = ScriptedAgent(["a"], cost="0.03")
    result = await loop_of(agent, evaluator, stop=Budget("0.10")).run("g")
    # Two rounds cost 0.10 together; a third turn of 0.03 would leave nothing to score it with.
    assert result.cost.total == Decimal("0.10")
    assert result.cost.by_role == {"agent": Decimal("0.06"), "evaluator": Decimal("0.04")}
    assert [i.score for i in result.iterations][:2] == [0.5, 0.5]
    assert all(i.candidate is None for i in result.iterations[2:])


async def test_an_evaluator_that_declares_a_cost_and_reports_none_is_charged_whole() -> None:
    result = await loop_of(ScriptedAgent(cost="0"), ScriptedEvaluator([0.5], max_cost="0.02"), stop=Budget("0.05")).run(
        "g"
    )
    assert result.stop_reason == "budget"
    assert result.cost.by_role == {"evaluator": Decimal("0.04")}


async def test_a_cost_that_was_not_declared_is_booked_and_reserved_from_then_on() -> None:
    evaluator = ScriptedEvaluator([Feedback(score=0.5, cost_usd=Decimal("0.03"))])
    loop = loop_of(ScriptedAgent(cost="0"), evaluator, stop=Budget("0.08"))
    events = [event async for event in loop.stream("g")]
    overruns = [e for e in events if isinstance(e, BoundOverrun)]
    assert [e.by_usd for e in overruns] == [Decimal("0.03")]
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert (finished.stop_reason, finished.cost.total) == ("budget", Decimal("0.06"))


async def test_a_failure_in_passing_is_retried_with_the_same_key_and_forgotten() -> None:
    evaluator = ScriptedEvaluator([FAIL, FAIL, 0.7])
    loop = loop_of(ScriptedAgent(), evaluator, stop=MaxIterations(1))
    events = [event async for event in loop.stream("g")]
    assert len({r.idempotency_key for r in evaluator.requests}) == 1
    assert len([e for e in events if isinstance(e, EvaluationRetried)]) == 2
    (finished,) = [e for e in events if isinstance(e, IterationFinished)]
    assert (finished.iteration.score, finished.iteration.failure) == (0.7, None)


async def test_three_failed_iterations_in_a_row_are_an_error_with_the_best_kept() -> None:
    evaluator = ScriptedEvaluator([0.4, BAD])
    result = await loop_of(ScriptedAgent(["a", "b"]), evaluator, stop=MaxIterations(9)).run("g")
    assert (result.stop_reason, len(result.iterations)) == ("error", 4)
    assert result.best
    assert (result.best.text, result.best.score) == ("a", 0.4)
    assert [i.score for i in result.iterations] == [0.4, None, None, None]
    assert result.error == "score must be a number"


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
async def test_all_iterations_failing_is_an_error_never_a_success(limit: int) -> None:
    stop = MaxIterations(limit) | Target(0)
    result = await loop_of(ScriptedAgent([AgentFailed("no")]), ScriptedEvaluator(), stop=stop).run("g")
    assert (result.stop_reason, result.best, len(result.iterations)) == ("error", None, min(limit, 3))
    assert "no" in (result.error or "")
    assert result.cost.total == Decimal("0.01") * min(limit, 3)
    result = await loop_of(ScriptedAgent(["seed"]), ScriptedEvaluator([BAD]), stop=stop).run("g")
    assert result.stop_reason == "error"
    assert result.best
    assert result.best.score is None


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyError("x"), ExceptionGroup("g", [ValueError("y")])])
@pytest.mark.parametrize("whose", ["agent", "evaluator"])
async def test_the_best_survives_any_error_in_the_last_iteration(error: Exception, whose: str) -> None:
    agent = ScriptedAgent(["a", error if whose == "agent" else "b"])
    evaluator: Any = ScriptedEvaluator([0.4, error if whose == "evaluator" else 0.1])  # type: ignore[list-item]
    result = await loop_of(agent, evaluator, stop=MaxIterations(9)).run("g")
    assert (result.stop_reason, len(result.iterations)) == ("error", 2)
    assert result.best
    assert (result.best.text, result.best.score) == ("a", 0.4)
    assert type(error).__name__ in (result.error or "")
    assert result.cost.total == Decimal("0.02")


async def test_of_equal_attempts_the_first_is_the_best() -> None:
    result = await loop_of(ScriptedAgent(["a"]), ScriptedEvaluator([0.4]), stop=MaxIterations(1), attempts=3).run("g")
    assert result.best
    assert result.best.attempt == 1


async def test_a_deadline_inside_another_condition_cancels_what_is_in_flight() -> None:
    agent = ScriptedAgent(["a"], hang_at=1)
    stop = parse_stop({"any": [{"target_score": 2, "max_seconds": 0.2}]})
    result = await loop_of(agent, ScriptedEvaluator([0.6]), stop=stop).run("g")
    assert result.stop_reason == "time"


async def test_an_error_that_would_come_again_stops_at_once() -> None:
    result = await loop_of(ScriptedAgent([UnknownPrice("nobody:knows")]), ScriptedEvaluator()).run("g")
    assert (result.stop_reason, len(result.iterations)) == ("error", 1)
    assert "declare it under `prices:`" in (result.error or "")


async def test_loop_done_in_the_first_turn_is_scored_first() -> None:
    result = await loop_of(ScriptedAgent([done("a", "nothing to add")]), ScriptedEvaluator([0.3])).run("g")
    assert result.stop_reason == "converged"
    assert result.best
    assert (result.best.score, len(result.iterations)) == (0.3, 1)
    assert "nothing to add" in result.sentence


async def test_without_an_evaluator_the_best_is_the_last() -> None:
    result = await loop_of(ScriptedAgent(["a", "b", done("c")])).run("g")
    assert result.best
    assert (result.stop_reason, result.best.text, result.best.score) == ("converged", "c", None)


async def test_no_improvement_stops() -> None:
    loop = loop_of(ScriptedAgent(), ScriptedEvaluator([0.1, 0.2, 0.2]), stop=NoImprovement(2) | MaxIterations(50))
    result = await loop.run("g")
    assert (result.stop_reason, len(result.iterations)) == ("no_improvement", 4)


async def test_what_is_in_flight_at_the_deadline_is_cancelled_and_charged() -> None:
    agent = ScriptedAgent(["a", "b"], cost="0.01", worst="0.05", hang_at=2)
    result = await loop_of(agent, ScriptedEvaluator([0.6]), stop=MaxSeconds(0.3)).run("g")
    assert result.stop_reason == "time"
    assert result.best
    assert result.best.text == "a"
    assert result.cost.total == Decimal("0.06")
    assert result.iterations[-1].failure == "interrupted: time"


async def test_an_evaluator_that_swallows_its_cancellation_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stubborn(ScriptedEvaluator):
        async def evaluate(self, request: Any, context: Any) -> Feedback:
            while not freed.is_set():
                with suppress(asyncio.CancelledError):
                    await freed.wait()
            return Feedback(score=1.0)

    monkeypatch.setattr("loopwright.runner.loop.LEAVE_SECONDS", 0.05)
    freed = asyncio.Event()
    result = await loop_of(ScriptedAgent(["a"]), Stubborn(), stop=MaxSeconds(0.1)).run("g")
    freed.set()
    assert (result.stop_reason, result.iterations[0].text, result.iterations[0].score) == ("time", "a", None)
    assert "did not stop, and was left behind" in (result.iterations[0].failure or "")


async def test_cancel_keeps_the_best_and_what_is_paid_for() -> None:
    loop = loop_of(ScriptedAgent(["a", "b"], worst="0.05", hang_at=2), ScriptedEvaluator([0.6]))
    run = loop.start("g")
    async for event in run.events():
        if isinstance(event, IterationStarted) and event.number == 2:
            run.cancel()
            run.cancel()
    result = await run
    assert result.stop_reason == "cancelled"
    assert result.best
    assert (result.best.text, result.cost.total) == ("a", Decimal("0.06"))


async def test_a_candidate_that_was_paid_for_survives_a_cancelled_evaluation() -> None:
    class Hangs(ScriptedEvaluator):
        async def evaluate(self, request: Any, context: Any) -> Feedback:
            if request.iteration == 2:
                run.cancel()
                await asyncio.Event().wait()
            return await super().evaluate(request, context)

    run = loop_of(ScriptedAgent(["a", "b"]), Hangs([0.2])).start("g")
    result = await run
    assert result.stop_reason == "cancelled"
    assert result.best
    assert (result.best.text, result.best.score) == ("a", 0.2)
    assert (result.iterations[-1].text, result.iterations[-1].score) == ("b", None)


async def test_cancelling_the_task_finishes_the_record_first(tmp_path: Path) -> None:
    second = asyncio.Event()
    agent = ScriptedAgent(["a"], hang_at=2, on_turn=lambda n: second.set() if n == 2 else None)
    task = asyncio.create_task(loop_of(agent, ScriptedEvaluator([0.6])).run("g", journal=tmp_path / "j.jsonl"))
    await second.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    last = list(read_journal(tmp_path / "j.jsonl"))[-1]
    assert isinstance(last, RunFinished)
    assert last.stop_reason == "cancelled"


async def test_leaving_the_stream_stops_the_run() -> None:
    agent = ScriptedAgent(["a"])
    loop = loop_of(agent, ScriptedEvaluator([0.1]), stop=MaxIterations(10_000))
    stream = loop.stream("g")
    async for event in stream:
        if isinstance(event, IterationFinished) and event.iteration.number == 3:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    assert len(agent.prompts) < 10


async def test_the_first_attempt_that_hits_the_target_stops_the_others() -> None:
    class Race(ScriptedAgent):
        async def take_turn(self, prompt: Any, context: Any) -> Any:
            if context.attempt != 2:
                self.hang_at = context.number
            else:
                self.hang_at = None
            return await super().take_turn(prompt, context)

    loop = loop_of(Race(["a", "b"]), ScriptedEvaluator([0.2, 0.95]), stop=Target(0.9) | MaxIterations(5), attempts=3)
    result = await loop.run("g")
    assert result.stop_reason == "target_reached"
    assert result.best
    assert (result.best.attempt, result.best.score) == (2, 0.95)


async def test_attempts_share_one_wallet() -> None:
    loop = loop_of(ScriptedAgent(cost="0.02", worst="0.05"), ScriptedEvaluator([0.1]), stop=Budget("0.30"), attempts=4)
    events = [event async for event in loop.stream("g")]
    finished = events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.stop_reason == "budget"
    assert finished.cost.total <= Decimal("0.30")
    assert finished.cost.total > Decimal("0.25") - Decimal("0.05")
    assert {e.iteration.attempt for e in events if isinstance(e, IterationFinished)} == {1, 2, 3, 4}
    settled = [e for e in events if isinstance(e, MoneySettled)]
    assert all(e.wallet.spent + e.wallet.reserved <= Decimal("0.30") for e in settled)


async def test_at_most_one_undeclared_cost_passes_the_cap() -> None:
    """Whoever comes second waits for the first report, and then reserves as much."""

    class Slow(ScriptedEvaluator):
        async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
            await asyncio.sleep(0.01)
            return await super().evaluate(request, context)

    evaluator = Slow([Feedback(score=0.1, cost_usd=Decimal("0.04"))])
    loop = loop_of(ScriptedAgent(cost="0"), evaluator, stop=Budget("0.05") | MaxIterations(3), attempts=8)
    result = await loop.run("g")
    assert len(evaluator.requests) == 1
    assert result.cost.total == Decimal("0.04")


async def test_the_best_of_several_attempts_is_the_best_of_all() -> None:
    evaluator = ScriptedEvaluator([0.1, 0.4, 0.3])
    result = await loop_of(ScriptedAgent(["a"]), evaluator, stop=MaxIterations(1), attempts=3).run("g")
    assert result.best
    assert result.best.score == 0.4
    assert len(result.iterations) == 3


@settings(max_examples=60, deadline=None)
@given(
    cap=st.integers(1, 60),
    turns=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    judged=st.integers(0, 5),
    attempts=st.integers(1, 4),
)
def test_spent_never_passes_the_cap(cap: int, turns: list[tuple[int, int]], judged: int, attempts: int) -> None:
    """Whatever turns and evaluations cost, as long as they stay below their worst case."""

    class Varied(ScriptedAgent):
        async def take_turn(self, prompt: Any, context: Any) -> Any:
            low, extra = turns[context.number % len(turns)]
            self.cost, self.worst = Decimal(low) / 100, Decimal(low + extra) / 100
            return await super().take_turn(prompt, context)

    evaluator = ScriptedEvaluator([Feedback(score=0.5, cost_usd=Decimal(judged) / 200)], max_cost=str(judged / 100))
    loop = loop_of(Varied(), evaluator, stop=Budget(Decimal(cap) / 100) | MaxIterations(12), attempts=attempts)

    async def run() -> tuple[RunResult, Sequence[RunEvent]]:
        running = loop.start("g")
        events = [event async for event in running.events()]
        return await running, events

    result, events = asyncio.run(run())
    billed = sum((e.charge.amount for e in events if isinstance(e, MoneySettled)), Decimal(0))
    assert result.cost.total == billed <= Decimal(cap) / 100
    assert result.stop_reason in ("budget", "max_iterations")


async def test_a_journal_that_can_not_be_written_stops_the_run_with_the_best_kept() -> None:
    from loopwright.core.events import EVENT
    from loopwright.runner.plan import Halt
    from loopwright.runner.run import run_loop
    from loopwright.store.memory import MemoryRunStore
    from loopwright.testing import FakeClock

    lines = 0

    def full_disk(event: RunEvent) -> None:
        nonlocal lines
        lines += len(EVENT.dump_json(event)) > 0
        if lines > 12:
            raise OSError(28, "No space left on device")

    loop = loop_of(ScriptedAgent(["a", "b", "c"]), ScriptedEvaluator([0.4]), stop=MaxIterations(50))
    clock = FakeClock()
    store = MemoryRunStore("run_x", cap=None, clock=clock, sinks=[full_disk])
    result = await run_loop(loop.plan("g", "run_x"), loop.ports(store, clock), Halt())
    assert result.stop_reason == "error"
    assert "No space left" in (result.error or "")
    assert result.best
    assert result.best.score == 0.4
    assert len(result.iterations) < 4


async def test_the_holdout_is_unseen_and_tells_when_the_scores_part_ways() -> None:
    agent = ScriptedAgent(["a", "b", "c"])
    visible = ScriptedEvaluator([Feedback(score=0.2, detail="v1"), Feedback(score=0.5, detail="v2"), 0.9])
    holdout = ScriptedEvaluator([Feedback(score=0.3, detail="SECRET"), Feedback(score=0.6, detail="SECRET"), 0.1])
    result = await loop_of(agent, visible, holdout=holdout, stop=MaxIterations(3)).run("g")
    assert "v1" in agent.shown(2)
    assert all("SECRET" not in agent.shown(n) for n in (1, 2, 3))
    assert result.holdout
    assert (result.holdout.score, result.holdout.best_iteration, result.holdout.parted_at) == (0.1, 2, 3)
    assert "part ways from iteration 3" in result.holdout.sentence


async def test_a_holdout_that_fails_does_not_fail_the_iteration() -> None:
    result = await loop_of(
        ScriptedAgent(), ScriptedEvaluator([0.2]), holdout=ScriptedEvaluator([BAD]), stop=MaxIterations(1)
    ).run("g")
    assert result.iterations[0].score == 0.2
    assert result.iterations[0].holdout_failure == "score must be a number"
    assert result.holdout
    assert result.holdout.sentence == "The holdout evaluator gave no score."


async def test_the_journal_tells_the_whole_run(tmp_path: Path) -> None:
    loop = loop_of(ScriptedAgent(["a", "b"]), ScriptedEvaluator([0.1, 1.0]), stop=Target(1) | MaxIterations(5))
    result = await loop.run("the goal", journal=tmp_path / "deep" / "j.jsonl")
    events = list(read_journal(tmp_path / "deep" / "j.jsonl"))
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert isinstance(events[0], RunStarted)
    assert events[0].goal == "the goal"
    assert isinstance(events[-1], RunFinished)
    assert events[-1].best == result.best
    assert {e.run_id for e in events} == {result.run_id}


@pytest.mark.parametrize("goal", ["", "  \n"])
async def test_an_empty_goal_is_refused(goal: str) -> None:
    with pytest.raises(InvalidInput, match="goal"):
        await loop_of(ScriptedAgent()).run(goal)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"direction": "min"}, "direction"), ({"attempts": 0}, "attempts"), ({"evaluator": "ev:score"}, "evaluate"),
     ({"evaluator": ScriptedEvaluator(), "holdout": 3}, "holdout"), ({"stop": 5}, "stop")],
)  # fmt: skip
def test_what_is_no_argument_is_refused_before_anything_is_paid(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        loop_of(ScriptedAgent(), options.pop("evaluator", None), **options)
    assert [problem.field for problem in refused.value.problems] == [field]
