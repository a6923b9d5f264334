"""Who did what, when, through which door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ..core.records import Activity
from ..service.activity import list_activity
from ..service.people import list_people
from .deps import Me, Rt
from .errors import PageRoute
from .render import Context, page
from .text import one_line

router = APIRouter(prefix="/activity", route_class=PageRoute)

PLACES = {
    "loop": "/loops/",
    "run": "/runs/",
    "agent": "/agents/",
    "tool": "/tools/",
    "schedule": "/schedules/",
    "webhook": "/webhooks/",
    "endpoint": "/endpoints/",
    "guardrail": "/guardrails/",
}
"""Where the pages of subjects are."""


@dataclass(frozen=True, kw_only=True)
class ActivityContext(Context):
    """The page."""

    entries: Sequence[Activity]
    names: Mapping[str, str]
    next_cursor: str | None
    places: Mapping[str, str]


@router.get("")
async def show(
    request: Request, rt: Rt, me: Me, cursor: Annotated[str | None, Query(max_length=20)] = None
) -> Response:
    """What the caller did; for an admin, what everybody did."""
    found = await list_activity(rt.database, me, cursor=cursor, limit=50)
    names = {
        str(each.id): one_line(each.display_name, 60) or str(each.id)[:8] for each in await list_people(rt.database, me)
    }
    context = ActivityContext(
        title="Activity", nav="/activity", entries=found.items, names=names, next_cursor=found.next_cursor,
        places=PLACES,
    )  # fmt: skip
    return page(request, "activity.html", context)
