"""Stop conditions: when they fire, how they compose, how they go to JSON and back."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.errors import InvalidInput
from loopwright.core.models import Candidate, Direction, Feedback, Iteration, StopReason
from loopwright.core.state import RunState
from loopwright.core.stop import (
    PRECEDENCE,
    AllOf,
    AnyOf,
    Budget,
    MaxIterations,
    MaxSeconds,
    NoImprovement,
    Stop,
    Target,
    budget_of,
    check_stop,
    first_reason,
    parse_stop,
    parse_stop_expression,
    seconds_of,
)
from loopwright.core.wallet import Wallet

START = datetime(2026, 1, 1, tzinfo=UTC)


def played(scores: list[float | None], *, direction: Direction = "maximize", seconds: float = 1.0) -> RunState:
    state = RunState(started_at=START, direction=direction)
    for number, score in enumerate(scores, start=1):
        iteration = Iteration(
            number=number,
            candidate=Candidate(text=f"c{number}"),
            feedback=None if score is None else Feedback(score=score),
            failure="no score" if score is None else None,
            started_at=START,
        )
        state = state.after(iteration, Wallet(), START + timedelta(seconds=number * seconds))
    return state


leaves = st.one_of(
    st.builds(Target, st.floats(-10, 10)),
    st.builds(MaxIterations, st.integers(1, 50)),
    st.builds(Budget, st.decimals(min_value="0.01", max_value=100, places=4)),
    st.builds(MaxSeconds, st.floats(0.1, 1e6)),
    st.builds(NoImprovement, st.integers(1, 20), st.floats(0, 1)),
)
conditions = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda c: AnyOf(*c)),
        st.lists(inner, min_size=1, max_size=3).map(lambda c: AllOf(*c)),
    ),
    max_leaves=8,
)


@given(conditions)
def test_json_and_back_is_the_same_condition(stop: Stop) -> None:
    assert parse_stop(stop.to_json()) == stop


@given(conditions, conditions, st.lists(st.one_of(st.none(), st.floats(-5, 5)), max_size=12), st.floats(0, 100))
def test_or_fires_when_either_does_and_when_both_do(
    a: Stop, b: Stop, scores: list[float | None], seconds: float
) -> None:
    state, now = played(scores), START + timedelta(seconds=seconds)
    fired: list[StopReason] = [r for r in (a(state, now), b(state, now)) if r]
    assert (a | b)(state, now) == first_reason(fired)
    assert (a & b)(state, now) == (first_reason(fired) if len(fired) == 2 else None)


@given(conditions, st.lists(st.one_of(st.none(), st.floats(-5, 5)), max_size=12))
def test_a_condition_that_surely_fires_does_so_in_the_end(stop: Stop, scores: list[float | None]) -> None:
    late = played([*scores, *[0.0] * 60])
    poor = RunState(
        started_at=START, iterations=late.iterations, improvements=late.improvements, best=late.best,
        wallet=Wallet(cap=Decimal(1000), spent=Decimal(1000)),
    )  # fmt: skip
    if stop.surely_fires:
        assert stop(poor, START + timedelta(days=400))


def test_the_reason_is_the_first_in_precedence() -> None:
    state = played([0.5, 0.9, 0.9])
    stop = NoImprovement(1) | MaxSeconds(1) | MaxIterations(3) | Target(0.9)
    assert stop(state, START + timedelta(seconds=9)) == "target_reached"
    assert first_reason(reversed(PRECEDENCE)) == "cancelled"


def test_the_precedence_is_the_documented_one() -> None:
    documented = (
        "cancelled", "error", "target_reached", "converged", "budget", "max_iterations", "time", "no_improvement",
    )  # fmt: skip
    assert documented == PRECEDENCE
    for before, after in itertools.pairwise(documented):
        assert first_reason((after, before)) == before


@pytest.mark.parametrize(
    ("direction", "scores", "target", "fires"),
    [
        ("maximize", [0.5, 0.9], 0.9, True),
        ("maximize", [0.5, 0.89], 0.9, False),
        ("maximize", [0.95, 0.1], 0.9, True),  # it is the best score that counts
        ("minimize", [5.0, 0.2], 0.3, True),
        ("minimize", [5.0, 0.4], 0.3, False),
        ("minimize", [-0.0], 0.0, True),
        ("maximize", [None, None], 0.0, False),
        ("maximize", [], -1.0, False),
    ],
)
def test_target(direction: Direction, scores: list[float | None], target: float, fires: bool) -> None:
    assert (Target(target)(played(scores, direction=direction), START) == "target_reached") is fires


@pytest.mark.parametrize(
    ("scores", "patience", "gain", "fires"),
    [
        ([0.1, 0.2, 0.2, 0.2], 2, 0.0, True),
        ([0.1, 0.2, 0.2, 0.3], 2, 0.0, False),
        ([0.1, 0.2, 0.21, 0.22], 2, 0.05, True),
        ([0.1, 0.2, 0.21, 0.26], 2, 0.05, False),
        ([0.1], 1, 0.0, False),  # the first score of all is an improvement
        ([None, None, 0.1], 2, 0.0, False),
        ([0.1, None, None], 2, 0.0, True),  # failed iterations don't improve anything
        ([None, None, None], 2, 0.0, False),
        ([0.3, 0.1, 0.2], 2, 0.0, True),
    ],
)
def test_no_improvement(scores: list[float | None], patience: int, gain: float, fires: bool) -> None:
    assert (NoImprovement(patience, gain)(played(scores), START) == "no_improvement") is fires


def test_no_improvement_follows_the_direction() -> None:
    assert NoImprovement(2)(played([3.0, 2.0, 1.0], direction="minimize"), START) is None
    assert NoImprovement(2)(played([1.0, 2.0, 3.0], direction="minimize"), START) == "no_improvement"


def test_time_counts_from_the_start_and_a_clock_that_is_set_back_gives_none_back() -> None:
    state = played([0.1, 0.2], seconds=30)
    assert MaxSeconds(60)(state, START + timedelta(seconds=60)) == "time"
    assert MaxSeconds(60)(state, START - timedelta(days=1)) == "time"
    assert MaxSeconds(61)(state, START - timedelta(days=1)) is None


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: MaxIterations(0), "max_iterations"),
        (lambda: MaxIterations(-3), "max_iterations"),
        (lambda: MaxIterations(True), "max_iterations"),
        (lambda: MaxIterations(2.5), "max_iterations"),  # type: ignore[arg-type]
        (lambda: Budget(0), "budget_usd"),
        (lambda: Budget("-1"), "budget_usd"),
        (lambda: Budget("inf"), "budget_usd"),
        (lambda: Budget("NaN"), "budget_usd"),
        (lambda: Budget(True), "budget_usd"),
        (lambda: Budget("five"), "budget_usd"),
        (lambda: MaxSeconds(float("inf")), "max_seconds"),
        (lambda: MaxSeconds(0), "max_seconds"),
        (lambda: MaxSeconds(-1), "max_seconds"),
        (lambda: Target(float("nan")), "target_score"),
        (lambda: Target("0.9"), "target_score"),  # type: ignore[arg-type]
        (lambda: NoImprovement(0), "no_improvement.patience"),
        (lambda: NoImprovement(3, -0.1), "no_improvement.min_gain"),
        (lambda: NoImprovement(3, float("inf")), "no_improvement.min_gain"),
    ],
)
def test_zero_negative_and_endless_limits_are_refused(make: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert refused.value.problems[0].field == field


def test_a_loop_needs_a_condition_that_surely_fires() -> None:
    for stop in (Target(0.9), NoImprovement(3), Target(0.9) | NoImprovement(3), Target(0.9) & MaxIterations(3)):
        (problem,) = check_stop(stop, has_evaluator=True)
        assert "surely fires: max_iterations, budget_usd or max_seconds" in problem.message
    for stop in (MaxIterations(3), Target(1) | Budget(1), Target(1) | MaxSeconds(1), MaxIterations(1) & MaxSeconds(1)):
        assert check_stop(stop, has_evaluator=True) == []


def test_a_budget_does_not_end_a_loop_that_costs_nothing() -> None:
    (problem,) = check_stop(Target(1) | Budget(1), has_evaluator=True, free_of_charge=True)
    assert "never fires" in problem.message
    assert check_stop(Budget(1) | MaxIterations(9), has_evaluator=True, free_of_charge=True) == []


def test_a_budget_is_a_hard_cap_and_waits_for_nothing() -> None:
    problems = check_stop((Budget(1) & NoImprovement(2)) | MaxIterations(9), has_evaluator=True)
    assert [p.field for p in problems] == ["stop.all"]


def test_scores_need_an_evaluator() -> None:
    problems = check_stop(Target(1) | NoImprovement(2) | MaxIterations(9), has_evaluator=False)
    assert [p.field for p in problems] == ["stop.target_score", "stop.no_improvement"]


def test_the_cap_and_the_deadline_are_the_smallest() -> None:
    stop = parse_stop({"any": [{"budget_usd": 2}, {"budget_usd": "0.50"}, {"max_seconds": 60}], "max_seconds": 30})
    assert budget_of(stop) == Decimal("0.50")
    assert seconds_of(stop) == 30
    assert seconds_of(MaxSeconds(5) & MaxIterations(3)) is None
    assert seconds_of(parse_stop({"any": [{"target_score": 2, "max_seconds": 5}]})) == 5
    assert seconds_of(parse_stop({"all": [{"max_seconds": 5}, {"max_seconds": 7}]})) == 7
    assert (
        seconds_of(
            parse_stop({"any": [{"all": [{"max_seconds": 9}]}, {"all": [{"max_seconds": 3}, {"max_iterations": 1}]}]})
        )
        == 9
    )
    assert budget_of(Target(1) | MaxIterations(1)) is None


def test_several_keys_mean_any_of_them() -> None:
    stop = parse_stop({"target_score": 0.9, "max_iterations": 20, "no_improvement": 5})
    assert stop == Target(0.9) | MaxIterations(20) | NoImprovement(5)


def test_an_expression_on_one_line() -> None:
    stop = parse_stop_expression("target_score=0.9 | max_iterations=20 & no_improvement=5 | budget_usd=0.10")
    assert stop == Target(0.9) | (MaxIterations(20) & NoImprovement(5)) | Budget("0.10")


@pytest.mark.parametrize("text", ["", "target_score", "nonsense=3", "max_iterations=x", "target_score=0.9 |"])
def test_an_expression_that_can_not_be_read_says_so(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_stop_expression(text)


@pytest.mark.parametrize(
    "value",
    [None, [], {}, 3, "target", {"any": []}, {"any": {}}, {"no_improvement": {}}, {"no_improvement": {"patienc": 3}},
     {"max_iterations": "3"}, {"target_score": True}, {"max_seconds": None}],
)  # fmt: skip
def test_what_is_not_a_condition_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        parse_stop(value)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_stop({"max_iteration": 3, "budget_usd": -1, "max_seconds": 0})
    assert [p.field for p in refused.value.problems] == ["max_iteration", "budget_usd", "max_seconds"]
