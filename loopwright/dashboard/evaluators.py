"""The evaluators of the loops, and trying one with a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput
from ..core.records import Loop
from ..service.loops import get_loop, list_loops
from ..service.runtime import Runtime
from ..service.trials import (
    TRIAL_BUDGET,
    Quote,
    Verdict,
    evaluator_in,
    quote_evaluator,
    try_endpoint,
    try_evaluator,
)
from .deps import Cursor, Form, Me, Rt, new_key, once
from .describe import evaluator_words
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page

router = APIRouter(prefix="/evaluators", route_class=PageRoute)

FIELDS = ("url", "goal", "candidate", "timeout")


@dataclass(frozen=True, kw_only=True)
class Used:
    """A loop's evaluator."""

    loop: Loop
    kind: str
    words: str


@dataclass(frozen=True, kw_only=True)
class EvaluatorsContext(Context):
    """The page."""

    used: Sequence[Used]
    next_cursor: str | None
    values: Fields
    chosen: Loop | None
    """The loop whose evaluator is tried; `None` where an endpoint of no loop is."""
    quote: Quote | None
    """What that costs; `None` where it can't be tried, which `wrong` says then."""
    words: str
    """What the evaluator is, in a few words."""
    verdict: Verdict | None
    key: str
    budget: str = TRIAL_BUDGET
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request, rt: Runtime, me: Caller, *, values: Fields, cursor: str | None = None,
    loop_id: UUID | None = None, quote: Quote | None = None, verdict: Verdict | None = None, wrong: Wrong | None = None,
) -> Response:  # fmt: skip
    loops = await list_loops(rt, me, cursor=cursor, limit=50)
    chosen = await get_loop(rt, me, loop_id) if loop_id else None
    context = EvaluatorsContext(
        title="Evaluators",
        nav="/evaluators",
        used=[_used(loop) for loop in loops.items if evaluator_in(loop.spec)],
        next_cursor=loops.next_cursor,
        values=values,
        chosen=chosen,
        quote=quote,
        words=evaluator_words(evaluator_in(chosen.spec)) if chosen else "",
        verdict=verdict,
        key=new_key(),
        wrong=wrong or {},
    )
    return page(request, "evaluators.html", context, 422 if wrong else 200)


def _used(loop: Loop) -> Used:
    found = evaluator_in(loop.spec)
    return Used(loop=loop, kind=str(found.get("kind", "?")), words=evaluator_words(found))


@router.get("")
async def show(
    request: Request,
    rt: Rt,
    me: Me,
    *,
    cursor: Cursor = None,
    loop: UUID | None = None,
) -> Response:
    """The evaluators of the loops that the caller may see, and with a loop what trying its evaluator costs."""
    here = f"{str(request.base_url).rstrip('/')}/examples/words?want=12"
    values = Fields({"url": [here], "timeout": ["10"]})
    try:
        quote = await quote_evaluator(rt, me, loop) if loop else None
    except InvalidInput as error:
        return await _page(request, rt, me, cursor=cursor, values=values, loop_id=loop, wrong={"": str(error)})
    return await _page(request, rt, me, cursor=cursor, values=values, loop_id=loop, quote=quote)


@router.post("/try")
async def try_it(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Ask an endpoint that is no loop's, once and free of charge."""
    try:
        evaluator = {"kind": "http", "url": form.short("url"), "timeout_seconds": form.number("timeout") or 10}
        form.refuse()
        verdict = await try_endpoint(rt, me, evaluator, goal=form.text("goal"), candidate=form.text("candidate"))
    except InvalidInput as error:
        wrong = {("url" if name == "evaluator_url" else name): why for name, why in _wrong(error).items()}
        return await _page(request, rt, me, values=form, wrong=wrong)
    return await _page(request, rt, me, values=form, verdict=verdict)


@router.post("/{loop_id}/try")
async def try_of_loop(request: Request, rt: Rt, me: Me, loop_id: UUID, form: Form) -> Response:
    """Ask the evaluator of a loop once: at once where it is free, else as a run of one iteration."""
    quote: Quote | None = None
    try:
        quote = await quote_evaluator(rt, me, loop_id)
        if not quote.at_once:
            started = await try_evaluator(rt, me, loop_id, form.text("candidate"), once(form))
            return RedirectResponse(f"/runs/{started.run_id}", 303)
        goal, asked = str(quote.loop.spec.get("goal", "")), evaluator_in(quote.loop.spec)
        verdict = await try_endpoint(rt, me, asked, goal=goal, candidate=form.text("candidate"))
    except InvalidInput as error:
        return await _page(request, rt, me, values=form, loop_id=loop_id, quote=quote, wrong=_wrong(error))
    return await _page(request, rt, me, values=form, loop_id=loop_id, quote=quote, verdict=verdict)


def _wrong(error: InvalidInput) -> dict[str, str]:
    return wrong_of(error, (*FIELDS, "evaluator_url"))
