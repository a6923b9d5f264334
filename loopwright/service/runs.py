"""Runs: looking at them and steering them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import NotFound
from ..core.records import IterationRecord, Page, Run, RunStatus, RunSummary
from ..store import run_queries, workers
from ..store.database import Database
from ..store.paging import page, read_cursor
from ..store.run_queries import RunFilter


async def list_runs(
    database: Database,
    caller: Caller,
    *,
    cursor: str | None = None,
    limit: int = 50,
    loop_id: UUID | None = None,
    status: RunStatus | None = None,
    mine: bool = False,
) -> Page[RunSummary]:
    """The runs that the caller may see, newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    place = read_cursor(cursor, uuids=False)
    only = RunFilter(loop_id=loop_id, status=status, owner_id=UUID(caller.user_id) if mine else None)
    async with database.as_user(caller.user_id) as connection:
        rows = await run_queries.list_runs(connection, caller.user_id, place, limit, only, everybody=caller.is_admin)
    return page(rows, limit)


async def get_run(database: Database, caller: Caller, run_id: str) -> Run:
    """A run with its best candidate so far.

    Raises:
        NotFound: there is no such run that the caller may see.
    """
    async with database.as_user(caller.user_id) as connection:
        run = await run_queries.get_run(connection, run_id)
    if run is None:
        raise NotFound
    return run


async def is_forsaken(database: Database, run_id: str) -> bool:
    """Whether a run stands still because nobody executes runs here at the moment."""
    async with database.service_session() as connection:
        await workers.bury_neighbours(connection)
        return await workers.is_forsaken(connection, run_id)


async def list_iterations(
    database: Database, caller: Caller, run_id: str, *, after: int = 0, limit: int = 50
) -> list[IterationRecord]:
    """Finished iterations of a run, in the order in which they finished.

    Raises:
        NotFound: there is no such run that the caller may see.
    """
    async with database.as_user(caller.user_id) as connection:
        if await run_queries.head(connection, run_id) is None:
            raise NotFound
        return await run_queries.list_iterations(connection, run_id, after, limit)


async def export_run(database: Database, caller: Caller, run_id: str, *, after: int = 0) -> AsyncIterator[bytes]:
    """A run's journal, line by line, as `loopwright replay` reads it; all of it, or what came after a sequence number.

    Raises:
        NotFound: there is no such run that the caller may see.
    """
    async with database.as_user(caller.user_id) as connection:
        if await run_queries.head(connection, run_id) is None:
            raise NotFound

    async def lines() -> AsyncIterator[bytes]:
        seen = after
        while True:  # a transaction for each batch: a slow reader holds no connection
            async with database.as_user(caller.user_id) as connection:
                found = await run_queries.events_after(connection, run_id, seen, 500)
            if not found:
                return
            yield b"".join(event.data.encode() + b"\n" for event in found)
            seen = found[-1].seq

    return lines()
