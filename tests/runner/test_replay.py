"""Replay: where other stop conditions would have stopped a past run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.errors import EvaluatorFailed, InvalidInput
from loopwright.core.events import IterationFinished, RunFinished, RunStarted, WalletView
from loopwright.core.models import Candidate, Cost, Direction, Feedback, Iteration
from loopwright.core.stop import Stop, StopReason, parse_stop_expression
from loopwright.runner.library import Loop, Wiring
from loopwright.runner.replay import RecordedRun, Replayed, recorded_runs, replay
from loopwright.store.jsonl import read_journal

from .world import ScriptedAgent, ScriptedEvaluator, done

START = datetime(2026, 1, 1, tzinfo=UTC)


def finished(score: float | None, at: int, *, number: int = 0, attempt: int = 1, **changes: Any) -> IterationFinished:
    """An iteration that ends `at` seconds after the start, when 1 cent a second was spent."""
    iteration = Iteration(
        number=number or at,
        attempt=attempt,
        candidate=Candidate(text=f"{attempt}/{number or at}"),
        feedback=None if score is None else Feedback(score=score),
        started_at=START,
        **changes,
    )
    wallet = WalletView(cap=None, spent=Decimal(at) / 100, reserved=Decimal(0))
    when = START + timedelta(seconds=at)
    return IterationFinished(at=when, iteration=iteration, is_best=False, best_score=None, wallet=wallet)


def recorded(
    iterations: Sequence[IterationFinished],
    *,
    attempts: int = 1,
    direction: Direction = "maximize",
    evaluator: str | None = "e",
) -> RecordedRun:
    started = RunStarted(
        at=START, loop="l", goal="g", stop={}, attempts=attempts, direction=direction, evaluator=evaluator
    )
    return RecordedRun(started=started, iterations=tuple(iterations), finished=None)


def of_scores(*scores: float | None, **changes: Any) -> RecordedRun:
    return recorded([finished(score, at) for at, score in enumerate(scores, start=1)], **changes)


def stop(expression: str) -> Stop:
    return parse_stop_expression(expression)


RISING = of_scores(0.1, 0.5, 0.4, 0.8, 0.8, 0.8, 0.9)


@pytest.mark.parametrize(
    ("expression", "reason", "iterations", "best", "cost"),
    [
        ("target_score=0.8", "target_reached", 4, 4, "0.04"),
        ("target_score=0.85 | max_iterations=3", "max_iterations", 3, 2, "0.03"),
        ("no_improvement=2", "no_improvement", 6, 4, "0.06"),
        ("no_improvement=2 & target_score=0.9", None, 7, 7, "0.07"),
        ("max_iterations=100", None, 7, 7, "0.07"),
        ("budget_usd=0.03", "budget", 3, 2, "0.03"),
        ("budget_usd=0.035", "budget", 3, 2, "0.03"),
        ("budget_usd=0.005", "budget", 0, None, "0"),
        ("max_seconds=4", "time", 4, 4, "0.04"),
        ("max_seconds=4.5", "time", 4, 4, "0.04"),
        ("max_seconds=4.5 & max_iterations=2", "max_iterations", 5, 4, "0.05"),
    ],
)
def test_where_it_would_have_stopped(
    expression: str, reason: StopReason | None, iterations: int, best: int | None, cost: str
) -> None:
    answer = replay(RISING, stop(expression))
    assert (answer.reason, answer.iterations, answer.cost) == (reason, iterations, Decimal(cost))
    assert (answer.best.number if answer.best else None) == best


def test_an_iteration_that_does_not_fit_is_not_counted_and_it_says_so() -> None:
    assert "past the budget" in replay(RISING, stop("budget_usd=0.035")).left_out
    assert "deadline" in replay(RISING, stop("max_seconds=4.5")).left_out
    assert replay(RISING, stop("budget_usd=0.03")).left_out == ""


def test_minimize() -> None:
    answer = replay(of_scores(5, 3, 4, 1, direction="minimize"), stop("target_score=3"))
    assert (answer.reason, answer.iterations) == ("target_reached", 2)


def test_failures_in_a_row_end_it_whatever_the_condition() -> None:
    failed = [finished(None, at, failure="500") for at in (2, 3, 4, 5)]
    answer = replay(recorded([finished(0.5, 1), *failed]), stop("max_iterations=9"))
    assert (answer.reason, answer.iterations) == ("error", 4)
    assert answer.best
    assert answer.best.number == 1


def test_loop_done_ends_it() -> None:
    answer = replay(recorded([finished(0.5, 1, done_reason="enough"), finished(0.6, 2)]), stop("max_iterations=9"))
    assert (answer.reason, answer.iterations) == ("converged", 1)


def test_what_cut_the_recorded_run_short_does_not_cut_the_replay() -> None:
    cut = finished(None, 3, interrupted="budget", failure="did not fit")
    answer = replay(recorded([finished(0.5, 1), finished(0.6, 2, interrupted="time"), cut]), stop("max_iterations=9"))
    assert (answer.reason, answer.iterations) == (None, 2)


def test_an_error_that_would_come_again_does() -> None:
    unknown = finished(None, 1, interrupted="error", failure="no price is known")
    assert replay(recorded([unknown]), stop("max_iterations=9")).reason == "error"


def test_the_first_attempt_at_the_target_ends_it_for_all() -> None:
    events = [
        finished(0.2, 1, number=1),
        finished(0.9, 2, number=1, attempt=2),
        finished(1.0, 3, number=2),
    ]
    answer = replay(recorded(events, attempts=2), stop("target_score=0.9"))
    assert (answer.reason, answer.iterations, answer.attempt) == ("target_reached", 2, 2)
    assert answer.best
    assert answer.best.text == "2/1"


def test_attempts_stop_one_by_one() -> None:
    events = [
        finished(0.2, 1, number=1),
        finished(0.3, 2, number=2),
        finished(0.9, 3, number=3),
        finished(0.2, 4, number=1, attempt=2),
        finished(0.4, 5, number=2, attempt=2),
        finished(0.5, 6, number=3, attempt=2),
    ]
    answer = replay(recorded(events, attempts=2), stop("max_iterations=2"))
    assert (answer.reason, answer.iterations, answer.cost) == ("max_iterations", 4, Decimal("0.05"))
    assert answer.best
    assert answer.best.text == "2/2"


def test_without_scores_the_last_candidate_is_the_best_and_a_target_is_refused() -> None:
    run = of_scores(None, None, None, evaluator=None)
    answer = replay(run, stop("max_iterations=2"))
    assert answer.best
    assert answer.best.number == 2
    with pytest.raises(InvalidInput, match="needs scores"):
        replay(run, stop("target_score=1"))


def test_an_empty_run() -> None:
    answer = replay(recorded([]), stop("max_iterations=2"))
    assert (answer.reason, answer.best, answer.iterations, answer.seconds) == (None, None, 0, 0.0)


# --- on real journals ---


async def run_and_record(path: Path, scores: Sequence[float], condition: Stop, **options: Any) -> RecordedRun:
    agent = ScriptedAgent([f"c{n}" for n in range(1, len(scores) + 1)])
    loop = Loop(agent=Wiring(agent), evaluate=ScriptedEvaluator(scores), stop=condition, **options)
    await loop.run("g", journal=path)
    (run,) = recorded_runs(read_journal(path))
    return run


@pytest.mark.parametrize(
    "expression",
    ["max_iterations=4", "target_score=0.7 | max_iterations=9", "no_improvement=2 | max_iterations=9"],
)
async def test_under_its_own_condition_a_run_stops_where_it_did(tmp_path: Path, expression: str) -> None:
    run = await run_and_record(tmp_path / "j.jsonl", [0.1, 0.6, 0.6, 0.5, 0.8, 0.9, 0.9, 0.9, 0.9], stop(expression))
    answer = replay(run, stop(expression))
    assert run.finished
    assert (answer.reason, answer.iterations, answer.best, answer.cost) == (
        run.finished.stop_reason,
        run.finished.iterations,
        run.finished.best,
        run.finished.cost.total,
    )


@given(
    scores=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=12),
    limit=st.integers(1, 14),
    patience=st.integers(1, 5),
)
def test_it_never_counts_more_than_there_is_nor_goes_past_the_condition(
    scores: list[float], limit: int, patience: int
) -> None:
    answer: Replayed = replay(of_scores(*scores), stop(f"max_iterations={limit} | no_improvement={patience}"))
    assert answer.iterations <= min(limit, len(scores))
    assert answer.best
    assert answer.best.score == max(scores[: answer.iterations])
    if answer.reason is None:
        assert answer.iterations == len(scores) < limit


async def test_a_journal_that_a_crash_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    await run_and_record(path, [0.1, 0.5, 0.9], stop("max_iterations=3"))
    lines = path.read_bytes().splitlines(keepends=True)
    third = next(n for n, line in enumerate(lines) if b'"iteration_finished"' in line and b'"number":3' in line)
    path.write_bytes(b"".join(lines[:third]) + lines[third][:100])
    (run,) = recorded_runs(read_journal(path))
    assert run.finished is None
    answer = replay(run, stop("target_score=0.9"))
    assert (answer.reason, answer.iterations) == (None, 2)


async def test_a_journal_with_two_runs(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    agent = ScriptedAgent(["a", done("b")])
    loop = Loop(agent=Wiring(agent, retry_delays=()), evaluate=ScriptedEvaluator([0.1]), stop=stop("max_iterations=5"))
    await loop.run("g", journal=path)
    broken = ScriptedEvaluator([EvaluatorFailed("no", transient=False)])
    await Loop(agent=Wiring(agent), evaluate=broken, stop=stop("max_iterations=5")).run("g", journal=path)
    first, second = recorded_runs(read_journal(path))
    assert replay(first, stop("max_iterations=9")).reason == "converged"
    assert replay(second, stop("max_iterations=9")).reason == "error"


def test_a_file_in_which_no_run_begins() -> None:
    with pytest.raises(InvalidInput, match="no run begins"):
        list(recorded_runs([]))


def test_an_unknown_attempt_is_left_out() -> None:
    assert replay(recorded([finished(1.0, 1, attempt=7)]), stop("max_iterations=1")).iterations == 0


def test_a_finished_run_keeps_its_end() -> None:
    end = RunFinished(stop_reason="time", sentence="s", best=None, cost=Cost(), iterations=0, seconds=1)
    (run,) = recorded_runs([RISING.started, end])
    assert run.finished is end


def test_attempts_without_iterations_cost_nothing_and_never_end() -> None:
    run = recorded([finished(0.5, 1), finished(0.6, 2, attempt=7)], attempts=10**18)
    answer = replay(run, stop("max_iterations=1"))
    assert (answer.iterations, answer.reason) == (2, None)
    both = recorded([finished(0.5, 1), finished(0.6, 2, attempt=2)], attempts=2)
    assert replay(both, stop("max_iterations=1")).reason == "max_iterations"


def test_a_time_beyond_all_calendars() -> None:
    assert replay(RISING, stop("max_seconds=1e300")).reason is None
