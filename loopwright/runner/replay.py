"""Where other stop conditions would have stopped a past run. Pure: events in, an answer out.

A journal knows what its iterations cost, not what they would have reserved, so a real run under a smaller budget may
stop an iteration earlier than its replay: it keeps room for the worst case of the next request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from itertools import count

from ..core.errors import InvalidInput, Problem
from ..core.events import IterationFinished, RunEvent, RunFinished, RunStarted
from ..core.models import Iteration
from ..core.state import RunState
from ..core.stop import MaxIterations, Stop, StopReason, budget_of, check_stop, first_reason, seconds_of
from ..core.wallet import ZERO, Wallet


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run as its journal tells it."""

    started: RunStarted
    iterations: tuple[IterationFinished, ...]
    finished: RunFinished | None
    """`None` where the journal breaks off: the run crashed, or still goes on."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What other stop conditions would have made of a run."""

    reason: StopReason | None
    """`None`: they would have let it go on after all that is recorded."""
    best: Iteration | None
    iterations: int
    """Iterations of all attempts that count."""
    number: int
    """The iteration, within its attempt, at which the run would have stopped."""
    attempt: int
    cost: Decimal
    """USD spent when the last iteration that counts was over."""
    seconds: float
    left_out: str = ""
    """Why the iteration after the last one does not count, where there is one."""


def recorded_runs(events: Iterable[RunEvent]) -> Iterator[RecordedRun]:
    """The runs in a journal, oldest first; most journals hold one.

    Raises:
        InvalidInput: no run begins in it.
    """
    started: dict[str, RunStarted] = {}
    iterations: dict[str, list[IterationFinished]] = {}
    finished: dict[str, RunFinished] = {}
    for event in events:
        match event:
            case RunStarted():
                started[event.run_id] = event
            case IterationFinished():
                iterations.setdefault(event.run_id, []).append(event)
            case RunFinished():
                finished[event.run_id] = event
            case _:
                pass
    if not started:
        raise InvalidInput(Problem(field="", message="no run begins in this file; give a journal of `loopwright run`"))
    for run_id, start in started.items():
        done = tuple(iterations.get(run_id, ()))
        yield RecordedRun(started=start, iterations=done, finished=finished.get(run_id))


def replay(run: RecordedRun, stop: Stop) -> Replayed:
    """Run the recorded iterations again under another stop condition.

    Raises:
        InvalidInput: the condition can't work with this run: it needs scores and the run has none.
    """
    # A journal ends anyhow, so the condition need not surely fire.
    problems = check_stop(stop | MaxIterations(1), has_evaluator=run.started.evaluator is not None)
    if problems:
        raise InvalidInput(*problems)
    folding = _Folding(run, stop)
    for event in run.iterations:
        if folding.over:
            break
        folding.take(event)
    return folding.result()


@dataclass
class _Folding:
    """Where the replay stands: one state an attempt, as in the run itself."""

    run: RecordedRun
    stop: Stop
    states: dict[int, RunState] = field(init=False)
    ended: dict[int, StopReason] = field(default_factory=dict[int, StopReason])
    cost: Decimal = ZERO
    last: Iteration | None = None
    at: datetime = field(init=False)
    left_out: str = ""

    def __post_init__(self) -> None:
        start = self.run.started
        self.at = start.at
        wallet = Wallet(cap=budget_of(self.stop))
        self.states = {
            number: RunState(
                started_at=start.at,
                attempt=number,
                direction=start.direction,
                has_evaluator=start.evaluator is not None,
                keep=0,
                wallet=wallet,
            )
            for number in self._attempts()
        }

    def _attempts(self) -> list[int]:
        """The attempts that have iterations, and one that has none where there are such: it has not ended."""
        known, most = {event.iteration.attempt for event in self.run.iterations}, self.run.started.attempts
        present = sorted(number for number in known if 1 <= number <= most)
        absent = next(number for number in count(1) if number not in known)
        return sorted([*present, absent]) if absent <= most else present

    @property
    def over(self) -> bool:
        """Whether the run has ended: all attempts have, or one has ended it for all."""
        return len(self.ended) == len(self.states) or "target_reached" in self.ended.values()

    def take(self, event: IterationFinished) -> None:
        """Count one iteration, or say why it doesn't."""
        iteration = event.iteration
        state = self.states.get(iteration.attempt)
        if state is None or iteration.attempt in self.ended or _cut_short(iteration):
            return
        cap, spent = budget_of(self.stop), event.wallet.spent
        limit = seconds_of(self.stop)
        if cap is not None and spent > cap:
            self._end_all("budget", "it would have taken spending past the budget")
        elif limit is not None and (event.at - state.started_at).total_seconds() > limit:
            self._end_all("time", "it would have been in flight at the deadline")
        else:
            self._count(state, iteration, Wallet(cap=cap, spent=spent), event.at)

    def _count(self, state: RunState, iteration: Iteration, wallet: Wallet, at: datetime) -> None:
        # What cut the recorded run short after this iteration is not this condition's doing; an error would come again.
        kept = iteration.interrupted if iteration.interrupted == "error" else None
        after = state.after(iteration.model_copy(update={"interrupted": kept}), wallet, at)
        self.states[iteration.attempt] = after
        self.cost, self.at, self.last = wallet.spent, at, iteration
        if reason := after.stop_reason(self.stop, at):
            self.ended[iteration.attempt] = reason

    def _end_all(self, reason: StopReason, why: str) -> None:
        self.left_out = why
        for number in self.states:
            self.ended.setdefault(number, reason)

    def result(self) -> Replayed:
        """What came of it."""
        reason = None
        if self.over:
            reason = first_reason(r for r in self.ended.values() if r != "error") or "error"
        start = self.run.started.at
        return Replayed(
            reason=reason,
            best=self._best(),
            iterations=sum(state.iterations for state in self.states.values()),
            number=self.last.number if self.last else 0,
            attempt=self.last.attempt if self.last else 1,
            cost=self.cost,
            seconds=max(0.0, (self.at - start).total_seconds()),
            left_out=self.left_out,
        )

    def _best(self) -> Iteration | None:
        """The best candidate of all attempts; on a tie the first attempt's."""
        top = RunState(started_at=self.run.started.at, direction=self.run.started.direction)
        for state in self.states.values():
            if state.best and top.improves(state.best):
                top = replace(top, best=state.best)
        return top.best


def _cut_short(iteration: Iteration) -> bool:
    """Whether the recorded run ended in the middle of this iteration, so that nobody knows what it would have given."""
    return iteration.interrupted not in (None, "error") and iteration.failure is not None
