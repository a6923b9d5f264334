"""All runs, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import APIRouter, Request, Response

from ..core.records import RunStatus, RunSummary
from ..service.runs import list_runs
from .deps import Cursor, Me, Rt
from .errors import PageRoute
from .render import Context, page

router = APIRouter(route_class=PageRoute)


@dataclass(frozen=True, kw_only=True)
class RunsContext(Context):
    """The list of runs."""

    runs: Sequence[RunSummary]
    next_cursor: str | None
    status: str
    mine: bool


@router.get("/runs")
async def show(
    request: Request,
    rt: Rt,
    me: Me,
    *,
    cursor: Cursor = None,
    status: RunStatus | Literal[""] = "",
    mine: bool = False,
) -> Response:
    """The runs that the caller may see."""
    found = await list_runs(rt.database, me, cursor=cursor, limit=50, status=status or None, mine=mine)
    context = RunsContext(
        title="Runs", nav="/runs", runs=found.items, next_cursor=found.next_cursor, status=status, mine=mine
    )
    return page(request, "runs.html", context)
