"""What a viewer of a run knows: a fold over its events, without any drawing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal

from ..core.events import (
    CandidateProduced,
    EvaluationRetried,
    GuardrailRefusal,
    IterationFinished,
    IterationStarted,
    MoneyReserved,
    MoneySettled,
    RunEvent,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCalled,
    WalletView,
)
from ..core.models import Direction, Iteration
from ..core.stop import MaxIterations, Target, parse_stop
from ..core.wallet import ZERO
from .text import one_line

PRACTICE_NOTE = "practice is a built-in search, not a language model"

KEPT = 120
"""How many of the last iterations a view remembers of each attempt: no screen shows more."""


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """Where one attempt stands."""

    number: int = 0
    """The iteration it works on, or its last one."""
    phase: str = ""
    """What it does now; empty between iterations."""
    finished: tuple[Iteration, ...] = ()
    best: Iteration | None = None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """Where a run stands."""

    loop: str = ""
    model: str = ""
    direction: Direction = "maximize"
    scored: bool = True
    """Whether an evaluator gives scores."""
    limit: int | None = None
    """Most iterations of an attempt."""
    target: float | None = None
    started_at: datetime | None = None
    attempts: Mapping[int, AttemptView] = field(default_factory=dict[int, AttemptView])
    wallet: WalletView | None = None
    whole: Decimal = ZERO
    """How much of what is spent are reservations that were charged whole, in USD."""
    best: Iteration | None = None
    """The best of all attempts."""
    last: Iteration | None = None
    """The iteration that finished last."""
    stopping: bool = False
    """Somebody asked the run to stop."""
    finished: RunFinished | None = None

    @property
    def number(self) -> int:
        """The highest iteration that any attempt has come to."""
        return max((a.number for a in self.attempts.values()), default=0)

    @property
    def progress(self) -> str:
        """`iteration 3 of 20`."""
        if not self.number:
            return "starting"
        return f"iteration {self.number}" + (f" of {self.limit}" if self.limit else "")

    def after(self, event: RunEvent) -> RunView:
        """The view after one more event."""
        match event:
            case RunStarted():
                return self._started(event)
            case IterationFinished():
                return self._iteration(event)
            case MoneyReserved(wallet=wallet):
                return replace(self, wallet=wallet)
            case MoneySettled(wallet=wallet, charge=charge):
                whole = charge.amount if charge.basis == "reserved" else ZERO
                return replace(self, wallet=wallet, whole=self.whole + whole)
            case RunFinished():
                calm = {number: replace(attempt, phase="") for number, attempt in self.attempts.items()}
                return replace(self, finished=event, attempts=calm, best=event.best)
            case _:
                return self._working(event)

    def stopped(self) -> RunView:
        """The view after somebody asked the run to stop."""
        return replace(self, stopping=True)

    def _working(self, event: RunEvent) -> RunView:
        """The view after an event in the middle of an iteration."""
        match event:
            case IterationStarted():
                phase = "the agent is working"
            case TextDelta():
                phase = "the agent is writing"
            case ToolCalled(name=name):
                phase = f"the agent called {one_line(name, 40)}"
            case GuardrailRefusal(tool=str(name)):
                phase = f"a guardrail refused {one_line(name, 40)}"
            case CandidateProduced():
                phase = "scoring the candidate" if self.scored else ""
            case EvaluationRetried(why=why):
                phase = f"scoring again: {one_line(why, 200)}"
            case _:
                return self
        before = self.attempts.get(event.attempt, AttemptView())
        after = replace(before, phase=phase, number=event.number)
        return replace(self, attempts={**self.attempts, event.attempt: after})

    def _started(self, event: RunStarted) -> RunView:
        parts = parse_stop(event.stop).parts()
        return replace(
            self,
            loop=one_line(event.loop, 200),
            model=one_line(event.model, 100),
            direction=event.direction,
            scored=event.evaluator is not None,
            limit=min((p.count for p in parts if isinstance(p, MaxIterations)), default=None),
            target=next((p.score for p in parts if isinstance(p, Target)), None),
            started_at=event.at,
            attempts={number: AttemptView() for number in range(1, event.attempts + 1)},
        )

    def _iteration(self, event: IterationFinished) -> RunView:
        done = event.iteration
        before = self.attempts.get(done.attempt, AttemptView())
        after = replace(
            before,
            number=done.number,
            phase="",
            finished=(*before.finished[-KEPT + 1 :], done),
            best=done if event.is_best else before.best,
        )
        better = event.is_best and self._beats(done)
        return replace(
            self,
            attempts={**self.attempts, done.attempt: after},
            wallet=event.wallet,
            last=done,
            best=done if better else self.best,
        )

    def _beats(self, done: Iteration) -> bool:
        best = self.best
        if best is None or best.score is None or done.score is None:
            return best is None or best.score is None
        return done.score > best.score if self.direction == "maximize" else done.score < best.score
