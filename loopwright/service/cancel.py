"""Cancelling a run."""

from __future__ import annotations

from contextlib import suppress

from psycopg import errors

from ..core.caller import Caller
from ..core.errors import NotAllowed, NotFound, StaleEpoch
from ..core.records import Run
from ..store import activity, run_queries
from ..store.run_store import PgRunStore, take_run
from .runs import get_run
from .runtime import Runtime


async def cancel_run(runtime: Runtime, caller: Caller, run_id: str) -> Run:
    """Ask for a run to be cancelled: what is in flight stops within a second, and the best so far is kept. One that
    waits in the queue is over at once, and for one that is over already nothing changes.

    Raises:
        NotFound: there is no such run that the caller may see.
        NotAllowed: it is somebody else's.
    """
    try:
        async with runtime.database.as_user(caller.user_id) as connection:
            run = await run_queries.get_run(connection, run_id)
            if run is None:
                raise NotFound
            status = await run_queries.request_cancel(connection, run_id)
            if status != "finished" and run.cancel_requested_at is None:
                await activity.note(connection, caller.door, "run_cancelled", f"run:{run_id}")
    except errors.InsufficientPrivilege:
        raise NotAllowed("this run is shown to you; only its owner or an admin cancels it") from None
    if status == "queued":
        with suppress(StaleEpoch):  # a worker was quicker, and knows of the request
            await _finish_queued(runtime, run_id)
    return await get_run(runtime.database, caller, run_id)


async def _finish_queued(runtime: Runtime, run_id: str) -> None:
    """End a run that nobody executes. If this process dies meanwhile, a worker takes it and ends it as cancelled."""
    run = await take_run(runtime.database, run_id, "cancelled while queued", only_queued=True)
    if run is None:
        return  # a worker was quicker, and has heard of the request
    from ..runner.workflow import end

    store = PgRunStore(
        runtime.database, run.id, run.epoch, wallet=run.wallet, started_at=run.started_at, direction=run.direction
    )
    await end(run, store, "cancelled")
