"""What was spent: by day, context, loop, model, role or user, against the caps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import PlainTextResponse

from ..core.records import Month, Usage
from ..core.wallet import ZERO
from ..service import people
from ..service.spending import By, spending
from ..service.usage import as_csv
from .deps import Me, Rt
from .errors import PageRoute
from .render import Context, page

router = APIRouter(prefix="/usage", route_class=PageRoute)

Days = Literal["7", "30", "90", "365"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A group with its share of the whole."""

    usage: Usage
    share: float


@dataclass(frozen=True, kw_only=True)
class UsageContext(Context):
    """The page."""

    lines: Sequence[Line]
    total: Decimal
    by: str
    days: str
    months: Sequence[Month]
    me: str
    is_admin: bool
    groups: Sequence[str] = By.__args__


@router.get("")
async def show(
    request: Request, rt: Rt, me: Me, by: Annotated[By, Query()] = "day", days: Annotated[Days, Query()] = "30"
) -> Response:
    """What was spent."""
    rows = await spending(rt.database, me, by, since=_since(days))
    most = max((row.cost_usd for row in rows), default=ZERO)
    lines = [Line(usage=row, share=round(100 * float(row.cost_usd / most), 1) if most else 0.0) for row in rows]
    context = UsageContext(
        title="Usage", nav="/usage", lines=lines, total=sum((row.cost_usd for row in rows), ZERO), by=by, days=days,
        months=await people.months(rt.database, me), me=me.user_id, is_admin=me.is_admin,
    )  # fmt: skip
    return page(request, "usage.html", context)


@router.get("/csv")
async def table(rt: Rt, me: Me, by: Annotated[By, Query()] = "day", days: Annotated[Days, Query()] = "30") -> Response:
    """The same for spreadsheets."""
    text = as_csv(await spending(rt.database, me, by, since=_since(days)))
    headers = {"Content-Disposition": f'attachment; filename="usage-by-{by}.csv"', "Cache-Control": "no-store"}
    return PlainTextResponse(text, media_type="text/csv", headers=headers)


def _since(days: str) -> datetime:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=int(days) - 1)
