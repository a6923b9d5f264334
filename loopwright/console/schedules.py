"""The commands of schedules."""

from __future__ import annotations

from datetime import UTC
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import NotFound
from ..core.records import ScheduleWithTimes
from ..service.runtime import Runtime
from .outcome import REACHED, say
from .text import one_line, printable


async def list_schedules(runtime: Runtime, me: Caller, *, as_json: bool) -> int:
    """`loopwright schedules list`."""
    from ..service import schedules

    cursor: str | None = None
    while True:
        page = await schedules.list_schedules(runtime, me, cursor=cursor, limit=200)
        for each in page.items:
            print(each.model_dump_json() if as_json else printable(_line(each)))
        if not page.items and not as_json:
            say("there are no schedules; make one on the page Schedules or over the API")
        if (cursor := page.next_cursor) is None:
            return REACHED


async def pause(runtime: Runtime, me: Caller, schedule: str) -> int:
    """`loopwright schedules pause`."""
    from ..service import schedules

    return _said(await schedules.pause_schedule(runtime, me, _id(schedule)))


async def resume(runtime: Runtime, me: Caller, schedule: str) -> int:
    """`loopwright schedules resume`."""
    from ..service import schedules

    return _said(await schedules.resume_schedule(runtime, me, _id(schedule)))


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound from None


def _said(schedule: ScheduleWithTimes) -> int:
    print(printable(f"{one_line(schedule.name, 60)} is {schedule.status}{_next(schedule)}"))
    return REACHED


def _line(schedule: ScheduleWithTimes) -> str:
    when = f"{schedule.cron} {schedule.zone}"
    notice = f": {one_line(schedule.notice, 120)}" if schedule.notice else _next(schedule)
    return f"{schedule.id}  {when}  {one_line(schedule.name, 60)}  {schedule.status}{notice}"


def _next(schedule: ScheduleWithTimes) -> str:
    if not schedule.next_times:
        return ""
    return f", next {schedule.next_times[0].astimezone(UTC):%Y-%m-%d %H:%M} UTC"
