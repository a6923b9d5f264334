"""Routes of usage, activity and people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import PlainTextResponse

from ..core.records import Activity, Month, Page, Profile, Usage
from ..service import people, usage
from ..service.activity import list_activity
from ..service.usage import GroupBy
from .bodies import PersonPatch
from .deps import Cursor, Limit, Me, Rt
from .docs import problems

router = APIRouter(prefix="/api")

_TABLE = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@router.get("/usage", tags=["usage"], response_model=list[Usage], responses={**problems(), **_TABLE})
async def get_usage(
    rt: Rt,
    me: Me,
    *,
    group_by: Annotated[GroupBy, Query(description="What the sums go by.")] = "day",
    since: Annotated[datetime | None, Query(description="From this time on, with a zone.")] = None,
    until: Annotated[datetime | None, Query(description="Before this time, with a zone.")] = None,
    format: Annotated[Literal["json", "csv"], Query(description="`csv` for spreadsheets.")] = "json",
) -> Sequence[Usage] | PlainTextResponse:
    """What your runs cost; for an admin, everybody's."""
    rows = await usage.usage(rt.database, me, group_by, since=since, until=until)
    if format == "csv":
        return PlainTextResponse(usage.as_csv(rows), media_type="text/csv")
    return rows


@router.get("/usage/month", tags=["usage"], responses=problems())
async def get_month(rt: Rt, me: Me) -> Sequence[Month]:
    """What you spent this calendar month (UTC), and your cap; for an admin, everybody's."""
    return await people.months(rt.database, me)


@router.get("/activity", tags=["activity"], responses=problems())
async def get_activity(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Activity]:
    """What you did; for an admin, what everybody did. Newest first."""
    return await list_activity(rt.database, me, cursor=cursor, limit=limit)


@router.get("/people", tags=["people"], responses=problems())
async def list_people(rt: Rt, me: Me) -> Sequence[Profile]:
    """The users of the workspace."""
    return await people.list_people(rt.database, me)


@router.patch("/people/{user_id}", tags=["people"], responses=problems(404, 409))
async def change_person(rt: Rt, me: Me, user_id: UUID, body: PersonPatch) -> Profile:
    """Set a user's role, and what its runs may spend in a calendar month, as an admin; or a lower cap of your own."""
    profile = await people.get_person(rt.database, me, user_id)
    if body.role is not None:
        profile = await people.set_role(rt.database, me, user_id, body.role)
    if "monthly_cap_usd" in body.model_fields_set:
        profile = await people.set_monthly_cap(rt.database, me, user_id, body.monthly_cap_usd)
    if "own_cap_usd" in body.model_fields_set:
        profile = await people.set_own_cap(rt.database, me, user_id, body.own_cap_usd)
    return profile
