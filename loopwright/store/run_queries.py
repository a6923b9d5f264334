"""Runs as callers see them, under their own rights. What the engine does with runs is in `runs`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Generic, LiteralString, TypeVar
from uuid import UUID

from psycopg.errors import ForeignKeyViolation
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.caller import Door
from ..core.errors import NotFound
from ..core.records import IterationRecord, Run, RunStatus, RunSummary
from .database import Connection
from .paging import Place

LAST_RUN_ID = "zzzz"
"""Sorts after every run's id."""

_SUMMARY: LiteralString = """
r.id, r.loop_id, r.loop_name, r.agent_id, r.owner_id, r.door, r.goal, r.status, r.stop_reason, r.sentence, r.error,
r.cap_usd, r.spent_usd, r.reserved_usd, r.iterations, r.best_attempt, r.best_iteration, r.best_score, r.parent_run_id,
r.forked_from_iteration, r.cancel_requested_at, r.created_at, r.started_at, r.finished_at
"""

_BEFORE: LiteralString = "not r.is_thread and (r.created_at, r.id) < (%(at)s::timestamptz, %(id)s)"
_NEWEST: LiteralString = "order by r.created_at desc, r.id desc limit %(limit)s"


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Which runs a list shows."""

    loop_id: UUID | None = None
    status: RunStatus | None = None
    owner_id: UUID | None = None

    def sql(self) -> LiteralString:
        """The filter as conditions."""
        found: LiteralString = ""
        if self.loop_id:
            found += " and r.loop_id = %(loop_id)s"
        if self.status:
            found += " and r.status = %(status)s"
        if self.owner_id:
            found += " and r.owner_id = %(owner_id)s"
        return found


async def list_runs(
    connection: Connection, user_id: str, place: Place, limit: int, only: RunFilter, *, everybody: bool
) -> list[RunSummary]:
    """The runs that the caller may see, newest first; one more than `limit`.

    Args:
        connection: in the caller's transaction.
        user_id: the caller.
        place: where the page begins.
        limit: the page's length.
        only: which runs.
        everybody: whether the caller sees all runs; then one index gives them in order.
    """
    one_source = everybody or only.loop_id or only.owner_id
    cursor = connection.cursor(row_factory=class_row(RunSummary))
    await cursor.execute(
        _one_list(only) if one_source else _mine_and_shared(only),
        {
            "at": place.at,
            "id": LAST_RUN_ID if place == Place() else place.id,
            "limit": limit + 1,
            "me": user_id,
            "loop_id": only.loop_id,
            "status": only.status,
            "owner_id": only.owner_id,
        },
    )
    return await cursor.fetchall()


def _one_list(only: RunFilter) -> LiteralString:
    return f"select {_SUMMARY} from public.loop_runs r where {_BEFORE} {only.sql()} {_NEWEST}"


def _mine_and_shared(only: RunFilter) -> LiteralString:
    """A member's list. One condition for both kinds would have to look at everybody's runs until enough are found; so
    each kind comes from an index of its own, already in order, and the few rows are merged. Runs that are both count
    once."""
    return f"""
    with mine as (
      select {_SUMMARY} from public.loop_runs r where r.owner_id = %(me)s and {_BEFORE} {only.sql()} {_NEWEST}
    ), shared as (
      select s.* from public.loops l cross join lateral (
        select {_SUMMARY} from public.loop_runs r
        where r.loop_id = l.id and {_BEFORE} {only.sql()} {_NEWEST}) s
      where l.visibility = 'workspace'
    )
    select distinct on (r.created_at, r.id) r.* from (table mine union all table shared) r {_NEWEST}
    """


async def get_run(connection: Connection, run_id: str) -> Run | None:
    """A run with its best candidate, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Run))
    await cursor.execute(
        f"""
        select {_SUMMARY}, r.spec, i.data as best, t.id as thread_id
        from public.loop_runs r
        left join public.assistant_threads t on t.run_id = r.id
        left join public.loop_iterations i
          on i.run_id = r.id and i.attempt = r.best_attempt and i.number = r.best_iteration
        where r.id = %s
        """,
        (run_id,),
    )
    return await cursor.fetchone()


async def list_iterations(connection: Connection, run_id: str, after: int, limit: int) -> list[IterationRecord]:
    """Finished iterations of a run in the order in which they finished, from after a position."""
    cursor = connection.cursor(row_factory=class_row(IterationRecord))
    await cursor.execute(
        "select position, is_best, elapsed_seconds, data from public.loop_iterations "
        "where run_id = %s and position > %s order by position limit %s",
        (run_id, after, limit),
    )
    return await cursor.fetchall()


async def paid_by(connection: Connection, run_id: str) -> str | None:
    """The run on whose wallet a run is. For the service itself."""
    row = await (await connection.execute("select paid_by from public.loop_runs where id = %s", (run_id,))).fetchone()
    return str(row[0]) if row and row[0] is not None else None


async def builtins_of(connection: Connection, run_id: str) -> frozenset[str]:
    """The builtins that a run's agent has. For the service itself."""
    row = await (await connection.execute("select builtins from public.loop_runs where id = %s", (run_id,))).fetchone()
    return frozenset(row[0]) if row else frozenset()


@dataclass(frozen=True)
class Head:
    """Where a run's events stand."""

    status: RunStatus
    event_seq: int


async def head(connection: Connection, run_id: str) -> Head | None:
    """Where a run's events stand, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Head))
    await cursor.execute("select status, event_seq from public.loop_runs where id = %s", (run_id,))
    return await cursor.fetchone()


@dataclass(frozen=True)
class StoredEvent:
    """An event as it is stored."""

    seq: int
    type: str
    data: str
    """JSON text, in one line."""


async def events_after(connection: Connection, run_id: str, after: int, limit: int) -> list[StoredEvent]:
    """Events of a run from after a sequence number."""
    cursor = connection.cursor(row_factory=class_row(StoredEvent))
    await cursor.execute(
        "select seq, type, data::text as data from public.run_events "
        "where run_id = %s and seq > %s order by seq limit %s",
        (run_id, after, limit),
    )
    return await cursor.fetchall()


async def all_events(connection: Connection, run_id: str, batch: int = 500) -> AsyncIterator[StoredEvent]:
    """All events of a run, a batch at a time."""
    after = 0
    while found := await events_after(connection, run_id, after, batch):
        for event in found:
            yield event
        after = found[-1].seq


@dataclass(frozen=True)
class FreshEvent(StoredEvent):
    """A stored event with its run."""

    run_id: str


async def fresh_events(connection: Connection, seen: dict[str, int], limit: int) -> list[FreshEvent]:
    """For each of several runs its events after a sequence number, at most `limit` each. For the service itself."""
    cursor = connection.cursor(row_factory=class_row(FreshEvent))
    await cursor.execute(
        """
        select e.run_id, e.seq, e.type, e.data::text as data
        from unnest(%s::text[], %s::bigint[]) as w (run_id, seen)
        cross join lateral (
          select x.* from public.run_events x where x.run_id = w.run_id and x.seq > w.seen order by x.seq limit %s) e
        order by e.run_id, e.seq
        """,
        (list(seen), list(seen.values()), limit),
    )
    return await cursor.fetchall()


async def finished_of(connection: Connection, run_ids: list[str]) -> list[str]:
    """Those of the runs that are finished. For the service itself."""
    rows = await connection.execute(
        "select id from public.loop_runs where id = any(%s) and status = 'finished'", (run_ids,)
    )
    return [str(row[0]) for row in await rows.fetchall()]


# --- changes; whose run it is, the functions decide ---


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A run that is about to be put into the queue."""

    id: str
    loop_id: UUID | None
    loop_name: str
    agent_id: UUID | None
    door: Door
    spec: dict[str, Any]
    goal: str
    cap_usd: Decimal | None
    folder: str | None = None
    parent_run_id: str | None = None
    forked_from_iteration: int | None = None
    with_builtins: bool = True
    """Whether its agent gets the builtins that it is granted, or `loop_done` alone."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What a finished run goes on with."""

    run_id: str
    stop: dict[str, Any]
    cap_usd: Decimal | None


W = TypeVar("W", NewRun, Extension)


@dataclass(frozen=True)
class Cleared(Generic[W]):
    """What the guardrails let pass. Only `service.guardrails` makes these, so that nothing begins unchecked."""

    what: W


async def insert_run(connection: Connection, cleared: Cleared[NewRun]) -> None:
    """Put a run of the caller's into the queue.

    Raises:
        NotFound: its loop, its agent or the run that it is forked from was deleted since it was prepared.
    """
    run = cleared.what
    values = (
        run.id, run.loop_id, run.loop_name, run.agent_id, run.door, Jsonb(run.spec), run.goal, run.cap_usd,
        run.folder, run.parent_run_id, run.forked_from_iteration,
    )  # fmt: skip
    try:
        await connection.execute("select private.start_run(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", values)
    except ForeignKeyViolation:
        raise NotFound from None
    if not run.with_builtins:
        await connection.execute("select private.take_builtins(%s)", (run.id,))


async def request_cancel(connection: Connection, run_id: str) -> RunStatus:
    """Ask for a run to be cancelled; returns the status that it had.

    Raises:
        psycopg.errors.InsufficientPrivilege: the caller may see the run but not steer it.
    """
    row = await (await connection.execute("select private.cancel_run(%s)", (run_id,))).fetchone()
    return row[0] if row else "finished"


async def extend_run(connection: Connection, cleared: Cleared[Extension]) -> int | None:
    """Put a finished run back into the queue; returns its number of submissions, or `None` if it is not finished.

    Raises:
        psycopg.errors.InsufficientPrivilege: the caller may see the run but not steer it.
    """
    more = cleared.what
    values = (more.run_id, Jsonb(more.stop), more.cap_usd)
    cursor = await connection.execute("select private.extend_run(%s, %s, %s)", values)
    row = await cursor.fetchone()
    return row[0] if row else None


async def copy_iterations(
    connection: Connection, from_run: str, to_run: str, many: int, opening: dict[str, Any]
) -> None:
    """Copy the first iterations of a run, with their events behind an opening one."""
    await connection.execute("select private.copy_iterations(%s, %s, %s, %s)", (from_run, to_run, many, Jsonb(opening)))


async def set_best(connection: Connection, run_id: str, many: int, best: IterationRecord | None) -> None:
    """Say how many iterations a copied run has, and which one is its best."""
    data = best.data if best else None
    await connection.execute(
        "select private.set_best(%s, %s, %s, %s, %s)",
        (run_id, many, data.attempt if data else None, data.number if data else None, data.score if data else None),
    )


async def offer(connection: Connection, run_id: str) -> None:
    """Offer a queued run to whatever worker hears of it first. For the service itself."""
    await connection.execute(
        "update public.loop_runs set queued_at = '-infinity' where id = %s and status = 'queued'", (run_id,)
    )
    await connection.execute("select pg_notify('loopwright_queue', '')")


async def lost_sight(connection: Connection, watching: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of some users and the runs that they watch, those who may not see their run any more. For the service itself."""
    rows = await connection.execute(
        "select private.lost_sight(%s::uuid[], %s::text[])",
        ([who for who, _ in watching], [run for _, run in watching]),
    )
    return [watching[int(row[0]) - 1] for row in await rows.fetchall()]


async def run_folder(connection: Connection, run_id: str) -> str | None:
    """Where the files of a run's loop lie. For the service itself."""
    row = await (await connection.execute("select folder from public.loop_runs where id = %s", (run_id,))).fetchone()
    return str(row[0]) if row and row[0] is not None else None
