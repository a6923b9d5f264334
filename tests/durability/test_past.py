"""The state of a run from what it recorded: wherever it was interrupted, it is the state that it had."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.models import Candidate, Feedback, Iteration
from loopwright.core.state import Past, RunState
from loopwright.core.stop import MaxIterations, StopReason
from loopwright.core.wallet import Wallet

START = datetime(2026, 1, 1, tzinfo=UTC)
WALLET = Wallet()

scores = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
attempts = st.lists(st.tuples(st.integers(1, 2), scores), max_size=12)


def iterations(drawn: list[tuple[int, float | None]]) -> list[Iteration]:
    counts = {1: 0, 2: 0}
    made: list[Iteration] = []
    for attempt, score in drawn:
        counts[attempt] += 1
        made.append(
            Iteration(
                number=counts[attempt],
                attempt=attempt,
                candidate=Candidate(text=f"{attempt}/{counts[attempt]}"),
                feedback=None if score is None else Feedback(score=score),
                failure="no score" if score is None else None,
                started_at=START,
            )
        )
    return made


def past(made: list[Iteration], resume_after: int = 0) -> Past:
    elapsed = tuple(float(n) for n in range(1, len(made) + 1))
    return Past(started_at=START, iterations=tuple(made), elapsed=elapsed, resume_after=resume_after)


@given(attempts, st.integers(1, 2))
def test_a_replayed_state_is_the_state_that_was(drawn: list[tuple[int, float | None]], attempt: int):
    made = iterations(drawn)
    lived = RunState(started_at=START, attempt=attempt)
    for position, iteration in enumerate(made, start=1):
        if iteration.attempt == attempt:
            lived = lived.after(iteration, WALLET, START + timedelta(seconds=position))
    assert RunState(started_at=START, attempt=attempt).replay(past(made), WALLET) == lived


@given(attempts)
def test_what_ended_a_run_before_it_was_given_more_ends_it_no_longer(drawn: list[tuple[int, float | None]]):
    made = iterations(drawn)
    ended = [i.model_copy(update={"interrupted": "cancelled", "done_reason": "done"}) for i in made]
    stop = MaxIterations(100)
    for attempt in (1, 2):
        state = RunState(started_at=START, attempt=attempt).replay(past(ended, resume_after=len(ended)), WALLET)
        assert state.stop_reason(stop, START) is None
        assert state.iterations == sum(i.attempt == attempt for i in ended)


def test_what_ends_a_run_after_it_was_given_more_ends_it_still():
    first, second = iterations([(1, 0.5), (1, 0.25)])
    cut: StopReason = "cancelled"
    made = [first.model_copy(update={"interrupted": "time"}), second.model_copy(update={"interrupted": cut})]
    state = RunState(started_at=START).replay(past(made, resume_after=1), WALLET)
    assert state.stop_reason(MaxIterations(100), START) == cut


def test_three_failures_before_an_extension_and_two_after_are_not_three_in_a_row():
    made = iterations([(1, None)] * 5)
    stop = MaxIterations(100)
    assert RunState(started_at=START).replay(past(made, resume_after=3), WALLET).stop_reason(stop, START) is None
    assert RunState(started_at=START).replay(past(made, resume_after=2), WALLET).stop_reason(stop, START) == "error"
