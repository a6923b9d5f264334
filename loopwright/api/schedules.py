"""Routes of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response

from ..core.records import Firing, Page, ScheduleWithTimes
from ..service import schedules as service
from ..service.schedules import ScheduleChange
from ..service.start import Wanted
from .bodies import NewSchedule, SchedulePatch
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/schedules", tags=["schedules"])

OfLoop = Annotated[UUID | None, Query(description="Only those that start this loop.")]


@router.get("", responses=problems())
async def list_schedules(
    rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50, loop_id: OfLoop = None
) -> Page[ScheduleWithTimes]:
    """Your schedules, newest first; for an admin, everybody's."""
    return await service.list_schedules(rt, me, cursor=cursor, limit=limit, loop_id=loop_id)


@router.post("", status_code=201, responses=problems(409))
async def create_schedule(rt: Rt, me: Me, once: OnceKey, body: NewSchedule, response: Response) -> ScheduleWithTimes:
    """Store a schedule. It is active at once; what it starts is yours."""
    schedule = await service.create_schedule(rt, me, _change(body), once)
    tagged(response, schedule)
    return schedule


@router.get("/{schedule_id}", responses=problems(404))
async def get_schedule(rt: Rt, me: Me, schedule_id: UUID, response: Response) -> ScheduleWithTimes:
    """A schedule, with the next five times at which it is due."""
    schedule = await service.get_schedule(rt, me, schedule_id)
    tagged(response, schedule)
    return schedule


@router.patch("/{schedule_id}", responses=problems(404, 409, 412, 428))
async def change_schedule(
    rt: Rt, me: Me, schedule_id: UUID, version: Version, body: SchedulePatch, response: Response
) -> ScheduleWithTimes:
    """Change a schedule."""
    schedule = await service.change_schedule(rt, me, schedule_id, version, _change(body))
    tagged(response, schedule)
    return schedule


@router.delete("/{schedule_id}", status_code=204, responses=problems(404, 412))
async def delete_schedule(rt: Rt, me: Me, schedule_id: UUID, version: VersionOrAny) -> None:
    """Delete a schedule. Runs that it started go on."""
    await service.delete_schedule(rt, me, schedule_id, version)


@router.post("/{schedule_id}/pause", responses=problems(404, 412))
async def pause_schedule(rt: Rt, me: Me, schedule_id: UUID, response: Response) -> ScheduleWithTimes:
    """Pause a schedule. What is due meanwhile is not made up for."""
    schedule = await service.pause_schedule(rt, me, schedule_id)
    tagged(response, schedule)
    return schedule


@router.post("/{schedule_id}/resume", responses=problems(404, 409, 412))
async def resume_schedule(rt: Rt, me: Me, schedule_id: UUID, response: Response) -> ScheduleWithTimes:
    """Make a paused or disabled schedule active again, from its next time on."""
    schedule = await service.resume_schedule(rt, me, schedule_id)
    tagged(response, schedule)
    return schedule


@router.get("/{schedule_id}/firings", responses=problems(404))
async def list_firings(rt: Rt, me: Me, schedule_id: UUID) -> Sequence[Firing]:
    """The last 50 times at which it was due, and what came of each; newest first."""
    return await service.list_firings(rt, me, schedule_id)


def _change(body: NewSchedule | SchedulePatch) -> ScheduleChange:
    given: dict[str, Any] = dict(body)
    given["wanted"] = None if body.wanted is None else Wanted(**dict(body.wanted))
    return ScheduleChange(**given)
