"""The state of one attempt: frozen; `after` gives the next one. The clock is passed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from .models import Direction, Iteration
from .stop import Stop, StopReason, first_reason
from .wallet import Wallet

MAX_FAILURES_IN_A_ROW = 3
"""So many failed iterations in a row (agent or evaluator) end the run as `error`."""

TRAIL = 12
"""How many earlier scores the state keeps for the prompt; a constant, so that a long run's state stays small."""


@dataclass(frozen=True)
class Mark:
    """A score and the iteration it belongs to; `score` is `None` for a failed iteration."""

    number: int
    score: float | None


@dataclass(frozen=True, kw_only=True)
class Past:
    """What earlier executions of a run left behind: enough to go on from."""

    started_at: datetime
    iterations: tuple[Iteration, ...]
    """Finished iterations of all attempts, in the order in which they finished."""
    elapsed: tuple[float, ...]
    """Seconds since the run's start at the end of each."""
    resume_after: int = 0
    """So many of them came before the run was last given more: what ended it then ends it no longer."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where an attempt stands."""

    started_at: datetime
    """When the run started to work, not when it was queued."""
    attempt: int = 1
    direction: Direction = "maximize"
    has_evaluator: bool = True
    keep: int | None = 3
    """How many whole iterations `recent` holds; `None` for all of them (history policy `full`)."""
    iterations: int = 0
    """Finished iterations, failed ones included."""
    best: Iteration | None = None
    recent: tuple[Iteration, ...] = ()
    trail: tuple[Mark, ...] = ()
    """The last scores, oldest first, at most `TRAIL`."""
    improvements: tuple[Mark, ...] = ()
    """Each iteration that became the best, oldest first."""
    failures_in_row: int = 0
    wallet: Wallet = field(default_factory=Wallet)
    """As of the end of the last iteration."""
    clock_seconds: float = 0.0
    """Most seconds since the start seen so far: a clock that is set back doesn't give time back."""
    done: bool = False
    """The agent called `loop_done` and its candidate has been scored."""
    interrupted: StopReason | None = None
    """Set when the last iteration was cut short, or when somebody cancelled the run."""

    @property
    def best_score(self) -> float | None:
        """The best visible score so far."""
        return self.best.score if self.best else None

    def elapsed(self, now: datetime) -> float:
        """Seconds since the run started; never less than it was before."""
        return max(self.clock_seconds, (now - self.started_at).total_seconds())

    def gain_over(self, iterations: int) -> float | None:
        """By how much the best score got better over the last `iterations` (0.0 or more).

        `None` while there are too few iterations, or no score yet.
        """
        if self.iterations < iterations or not self.improvements:
            return None
        edge = self.iterations - iterations
        before = [m.score for m in self.improvements if m.number <= edge]
        now = self.improvements[-1].score
        if not before:
            # The first score of all came inside the window: that is an improvement, whatever its value.
            return None
        then = before[-1]
        return abs(now - then) if now is not None and then is not None else None

    def improves(self, iteration: Iteration) -> bool:
        """Whether this iteration is strictly better than the best so far; on a tie the earlier stays.

        A scored candidate is better than an unscored one; without scores the latest candidate is the best.
        """
        if iteration.candidate is None:
            return False
        score, best = iteration.score, self.best_score
        if score is None:
            return best is None
        if best is None:
            return True
        return score > best if self.direction == "maximize" else score < best

    def after(self, iteration: Iteration, wallet: Wallet, now: datetime) -> RunState:
        """The state after one more iteration, scored or failed."""
        better = self.improves(iteration)
        score = iteration.score
        mark = Mark(iteration.number, score)
        recent = (*self.recent, iteration)
        return replace(
            self,
            iterations=self.iterations + 1,
            best=iteration if better else self.best,
            recent=recent if self.keep is None else recent[len(recent) - min(self.keep, len(recent)) :],
            trail=(*self.trail, mark)[-TRAIL:],
            improvements=(*self.improvements, mark) if better and score is not None else self.improvements,
            failures_in_row=self._failures_after(iteration),
            wallet=wallet,
            clock_seconds=self.elapsed(now),
            done=iteration.done_reason is not None and iteration.failure is None,
            interrupted=first_reason(r for r in (self.interrupted, iteration.interrupted) if r),
        )

    def _failures_after(self, iteration: Iteration) -> int:
        if iteration.interrupted:  # cut short, which says nothing about the agent or the evaluator
            return self.failures_in_row
        return self.failures_in_row + 1 if iteration.failure else 0

    def replay(self, past: Past, wallet: Wallet) -> RunState:
        """The state of this attempt after what earlier executions recorded."""
        state = self
        for position, (iteration, elapsed) in enumerate(zip(past.iterations, past.elapsed, strict=True), start=1):
            if iteration.attempt == self.attempt:
                state = state.after(iteration, wallet, past.started_at + timedelta(seconds=elapsed))
            if position == past.resume_after:
                state = replace(state, done=False, interrupted=None, failures_in_row=0)
        return state

    def interrupt(self, reason: StopReason) -> RunState:
        """The state of a run that is stopped from outside; the first reason in precedence stays."""
        return replace(self, interrupted=first_reason(r for r in (self.interrupted, reason) if r))

    def stop_reason(self, stop: Stop, now: datetime) -> StopReason | None:
        """Why the run is over, or `None` while it goes on."""
        return first_reason(self._reasons(stop, now))

    def _reasons(self, stop: Stop, now: datetime) -> Iterable[StopReason]:
        if self.interrupted:
            yield self.interrupted
        if self.failures_in_row >= MAX_FAILURES_IN_A_ROW:
            yield "error"
        if self.done:
            yield "converged"
        if self.wallet.free is not None and self.wallet.spent >= (self.wallet.cap or 0):
            yield "budget"
        if reason := stop(self, now):
            yield reason
