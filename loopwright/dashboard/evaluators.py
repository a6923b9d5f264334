"""The evaluators of the loops, and trying one with a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from ..core.caller import Caller
from ..core.errors import InvalidInput
from ..core.records import Loop
from ..service.loops import list_loops
from ..service.runtime import Runtime
from ..service.trials import Verdict, evaluator_in, try_endpoint
from .deps import Form, Me, Rt
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
    url: str
    """Where it can be tried; empty where it can't."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorsContext(Context):
    """The page."""

    used: Sequence[Used]
    next_cursor: str | None
    values: Fields
    verdict: Verdict | None
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request, rt: Runtime, me: Caller, *, cursor: str | None, values: Fields, verdict: Verdict | None = None,
    wrong: Wrong | None = None,
) -> Response:  # fmt: skip
    loops = await list_loops(rt, me, cursor=cursor, limit=50)
    context = EvaluatorsContext(
        title="Evaluators",
        nav="/evaluators",
        used=[_used(loop) for loop in loops.items if evaluator_in(loop.spec)],
        next_cursor=loops.next_cursor,
        values=values,
        verdict=verdict,
        wrong=wrong or {},
    )
    return page(request, "evaluators.html", context, 422 if wrong else 200)


def _used(loop: Loop) -> Used:
    found = evaluator_in(loop.spec)
    kind = str(found.get("kind", "?"))
    url = str(found.get("url", "")) if kind == "http" else ""
    return Used(loop=loop, kind=kind, words=evaluator_words(found), url=url)


@router.get("")
async def show(
    request: Request,
    rt: Rt,
    me: Me,
    cursor: Annotated[str | None, Query(max_length=160)] = None,
    url: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """The evaluators of the loops that the caller may see."""
    here = f"{str(request.base_url).rstrip('/')}/examples/words?want=12"
    values = Fields({"url": [url or here], "timeout": ["10"]})
    return await _page(request, rt, me, cursor=cursor, values=values)


@router.post("/try")
async def try_it(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Ask an endpoint once."""
    try:
        evaluator = {"kind": "http", "url": form.short("url"), "timeout_seconds": form.number("timeout") or 10}
        form.refuse()
        verdict = await try_endpoint(rt, me, evaluator, goal=form.text("goal"), candidate=form.text("candidate"))
    except InvalidInput as error:
        wrong = {("url" if name == "evaluator_url" else name): why for name, why in _wrong(error).items()}
        return await _page(request, rt, me, cursor=None, values=form, wrong=wrong)
    return await _page(request, rt, me, cursor=None, values=form, verdict=verdict)


def _wrong(error: InvalidInput) -> dict[str, str]:
    return wrong_of(error, (*FIELDS, "evaluator_url"))
