"""The state: best by strict improvement, bounded memory, failures in a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.models import Candidate, Direction, Feedback, Iteration, StopReason, finite_score
from loopwright.core.state import TRAIL, RunState
from loopwright.core.stop import MaxIterations
from loopwright.core.wallet import Wallet

START = datetime(2026, 1, 1, tzinfo=UTC)


def an_iteration(
    number: int,
    score: float | None = None,
    *,
    failure: str | None = None,
    cost: str = "0",
    done: str | None = None,
    interrupted: StopReason | None = None,
    candidate: bool = True,
) -> Iteration:
    return Iteration(
        number=number,
        candidate=Candidate(text=f"c{number}") if candidate else None,
        feedback=None if score is None else Feedback(score=score),
        failure=failure,
        cost_usd=Decimal(cost),
        done_reason=done,
        interrupted=interrupted,
        started_at=START,
    )


def fold(*iterations: Iteration, direction: Direction = "maximize", keep: int | None = 3) -> RunState:
    state = RunState(started_at=START, direction=direction, keep=keep)
    for iteration in iterations:
        state = state.after(iteration, Wallet(), START)
    return state


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.sampled_from(["maximize", "minimize"]))
def test_the_best_is_the_first_of_the_best_scores(scores: list[float], direction: Direction) -> None:
    state = fold(*(an_iteration(n, s) for n, s in enumerate(scores, start=1)), direction=direction)
    top = max(scores) if direction == "maximize" else min(scores)
    assert state.best is not None
    assert state.best.number == scores.index(top) + 1
    assert state.best_score == top


def test_equal_scores_keep_the_earlier_whatever_they_cost() -> None:
    state = fold(an_iteration(1, 0.5, cost="0.10"), an_iteration(2, 0.5, cost="0.01"))
    assert state.best
    assert state.best.number == 1


def test_an_unscored_candidate_never_takes_the_place_of_a_scored_one() -> None:
    state = fold(an_iteration(1, -7.0), an_iteration(2, failure="the evaluator answered 500"))
    assert state.best
    assert (state.best.number, state.best_score) == (1, -7.0)


def test_without_scores_the_last_candidate_is_the_best() -> None:
    state = fold(an_iteration(1), an_iteration(2), an_iteration(3, failure="no answer", candidate=False))
    assert state.best
    assert state.best.number == 2


def test_three_failures_in_a_row_are_an_error_and_a_success_between_is_not() -> None:
    stop = MaxIterations(99)
    bad = [an_iteration(n, failure="no") for n in range(1, 6)]
    assert fold(*bad[:2]).stop_reason(stop, START) is None
    assert fold(*bad[:3]).stop_reason(stop, START) == "error"
    assert fold(bad[0], bad[1], an_iteration(3, 0.1), bad[3], bad[4]).stop_reason(stop, START) is None


def test_what_cut_an_iteration_short_is_the_reason_not_a_third_failure() -> None:
    bad = [an_iteration(n, failure="no") for n in (1, 2)]
    cut = an_iteration(3, failure="interrupted: time", interrupted="time", candidate=False)
    assert fold(*bad, cut).stop_reason(MaxIterations(99), START) == "time"


def test_loop_done_ends_the_run_when_its_candidate_is_scored() -> None:
    assert fold(an_iteration(1, 0.2, done="good enough")).stop_reason(MaxIterations(9), START) == "converged"
    unscored = fold(an_iteration(1, failure="the evaluator is away", done="good enough"))
    assert unscored.stop_reason(MaxIterations(9), START) is None


@given(st.lists(st.one_of(st.none(), st.floats(-1, 1)), max_size=200))
def test_the_state_stays_small(scores: list[float | None]) -> None:
    state = fold(*(an_iteration(n, s) for n, s in enumerate(scores, start=1)))
    assert len(state.recent) <= 3
    assert len(state.trail) <= TRAIL
    assert state.iterations == len(scores)


def test_nothing_recent_is_kept_where_nothing_is_shown_and_all_where_all_is() -> None:
    many = [an_iteration(n, 0.1) for n in range(1, 9)]
    assert fold(*many, keep=0).recent == ()
    assert len(fold(*many, keep=None).recent) == 8


def test_time_does_not_run_backwards() -> None:
    state = RunState(started_at=START).after(an_iteration(1, 0.1), Wallet(), START + timedelta(seconds=50))
    assert state.elapsed(START - timedelta(hours=5)) == 50


@pytest.mark.parametrize("value", [True, False, "0.9", None, float("nan"), float("inf"), 10**400, [1], {"a": 1}])
def test_what_is_not_a_score(value: object) -> None:
    with pytest.raises(ValueError, match="score"):
        finite_score(value)


def test_negative_zero_is_zero() -> None:
    assert str(finite_score(-0.0)) == "0.0"
    assert finite_score(3) == 3.0
    assert finite_score(Decimal("0.25")) == 0.25
