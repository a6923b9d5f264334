"""Schedules: looking at them, editing them, pausing them. What happens when one is due is in `ticking`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotAllowed, NotFound, Problem
from ..core.records import Backfill, Firing, Overlap, Page, Schedule, ScheduleWithTimes
from ..store import activity
from ..store import schedules as store
from ..store.database import Connection
from ..store.paging import page, read_cursor
from .changes import editable, written
from .cron import Cron
from .once import Once, do_once, replayed
from .runtime import Runtime
from .start import Wanted, prepare

TIMES_SHOWN = 5

FIRINGS_SHOWN = 50


@dataclass(frozen=True, kw_only=True)
class ScheduleChange:
    """A schedule as it is to be; `None` leaves a part as it is. `wanted` is replaced as a whole."""

    name: str | None = None
    loop_id: UUID | None = None
    agent_id: UUID | None = None
    wanted: Wanted | None = None
    cron: str | None = None
    zone: str | None = None
    jitter_seconds: int | None = None
    backfill: Backfill | None = None
    overlap: Overlap | None = None
    max_failures: int | None = None


async def list_schedules(
    runtime: Runtime, caller: Caller, *, cursor: str | None, limit: int, loop_id: UUID | None = None
) -> Page[ScheduleWithTimes]:
    """The caller's schedules, or for an admin everybody's; newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        found = await store.list_schedules(connection, read_cursor(cursor), limit, loop_id)
    shown = page(found, limit)
    return Page(items=[with_times(each) for each in shown.items], next_cursor=shown.next_cursor)


async def get_schedule(runtime: Runtime, caller: Caller, schedule_id: UUID) -> ScheduleWithTimes:
    """A schedule.

    Raises:
        NotFound: there is none that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if schedule := await store.get_schedule(connection, schedule_id):
            return with_times(schedule)
    raise NotFound


async def list_firings(runtime: Runtime, caller: Caller, schedule_id: UUID) -> Sequence[Firing]:
    """The last times at which a schedule was due, and what came of each; newest first.

    Raises:
        NotFound: there is no such schedule that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if await store.get_schedule(connection, schedule_id) is None:
            raise NotFound
        return await store.list_firings(connection, schedule_id, FIRINGS_SHOWN)


async def create_schedule(
    runtime: Runtime, caller: Caller, change: ScheduleChange, once: Once | None = None
) -> ScheduleWithTimes:
    """Store a schedule; it is active at once.

    Raises:
        InvalidInput: everything that is wrong with it.
        Conflict: the agent of its loop is not the caller's to use.
    """
    if answer := await replayed(runtime.database, caller, once, ScheduleWithTimes):
        return answer
    values = await _checked(runtime, caller, _STANDARD | _given(change))

    async def insert(connection: Connection) -> ScheduleWithTimes:
        made = written(await store.insert_schedule(connection, values))
        await activity.note(connection, caller.door, "schedule_created", f"schedule:{made.id}", name=made.name)
        await store.tell(connection)
        return with_times(made)

    return (await do_once(runtime.database, caller, once, ScheduleWithTimes, insert))[0]


async def change_schedule(
    runtime: Runtime, caller: Caller, schedule_id: UUID, version: int, change: ScheduleChange
) -> ScheduleWithTimes:
    """Change a schedule. One that was disabled stays so until it is resumed.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
        InvalidInput: everything that is wrong with the change.
        Conflict: the agent of its loop is not the caller's to use.
    """
    schedule = editable(_own(await get_schedule(runtime, caller, schedule_id), caller), caller, version)
    given = _given(change)
    if change.loop_id or change.agent_id:
        given = {"loop_id": None, "agent_id": None, **given}
    values = await _checked(runtime, caller, {name: getattr(schedule, name) for name in _VALUES} | given)
    if schedule.status == "active" and (values["cron"], values["zone"]) == (schedule.cron, schedule.zone):
        values["next_due_at"] = schedule.next_due_at  # what is due and not yet decided stays so
    return await _write(runtime, caller, schedule, values, "schedule_changed")


async def pause_schedule(runtime: Runtime, caller: Caller, schedule_id: UUID) -> ScheduleWithTimes:
    """Pause a schedule: what is due meanwhile is not made up for.

    Raises:
        NotFound: there is none that the caller may see.
        VersionStale: it was changed at the same time.
    """
    schedule = _own(await get_schedule(runtime, caller, schedule_id), caller)
    if schedule.status == "paused":
        return schedule
    values: dict[str, Any] = {name: getattr(schedule, name) for name in _VALUES}
    return await _write(
        runtime, caller, schedule, {**values, "status": "paused", "next_due_at": None}, "schedule_paused"
    )


async def resume_schedule(runtime: Runtime, caller: Caller, schedule_id: UUID) -> ScheduleWithTimes:
    """Make a schedule active again, from its next time on; failures before don't count any more.

    Raises:
        NotFound: there is none that the caller may see.
        InvalidInput: what it starts can't work, or is gone.
        VersionStale: it was changed at the same time.
    """
    schedule = _own(await get_schedule(runtime, caller, schedule_id), caller)
    if schedule.status == "active":
        return schedule
    stored: dict[str, Any] = {name: getattr(schedule, name) for name in _VALUES}
    return await _write(
        runtime, caller, schedule, await _checked(runtime, caller, {**stored, "status": "active"}), "schedule_resumed"
    )


async def delete_schedule(runtime: Runtime, caller: Caller, schedule_id: UUID, version: int) -> None:
    """Delete a schedule. Runs that it started go on.

    Raises:
        NotFound: there is none that the caller may see.
        VersionStale: it was changed meanwhile.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        found = await store.get_schedule(connection, schedule_id)
        schedule = found if found and caller.is_admin and version == 0 else editable(found, caller, version)
        if not await store.delete_schedule(connection, schedule):
            written(None)
        await activity.note(connection, caller.door, "schedule_deleted", f"schedule:{schedule_id}", name=schedule.name)
        await store.tell(connection)


def with_times(schedule: Schedule) -> ScheduleWithTimes:
    """The schedule with the times at which it is due next."""
    values: dict[str, Any] = {**dict(schedule), "next_times": []}
    if schedule.status == "active":
        cron = Cron.stored(schedule.cron, schedule.zone)
        values["next_times"] = list(islice(cron.after(datetime.now(UTC)), TIMES_SHOWN))
    return ScheduleWithTimes(**values)


_VALUES = (
    "name", "loop_id", "agent_id", "wanted", "cron", "zone", "jitter_seconds", "backfill", "overlap", "max_failures",
    "status",
)  # fmt: skip

_STANDARD: dict[str, Any] = {
    "loop_id": None, "agent_id": None, "wanted": {}, "zone": "UTC", "jitter_seconds": 0, "backfill": "one",
    "overlap": "skip", "max_failures": 5, "status": "active",
}  # fmt: skip


def _given(change: ScheduleChange) -> dict[str, Any]:
    given = {each.name: getattr(change, each.name) for each in fields(change)}
    wanted = change.wanted.stored() if change.wanted is not None else None
    return {name: value for name, value in {**given, "wanted": wanted}.items() if value is not None}


async def _checked(runtime: Runtime, caller: Caller, values: dict[str, Any]) -> dict[str, Any]:
    """The values as they are stored, with the first time at which it is due."""
    cron = Cron.of(values.get("cron", ""), values["zone"])
    await check_target(runtime, caller, values["loop_id"], values["agent_id"], Wanted.of(values["wanted"]))
    due = cron.next_after(datetime.now(UTC)) if values["status"] == "active" else None
    return {**values, "next_due_at": due}


async def check_target(
    runtime: Runtime, caller: Caller, loop_id: UUID | None, agent_id: UUID | None, wanted: Wanted
) -> None:
    """Refuse what could not start.

    Raises:
        InvalidInput: there is no target, or it can't work as it is wanted.
        Conflict: the agent of the loop is not the caller's to use.
    """
    if (loop_id is None) == (agent_id is None):
        message = "name what it starts: either a loop, or an agent with a goal and a budget"
        raise InvalidInput(Problem(field="loop_id", message=message))
    target: Literal["loop_id", "agent_id"] = "loop_id" if loop_id else "agent_id"
    try:
        await prepare(runtime, caller, loop_id, agent_id, wanted)
    except NotFound:
        what = target.removesuffix("_id")
        raise InvalidInput(Problem(field=target, message=f"there is no {what} with this id that you may use")) from None


def _own(schedule: ScheduleWithTimes, caller: Caller) -> ScheduleWithTimes:
    """Only its owner says what a schedule does, since it acts as the owner; an admin may pause and delete it."""
    if schedule.owner_id is None or (str(schedule.owner_id) != caller.user_id and not caller.is_admin):
        raise NotAllowed("its owner is gone; delete it and make one of your own")
    return schedule


async def _write(
    runtime: Runtime, caller: Caller, schedule: ScheduleWithTimes, values: dict[str, Any], action: str
) -> ScheduleWithTimes:
    async with runtime.database.as_user(caller.user_id) as connection:
        changed = written(await store.update_schedule(connection, schedule, values))
        await activity.note(connection, caller.door, action, f"schedule:{schedule.id}", name=changed.name)
        await store.tell(connection)
    return with_times(changed)
