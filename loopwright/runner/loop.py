"""THE loop: turn, feedback, state, journal, until a stop condition holds. All of it is in this file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..core.errors import AgentFailed, BudgetExceeded, EvaluatorFailed, LoopwrightError, StaleEpoch, StoreUnavailable
from ..core.events import CandidateProduced, IterationFinished, IterationStarted, WalletView
from ..core.models import EvaluationRequest, Feedback, Iteration, Turn
from ..core.ports import TurnContext
from ..core.state import RunState
from ..core.stop import StopReason, seconds_of
from ..core.wallet import Wallet
from ..tracing import span
from .history import show
from .plan import Halt, Plan, Ports

LEAVE_SECONDS = 15.0
"""How long work may take to stop when it is cancelled; a settlement or the end of a process needs its time."""


@dataclass
class Draft:
    """What an iteration has come to so far. It survives the cancellation of the work that fills it."""

    number: int
    started_at: datetime
    turn: Turn | None = None
    feedback: Feedback | None = None
    holdout: Feedback | None = None
    holdout_failure: str | None = None
    failure: str | None = None
    interrupted: StopReason | None = None
    """Why the run can't go on after this iteration."""


@dataclass
class Attempt:
    """One dialogue of a run: its plan, its ports, and its state so far."""

    plan: Plan
    ports: Ports
    state: RunState
    halt: Halt
    finished: list[Iteration] = field(default_factory=list[Iteration])
    error: str | None = None
    """Why the last iteration failed or was cut short, if it was."""

    async def run(self) -> RunState:
        """Drive the loop until a stop condition holds."""
        plan, clock = self.plan, self.ports.clock
        while self.state.stop_reason(plan.stop, clock.now()) is None:
            if self.halt.reason:
                self.state = self.state.interrupt(self.halt.reason)
                break
            draft = Draft(self.state.iterations + 1, clock.now())
            await self._within_limits(self._traced(draft), draft)
            await self._record(draft)
        return self.state

    async def _traced(self, draft: Draft) -> None:
        with span("iteration", attempt=self.state.attempt, number=draft.number) as current:
            await self._iterate(draft)
            if draft.feedback:
                current.set_attribute("loopwright.score", draft.feedback.score)

    async def _iterate(self, draft: Draft) -> None:
        """One iteration: the agent's turn, then its feedback. What goes wrong ends up in the draft."""
        attempt, number = self.state.attempt, draft.number
        await self.ports.store.append(IterationStarted(attempt=attempt, number=number))
        try:
            draft.turn = await self.ports.agent.take_turn(show(self.plan, self.state), await self._context(draft))
            text = draft.turn.candidate.text
            await self.ports.store.append(CandidateProduced(attempt=attempt, number=number, text=text))
            await self._score(draft, draft.turn)
        except (AgentFailed, EvaluatorFailed) as error:
            draft.failure = str(error)
        except BudgetExceeded as error:
            draft.failure, draft.interrupted = str(error), "budget"
        except (StoreUnavailable, StaleEpoch):
            raise  # nothing goes on unrecorded, or in other hands
        except LoopwrightError as error:  # an unknown price, unmetered requests: the next turn would fail alike
            draft.failure, draft.interrupted = str(error), "error"
        except Exception as error:  # noqa: BLE001 - somebody's own agent or evaluator: the best so far is kept
            draft.failure, draft.interrupted = f"{type(error).__name__}: {error}", "error"

    async def _context(self, draft: Draft) -> TurnContext:
        scorer, ports = self.ports.scorer, self.ports
        keep = await scorer.keep(ports.evaluation, ports.last_lap_usd) if scorer else ports.last_lap_usd
        return TurnContext(
            run_id=self.plan.run_id,
            attempt=self.state.attempt,
            number=draft.number,
            store=ports.store,
            clock=ports.clock,
            keep=keep * self.plan.attempts,
            viewers=ports.viewers,
            guard=ports.guard,
        )

    async def _score(self, draft: Draft, turn: Turn) -> None:
        if self.ports.scorer is None:
            return
        request = EvaluationRequest(
            goal=self.plan.goal,
            candidate=turn.candidate,
            run_id=self.plan.run_id,
            attempt=self.state.attempt,
            iteration=draft.number,
        )
        draft.feedback = await self.ports.scorer.score(request, self.ports.evaluation)
        if self.ports.scorer.holdout and self.state.improves(self._iteration(draft)):
            try:
                second = request.model_copy(update={"holdout": True})
                draft.holdout = await self.ports.scorer.score(second, self.ports.evaluation)
            except EvaluatorFailed as error:
                draft.holdout_failure = str(error)

    async def _within_limits(self, work: Awaitable[None], draft: Draft) -> None:
        """Await the work; at the deadline, or when the run is halted, cancel it and keep what it has come to."""
        limit = seconds_of(self.plan.stop)
        left = None if limit is None else limit - self.state.elapsed(self.ports.clock.now())
        task, halted = asyncio.ensure_future(work), asyncio.ensure_future(self.halt.wait())
        try:
            await asyncio.wait({task, halted}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the caller's own task was cancelled: it learns of it when all is recorded
            self.halt("cancelled")
        halted.cancel()
        if not task.done():
            draft.interrupted = self.halt.reason or "time"
            task.cancel()
            await asyncio.wait({task}, timeout=LEAVE_SECONDS)
            if not task.done():  # somebody's code swallows cancellation: the run ends all the same, without it
                draft.failure = f"interrupted: {draft.interrupted}; what was going on did not stop, and was left behind"
                return
        with suppress(asyncio.CancelledError):
            await task
        if draft.interrupted and not draft.failure and not draft.feedback:
            draft.failure = f"interrupted: {draft.interrupted}"
        elif task.cancelled() and not draft.failure:
            draft.failure = "it was cancelled from within"

    def _iteration(self, draft: Draft) -> Iteration:
        return Iteration(
            number=draft.number,
            attempt=self.state.attempt,
            candidate=draft.turn.candidate if draft.turn else None,
            feedback=draft.feedback,
            holdout=draft.holdout,
            holdout_failure=draft.holdout_failure,
            failure=draft.failure,
            interrupted=draft.interrupted,
            done_reason=draft.turn.done_reason if draft.turn else None,
            tool_calls=draft.turn.tool_calls if draft.turn else (),
            started_at=draft.started_at,
        )

    async def _record(self, draft: Draft) -> None:
        """Make the iteration durable before the next one starts."""
        store, now = self.ports.store, self.ports.clock.now()
        wallet = await store.wallet()
        cost = await store.cost(self.state.attempt, draft.number)
        seconds = max(now - draft.started_at, timedelta(0)).total_seconds()
        done = self._iteration(draft).model_copy(
            update={"cost_usd": cost.total, "tokens": cost.tokens, "seconds": seconds}
        )
        is_best = self.state.improves(done)
        self.state = self.state.after(done, wallet, now)
        self.error = draft.failure
        self.finished.append(done)
        await store.append(
            IterationFinished(
                iteration=done,
                is_best=is_best,
                best_score=self.state.best_score,
                elapsed_seconds=self.state.clock_seconds,
                wallet=WalletView(cap=wallet.cap, spent=wallet.spent, reserved=wallet.reserved),
            )
        )


def first_state(plan: Plan, ports: Ports, attempt: int, started_at: datetime, wallet: Wallet) -> RunState:
    """The state before an attempt's first iteration."""
    return RunState(
        started_at=started_at,
        attempt=attempt,
        direction=plan.direction,
        has_evaluator=ports.scorer is not None,
        keep=None if plan.history.policy == "full" else plan.history.recent,
        wallet=wallet,
    )
