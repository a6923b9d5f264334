"""The loop made durable: one execution of a run, from what is recorded of it to its end.

The engine may call this again and again for one run, in this process or another: what is recorded is the state, and
finished operations are not repeated. The loop itself knows nothing of it.
"""

from __future__ import annotations

from ..core.result import RunResult
from ..store.run_store import PgRunStore, TakenRun
from .clock import SteadyClock
from .library import Loop
from .plan import Halt
from .run import run_loop


async def drive(run: TakenRun, store: PgRunStore, loop: Loop, halt: Halt) -> RunResult:
    """Execute a run that this process has taken.

    Raises:
        StaleEpoch: another process has taken it meanwhile, or this one is leaving.
        StoreUnavailable: what happens can't be recorded any more.
    """
    past = await store.load_past() if run.event_seq else None
    if run.cancel_requested_at is not None:
        halt("cancelled")
    return await run_loop(loop.plan(run.goal, run.id), loop.ports(store, SteadyClock()), halt, past)
