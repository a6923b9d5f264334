"""Stored schedules, and what came of the times at which they were due."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.records import Firing, Schedule
from .database import Connection
from .paging import Place

_COLUMNS: LiteralString = (
    "id, owner_id, name, loop_id, agent_id, wanted, cron, zone, jitter_seconds, backfill, overlap, max_failures, "
    "status, notice, next_due_at, version, created_at, updated_at"
)
_FIRING: LiteralString = "schedule_id, due_at, start_at, outcome, reason, run_id"


async def list_schedules(
    connection: Connection, place: Place, limit: int, loop_id: UUID | None = None
) -> list[Schedule]:
    """The schedules that the caller may see, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Schedule))
    await cursor.execute(
        f"select {_COLUMNS} from public.schedules where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "and (%s::uuid is null or loop_id = %s) order by created_at desc, id desc limit %s",
        (place.at, place.id, loop_id, loop_id, limit + 1),
    )
    return await cursor.fetchall()


async def get_schedule(connection: Connection, schedule_id: UUID, *, lock: bool = False) -> Schedule | None:
    """A schedule, if the caller may see it; with `lock`, for this transaction alone."""
    cursor = connection.cursor(row_factory=class_row(Schedule))
    locking: LiteralString = " for update" if lock else ""
    await cursor.execute(f"select {_COLUMNS} from public.schedules where id = %s{locking}", (schedule_id,))
    return await cursor.fetchone()


_INSERT: LiteralString = f"""
insert into public.schedules
  (name, loop_id, agent_id, wanted, cron, zone, jitter_seconds, backfill, overlap, max_failures, status, next_due_at)
values
  (%(name)s, %(loop_id)s, %(agent_id)s, %(wanted)s, %(cron)s, %(zone)s, %(jitter_seconds)s, %(backfill)s, %(overlap)s,
   %(max_failures)s, %(status)s, %(next_due_at)s)
returning {_COLUMNS}
"""

_UPDATE: LiteralString = f"""
update public.schedules set
  name = %(name)s, loop_id = %(loop_id)s, agent_id = %(agent_id)s, wanted = %(wanted)s, cron = %(cron)s,
  zone = %(zone)s, jitter_seconds = %(jitter_seconds)s, backfill = %(backfill)s, overlap = %(overlap)s,
  max_failures = %(max_failures)s, status = %(status)s, notice = '', next_due_at = %(next_due_at)s,
  resumed_at = case when status <> 'active' and %(status)s = 'active' then now() else resumed_at end
where id = %(id)s and version = %(version)s
returning {_COLUMNS}
"""


async def insert_schedule(connection: Connection, values: dict[str, Any]) -> Schedule | None:
    """Store a schedule of the caller's."""
    cursor = connection.cursor(row_factory=class_row(Schedule))
    await cursor.execute(_INSERT, {**values, "wanted": Jsonb(values["wanted"])})
    return await cursor.fetchone()


async def update_schedule(connection: Connection, schedule: Schedule, values: dict[str, Any]) -> Schedule | None:
    """Change one that still has the version that was read; `None` if it hasn't, or isn't the caller's to change."""
    cursor = connection.cursor(row_factory=class_row(Schedule))
    found = {**values, "wanted": Jsonb(values["wanted"]), "id": schedule.id, "version": schedule.version}
    await cursor.execute(_UPDATE, found)
    return await cursor.fetchone()


async def delete_schedule(connection: Connection, schedule: Schedule) -> bool:
    """Delete a schedule; false if it isn't the caller's to delete, or has another version by now."""
    cursor = await connection.execute(
        "delete from public.schedules where id = %s and version = %s", (schedule.id, schedule.version)
    )
    return cursor.rowcount == 1


async def list_firings(connection: Connection, schedule_id: UUID, limit: int) -> Sequence[Firing]:
    """The last times at which a schedule was due, newest first."""
    cursor = connection.cursor(row_factory=class_row(Firing))
    await cursor.execute(
        f"select {_FIRING} from public.schedule_firings where schedule_id = %s order by due_at desc limit %s",
        (schedule_id, limit),
    )
    return await cursor.fetchall()


# --- for the scheduler itself ---


async def active(connection: Connection) -> Sequence[tuple[str, str, str]]:
    """Id, cron expression and zone of all schedules that are active."""
    rows = await connection.execute("select id::text, cron, zone from public.schedules where status = 'active'")
    return [(str(a), str(b), str(c)) for a, b, c in await rows.fetchall()]


async def overdue(connection: Connection, now: datetime) -> list[UUID]:
    """Schedules that have something to decide or to start."""
    rows = await connection.execute(
        "select id from public.schedules where status = 'active' and next_due_at <= %s "
        "union select schedule_id from public.schedule_firings where outcome = 'waiting' and start_at <= %s",
        (now, now),
    )
    return [row[0] for row in await rows.fetchall()]


async def add_firing(
    connection: Connection, schedule_id: UUID, due_at: datetime, *, start_at: datetime, outcome: str, reason: str
) -> None:
    """Write down that a time was due; nothing happens where it was written down before."""
    await connection.execute(
        "insert into public.schedule_firings (schedule_id, due_at, start_at, outcome, reason) "
        "values (%s, %s, %s, %s, %s) on conflict do nothing",
        (schedule_id, due_at, start_at, outcome, reason),
    )


async def set_next(connection: Connection, schedule_id: UUID, due_at: datetime | None) -> None:
    """Say which time is to be decided next."""
    await connection.execute("update public.schedules set next_due_at = %s where id = %s", (due_at, schedule_id))


async def waiting(connection: Connection, schedule_id: UUID, now: datetime) -> Sequence[Firing]:
    """What may start now, oldest first."""
    cursor = connection.cursor(row_factory=class_row(Firing))
    await cursor.execute(
        f"select {_FIRING} from public.schedule_firings "
        "where schedule_id = %s and outcome = 'waiting' and start_at <= %s order by due_at",
        (schedule_id, now),
    )
    return await cursor.fetchall()


async def settle(connection: Connection, firing: Firing, outcome: str, reason: str) -> None:
    """Say why nothing was started at a time that waits."""
    await connection.execute(
        "update public.schedule_firings set outcome = %s, reason = %s "
        "where schedule_id = %s and due_at = %s and outcome = 'waiting'",
        (outcome, reason, firing.schedule_id, firing.due_at),
    )


async def note_started(connection: Connection, firing: Firing, run_id: str) -> bool:
    """Note the owner's run for a time, in the run's own transaction; false if the time doesn't wait any more."""
    rows = await connection.execute(
        "select private.note_started(%s, %s, %s)", (firing.schedule_id, firing.due_at, run_id)
    )
    row = await rows.fetchone()
    return bool(row and row[0])


async def goes_on(connection: Connection, schedule_id: UUID) -> bool:
    """Whether a run that the schedule started is not over."""
    rows = await connection.execute(
        "select exists (select from public.schedule_firings f join public.loop_runs r on r.id = f.run_id "
        "where f.schedule_id = %s and r.status <> 'finished')",
        (schedule_id,),
    )
    row = await rows.fetchone()
    return bool(row and row[0])


async def failures_in_a_row(connection: Connection, schedule_id: UUID) -> int:
    """How many of the last times came to nothing, since the schedule was resumed."""
    rows = await connection.execute(
        """
        select f.outcome = 'failed' or r.stop_reason = 'error' as failed
        from public.schedule_firings f
        join public.schedules s on s.id = f.schedule_id
        left join public.loop_runs r on r.id = f.run_id
        where f.schedule_id = %s and f.created_at >= s.resumed_at
          and (f.outcome = 'failed' or (f.outcome = 'started' and r.status = 'finished'))
        order by f.due_at desc limit 100
        """,
        (schedule_id,),
    )
    count = 0
    for (failed,) in await rows.fetchall():
        if not failed:
            break
        count += 1
    return count


async def disable(connection: Connection, schedule: Schedule, why: str) -> None:
    """Disable a schedule, and write down why."""
    await connection.execute(
        "update public.schedules set status = 'disabled', notice = %s, next_due_at = null where id = %s",
        (why, schedule.id),
    )
    await connection.execute(
        "update public.schedule_firings set outcome = 'skipped', reason = 'the schedule was disabled' "
        "where schedule_id = %s and outcome = 'waiting'",
        (schedule.id,),
    )
    await connection.execute(
        "insert into public.activity_log (user_id, door, action, subject, detail) "
        "values (%s, 'schedule', 'schedule_disabled', %s, %s)",
        (schedule.owner_id, f"schedule:{schedule.id}", Jsonb({"name": schedule.name, "reason": why})),
    )


async def tell(connection: Connection) -> None:
    """Tell the schedulers that a schedule was changed."""
    await connection.execute("select pg_notify('loopwright_schedules', '')")
