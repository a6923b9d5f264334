"""Schedules: what starts by the clock, when next, and what came of the last times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.records import Backfill, Firing, Overlap, ScheduleWithTimes
from ..service import schedules as service
from ..service.runtime import Runtime
from ..service.schedules import ScheduleChange
from ..service.start import Wanted
from .deps import Cursor, Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong
from .render import Context, page
from .targets import Names, target_key, target_of, targets_of, wrong_of_target
from .text import one_line

router = APIRouter(prefix="/schedules", route_class=PageRoute)

FIELDS = ("name", "target", "cron", "zone", "jitter_seconds", "backfill", "overlap", "goal", "budget_usd")

W = TypeVar("W", bound=str)


@dataclass(frozen=True, kw_only=True)
class SchedulesContext(Context):
    """The list, and the form of a new one."""

    schedules: Sequence[ScheduleWithTimes]
    next_cursor: str | None
    targets: Names
    """What a schedule can start: `loop:<id>` or `agent:<id>`, and its name."""
    names: dict[str, str]
    values: Fields
    key: str
    wrong: Wrong = field(default_factory=dict[str, str])


async def _list(
    request: Request,
    rt: Runtime,
    me: Caller,
    cursor: str | None = None,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    found = await service.list_schedules(rt, me, cursor=cursor, limit=50)
    targets = await targets_of(rt, me)
    context = SchedulesContext(
        title="Schedules",
        nav="/schedules",
        schedules=found.items,
        next_cursor=found.next_cursor,
        targets=targets,
        names=dict(targets),
        values=values or Fields({"zone": ["UTC"], "backfill": ["one"], "overlap": ["skip"]}),
        key=new_key(),
        wrong=wrong or {},
    )
    return page(request, "schedules.html", context, 422 if wrong else 200)


@router.get("")
async def show_all(request: Request, rt: Rt, me: Me, cursor: Cursor = None) -> Response:
    """The caller's schedules; for an admin, everybody's."""
    return await _list(request, rt, me, cursor)


@router.post("")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new schedule."""
    try:
        made = await service.create_schedule(rt, me, change_of(form), once(form))
    except InvalidInput as error:
        return await _list(request, rt, me, values=form, wrong=wrong_of_target(error, FIELDS))
    return RedirectResponse(f"/schedules/{made.id}?note=saved", 303)


@dataclass(frozen=True, kw_only=True)
class ScheduleContext(Context):
    """The page of a schedule."""

    schedule: ScheduleWithTimes
    target: str
    firings: Sequence[Firing]
    values: Fields
    targets: Names
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request,
    rt: Runtime,
    me: Caller,
    schedule_id: UUID,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    schedule = await service.get_schedule(rt, me, schedule_id)
    targets = await targets_of(rt, me)
    key = target_key(schedule.loop_id, schedule.agent_id)
    context = ScheduleContext(
        title=one_line(schedule.name, 60),
        nav="/schedules",
        schedule=schedule,
        target=dict(targets).get(key, "something that you can't see"),
        firings=await service.list_firings(rt, me, schedule_id),
        values=values or _typed(schedule, key),
        targets=targets,
        wrong=wrong or {},
    )
    return page(request, "schedule.html", context, 422 if wrong else 200)


def _typed(schedule: ScheduleWithTimes, target: str) -> Fields:
    names = ("name", "cron", "zone", "jitter_seconds", "backfill", "overlap", "max_failures")
    wanted = {name: [str(schedule.wanted.get(name, ""))] for name in ("goal", "budget_usd")}
    return Fields({**{name: [str(getattr(schedule, name))] for name in names}, **wanted, "target": [target]})


@router.get("/{schedule_id}")
async def show(request: Request, rt: Rt, me: Me, schedule_id: UUID) -> Response:
    """A schedule."""
    return await _page(request, rt, me, schedule_id)


@router.post("/{schedule_id}")
async def save(request: Request, rt: Rt, me: Me, schedule_id: UUID, form: Form) -> Response:
    """Change a schedule."""
    try:
        await service.change_schedule(rt, me, schedule_id, form.whole("version") or 0, change_of(form))
    except InvalidInput as error:
        return await _page(request, rt, me, schedule_id, form, wrong_of_target(error, FIELDS))
    return RedirectResponse(f"/schedules/{schedule_id}?note=saved", 303)


@router.post("/{schedule_id}/pause")
async def pause(rt: Rt, me: Me, schedule_id: UUID) -> Response:
    """Pause a schedule."""
    await service.pause_schedule(rt, me, schedule_id)
    return RedirectResponse(f"/schedules/{schedule_id}?note=paused", 303)


@router.post("/{schedule_id}/resume")
async def resume(request: Request, rt: Rt, me: Me, schedule_id: UUID) -> Response:
    """Make a schedule active again."""
    try:
        await service.resume_schedule(rt, me, schedule_id)
    except InvalidInput as error:
        return await _page(request, rt, me, schedule_id, wrong=wrong_of_target(error, FIELDS))
    return RedirectResponse(f"/schedules/{schedule_id}?note=resumed", 303)


@router.post("/{schedule_id}/delete")
async def delete(rt: Rt, me: Me, schedule_id: UUID, form: Form) -> Response:
    """Delete a schedule."""
    await service.delete_schedule(rt, me, schedule_id, form.whole("version") or 0)
    return RedirectResponse("/schedules?note=deleted", 303)


def change_of(form: Fields) -> ScheduleChange:
    """The schedule that was typed.

    Raises:
        InvalidInput: a field can't be read.
    """
    loop_id, agent_id = target_of(form)
    change = ScheduleChange(
        name=form.short("name")[:200],
        loop_id=loop_id,
        agent_id=agent_id,
        cron=form.short("cron"),
        zone=form.short("zone") or "UTC",
        jitter_seconds=form.whole("jitter_seconds", least=0, most=3600) or 0,
        backfill=_one_of(form, "backfill", Backfill.__args__),
        overlap=_one_of(form, "overlap", Overlap.__args__),
        max_failures=form.whole("max_failures", most=100),
        wanted=Wanted(goal=form.text("goal").strip() or None, budget_usd=form.money("budget_usd")),
    )
    if not change.name:
        form.problems.found.append(Problem(field="name", message="is missing"))
    form.refuse()
    return change


def _one_of(form: Fields, name: Literal["backfill", "overlap"], known: Sequence[W]) -> W:
    typed = form.short(name)
    for each in known:
        if each == typed:
            return each
    form.problems.found.append(Problem(field=name, message=f"choose one of {', '.join(known)}"))
    return known[0]
