"""Two to four runs side by side: their curves on one chart, their best candidates as a diff."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ..core.errors import InvalidInput, Problem
from ..service.scores import Scored, compare
from .chart import Chart, Series, draw
from .deps import Me, Rt
from .diff import Part, diff
from .errors import PageRoute
from .render import Context, page
from .run import SHOWN, Standing, standing
from .text import one_line, plain

router = APIRouter(route_class=PageRoute)


@dataclass(frozen=True, kw_only=True)
class Side:
    """A run among others."""

    at: Standing
    name: str
    text: str
    changes: Sequence[Part]
    """What its best candidate has otherwise than that of the first run."""


@dataclass(frozen=True, kw_only=True)
class CompareContext(Context):
    """The page."""

    sides: Sequence[Side]
    chart: Chart | None


@router.get("/compare")
async def show(request: Request, rt: Rt, me: Me, run: Annotated[list[str] | None, Query()] = None) -> Response:
    """Compare runs."""
    chosen = list(dict.fromkeys(run or ()))
    if not 2 <= len(chosen) <= 4:
        raise InvalidInput(Problem(field="run", message="tick two to four runs to compare them"))
    scored = await compare(rt.database, me, chosen)
    title = f"{len(scored)} runs of {one_line(scored[0].run.loop_name, 60)}"
    context = CompareContext(title=title, nav="/runs", sides=_sides(scored), chart=_chart(scored))
    return page(request, "compare.html", context)


def _sides(scored: Sequence[Scored]) -> list[Side]:
    first = _text(scored[0])
    return [
        Side(
            at=standing(each.run, datetime.now(UTC)),
            name=chr(65 + n),
            text=_text(each),
            changes=diff(first, _text(each)) if n else (),
        )
        for n, each in enumerate(scored)
    ]


def _text(scored: Scored) -> str:
    return plain(scored.run.best.text[:SHOWN]) if scored.run.best else ""


def _chart(scored: Sequence[Scored]) -> Chart | None:
    series = [Series(f"Run {chr(65 + n)}", each.points) for n, each in enumerate(scored)]
    direction = "minimize" if scored[0].run.spec.get("direction") == "minimize" else "maximize"
    targets = {standing(each.run, datetime.now(UTC)).limits.target for each in scored}
    return draw(series, direction=direction, target=targets.pop() if len(targets) == 1 else None, most=None)
