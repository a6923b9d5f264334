"""A run: its attempts side by side on one wallet, its first and last event, its result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

from ..core.errors import StoreUnavailable
from ..core.events import RunFinished, RunStarted
from ..core.models import Iteration
from ..core.result import RunResult, holdout_report, stop_sentence
from ..core.state import RunState
from ..core.stop import StopReason, Target, first_reason
from .loop import Attempt, first_state
from .plan import Halt, Plan, Ports


@dataclass(frozen=True)
class Outcome:
    """How the attempts of a run ended, before it is put into words."""

    reason: StopReason
    best: Iteration | None
    detail: str | None


async def run_loop(plan: Plan, ports: Ports, halt: Halt) -> RunResult:
    """Run a plan to its end. Cancelling the caller's task stops the run cleanly before the cancellation is raised."""
    driving = asyncio.ensure_future(_drive(plan, ports, halt))
    try:
        return await asyncio.shield(driving)
    except asyncio.CancelledError:
        halt("cancelled")
        await driving
        raise


async def _drive(plan: Plan, ports: Ports, halt: Halt) -> RunResult:
    started = ports.clock.now()
    attempts = [
        Attempt(plan, ports, first_state(plan, ports, number, started), halt) for number in range(1, plan.attempts + 1)
    ]
    finished: list[Iteration] = []
    for attempt in attempts:
        attempt.finished = finished  # one list, in the order in which iterations finish
    unrecorded: StoreUnavailable | None = None
    try:
        await ports.store.append(_started(plan, ports))
        await asyncio.gather(*(_run(attempt) for attempt in attempts))
    except StoreUnavailable as error:
        unrecorded = error
        halt("error")
    outcome = _outcome(attempts, plan, ports.clock.now())
    if unrecorded:
        outcome = Outcome("error", outcome.best, str(unrecorded))
    return await _finish(plan, ports, outcome, finished, started, recorded=unrecorded is None)


async def _run(attempt: Attempt) -> None:
    state = await attempt.run()
    if state.stop_reason(attempt.plan.stop, attempt.ports.clock.now()) == "target_reached":
        attempt.halt("target_reached")


def _outcome(attempts: list[Attempt], plan: Plan, now: datetime) -> Outcome:
    reasons: dict[StopReason, Attempt] = {a.state.stop_reason(plan.stop, now) or "error": a for a in attempts}
    # One attempt that fails is no failure of a run whose other attempts went well.
    reason = first_reason(r for r in reasons if r != "error") or "error"
    best = _best_state(attempts).best
    detail = best.done_reason if reason == "converged" and best else reasons[reason].error
    return Outcome(reason, best, detail if reason in ("error", "budget", "converged") else None)


def _best_state(attempts: list[Attempt]) -> RunState:
    """The state of the attempt with the best candidate; on a tie the first one."""
    top = attempts[0].state
    for attempt in attempts[1:]:
        best = attempt.state.best
        if best and (top.best is None or top.improves(best)):
            top = attempt.state
    return top


def _started(plan: Plan, ports: Ports) -> RunStarted:
    return RunStarted(
        loop=plan.name,
        goal=plan.goal,
        stop=plan.stop.to_json(),
        direction=plan.direction,
        attempts=plan.attempts,
        model=plan.model,
        evaluator=ports.scorer.evaluator.name if ports.scorer else None,
        version=version("loopwright"),
    )


async def _finish(
    plan: Plan, ports: Ports, outcome: Outcome, finished: list[Iteration], started: datetime, *, recorded: bool
) -> RunResult:
    wallet, cost = await ports.store.wallet(), await ports.store.cost()
    seconds = max(0.0, (ports.clock.now() - started).total_seconds())
    sentence = stop_sentence(
        outcome.reason,
        best=outcome.best,
        iterations=len(finished),
        wallet=wallet,
        seconds=seconds,
        target=next((p for p in plan.stop.parts() if isinstance(p, Target)), None),
        detail=outcome.detail,
    )
    error = outcome.detail if outcome.reason == "error" else None
    has_holdout = ports.scorer is not None and ports.scorer.holdout is not None
    if recorded:
        await ports.store.append(
            RunFinished(
                stop_reason=outcome.reason,
                sentence=sentence,
                best=outcome.best,
                cost=cost,
                iterations=len(finished),
                seconds=seconds,
                error=error,
            )
        )
    return RunResult(
        run_id=plan.run_id,
        best=outcome.best,
        stop_reason=outcome.reason,
        sentence=sentence,
        iterations=tuple(finished),
        cost=cost,
        seconds=seconds,
        holdout=holdout_report(finished, outcome.best, plan.direction) if has_holdout else None,
        error=error,
    )
