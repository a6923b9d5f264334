"""The list of loops, and the page of one: what it is, its runs, and the button that starts another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound
from ..core.records import Agent, Loop, RunSummary
from ..core.views import LoopCard
from ..service.agents import get_agent
from ..service.drafts import suggested_model
from ..service.loops import delete_loop, get_loop
from ..service.overview import LoopOrder, loop_cards
from ..service.runs import list_runs
from ..service.runtime import Runtime
from ..service.start import Wanted, start_run
from .deps import Cursor, Form, Me, Rt, new_key, once
from .describe import Limits, evaluator_words, limits_of, stops
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .templates_of_loops import TEMPLATES, Template
from .text import one_line, plain

router = APIRouter(route_class=PageRoute)

CARDS = 30

Status = Literal[
    "", "live", "never", "target_reached", "converged", "budget", "max_iterations", "time", "no_improvement",
    "cancelled", "error",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoopsContext(Context):
    """The list of loops."""

    cards: Sequence[LoopCard]
    more: bool
    page: int
    search: str
    status: str
    order: str
    templates: Sequence[tuple[Template, str]]
    """Each with the model that it runs on as it is."""
    statuses: Sequence[str] = Status.__args__


@router.get("/")
async def show_all(
    request: Request,
    rt: Rt,
    me: Me,
    *,
    q: Annotated[str, Query(max_length=200)] = "",
    status: Status = "",
    order: LoopOrder = "recent",
    page_number: Annotated[int, Query(alias="page", ge=1, le=10_000)] = 1,
) -> Response:
    """The loops that the caller may see."""
    cards, more = await loop_cards(
        rt.database, me, search=q.strip(), status=status, order=order, limit=CARDS, page=page_number
    )
    model = None if cards else await suggested_model(rt, me)
    context = LoopsContext(
        title="Loops", nav="/", cards=cards, more=more, page=page_number, search=q, status=status, order=order,
        templates=[(each, each.runs_on(model)) for each in TEMPLATES],
    )  # fmt: skip
    return page(request, "loops.html", context)


@dataclass(frozen=True, kw_only=True)
class LoopContext(Context):
    """The page of a loop."""

    loop: Loop
    agent: Agent | None
    goal: str
    scored_by: str
    stops: str
    limits: Limits
    runs: Sequence[RunSummary]
    next_cursor: str | None
    can_edit: bool
    key: str
    typed: Fields = field(default_factory=Fields)
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request,
    rt: Runtime,
    me: Caller,
    loop_id: UUID,
    cursor: str | None = None,
    typed: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    loop = await get_loop(rt, me, loop_id)
    runs = await list_runs(rt.database, me, cursor=cursor, limit=25, loop_id=loop_id)
    try:
        agent = await get_agent(rt, me, loop.agent_id)
    except NotFound:  # private to the loop's owner
        agent = None
    context = LoopContext(
        title=one_line(loop.name, 80),
        nav="/",
        loop=loop,
        agent=agent,
        goal=plain(str(loop.spec.get("goal", ""))[:20_000]),
        scored_by=evaluator_words(loop.spec.get("evaluator")),
        stops=stops(loop.spec.get("stop", {})),
        limits=limits_of(loop.spec.get("stop", {})),
        runs=runs.items,
        next_cursor=runs.next_cursor,
        can_edit=me.is_admin or str(loop.owner_id) == me.user_id,
        key=new_key(),
        typed=typed or Fields(),
        wrong=wrong or {},
    )
    return page(request, "loop.html", context, 422 if wrong else 200)


@router.get("/loops/{loop_id}")
async def show(request: Request, rt: Rt, me: Me, loop_id: UUID, cursor: Cursor = None) -> Response:
    """A loop."""
    return await _page(request, rt, me, loop_id, cursor)


RUN_FIELDS = ("goal", "budget_usd", "max_iterations", "max_seconds", "attempts", "model")


@router.post("/loops/{loop_id}/run")
async def run(request: Request, rt: Rt, me: Me, loop_id: UUID, form: Form) -> Response:
    """Start a run, and go to its page."""
    try:
        started = await start_run(rt, me, loop_id, wanted_of(form), once(form))
    except InvalidInput as error:
        return await _page(request, rt, me, loop_id, typed=form, wrong=wrong_of(error, RUN_FIELDS))
    return RedirectResponse(f"/runs/{started.run_id}", 303)


def wanted_of(form: Fields) -> Wanted:
    """What a run is to have otherwise than its loop.

    Raises:
        InvalidInput: a field can't be read.
    """
    wanted = Wanted(
        goal=form.text("goal") or None,
        budget_usd=form.money("budget_usd"),
        max_iterations=form.whole("max_iterations"),
        max_seconds=form.number("max_seconds"),
        attempts=form.whole("attempts", most=64),
        model=form.short("model") or None,
    )
    form.refuse()
    return wanted


@router.post("/loops/{loop_id}/delete")
async def delete(rt: Rt, me: Me, loop_id: UUID, form: Form) -> Response:
    """Delete a loop; its runs stay."""
    await delete_loop(rt, me, loop_id, form.whole("version") or 0)
    return RedirectResponse("/?note=deleted", 303)
