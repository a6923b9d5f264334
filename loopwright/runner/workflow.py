"""The loop made durable: the same loop, with its ports bound to a run's record in the database."""

from __future__ import annotations

from ..core.events import RunFinished
from ..core.ports import Viewers
from ..core.result import RunResult, pause_sentence, stop_sentence
from ..core.state import RunState
from ..core.stop import StopReason
from ..store.run_store import PgRunStore, TakenRun
from ..tracing import trace_of
from .clock import SteadyClock
from .library import Loop
from .plan import Halt
from .run import run_loop


async def drive(run: TakenRun, store: PgRunStore, loop: Loop, halt: Halt, viewers: Viewers | None = None) -> RunResult:
    """Execute a run that this process has taken.

    Raises:
        StaleEpoch: another process has taken it meanwhile, or this one is leaving.
        DatabaseAway: the database stays away; the run is as it was last recorded.
    """
    past = await store.load_past() if run.event_seq else None
    if run.cancel_requested_at is not None:
        halt("cancelled")
    with trace_of(run.id):
        return await run_loop(loop.plan(run.goal, run.id), loop.ports(store, SteadyClock(), viewers), halt, past)


async def end(run: TakenRun, store: PgRunStore, reason: StopReason, error: str | None = None) -> None:
    """End a run that this process has taken and does not execute, or can't execute any more. The best so far is kept.

    Raises:
        StaleEpoch: another process has taken it meanwhile.
        StoreUnavailable: the end can't be recorded.
    """
    past = await store.load_past()
    state = RunState(started_at=run.started_at, direction=run.direction)
    for iteration in past.iterations:
        state = state.after(iteration, run.wallet, run.started_at) if state.improves(iteration) else state
    cost, wallet = await store.cost(), await store.wallet()
    seconds = max(0.0, (SteadyClock().now() - run.started_at).total_seconds())
    many = len(past.iterations)
    if run.is_thread:
        sentence = pause_sentence(reason, wallet=wallet, detail=error)
    else:
        sentence = stop_sentence(
            reason, best=state.best, iterations=many, wallet=wallet, seconds=seconds, target=None, detail=error
        )
    await store.append(
        RunFinished(
            stop_reason=reason,
            sentence=sentence,
            best=state.best,
            cost=cost,
            iterations=many,
            seconds=seconds,
            error=error,
        )
    )
