"""The form that makes and edits loops. What it has no field for stays as it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import JSONResponse, RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotAllowed, Problem
from ..core.money import show_usd
from ..core.records import Loop, Visibility
from ..service.drafts import Draft, check_draft, create_draft, suggested_model
from ..service.loops import LoopChange, change_loop, get_loop
from ..service.overview import agent_names
from ..service.runtime import Runtime
from .deps import Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .templates_of_loops import BY_KEY
from .text import one_line

router = APIRouter(prefix="/loops", route_class=PageRoute)

FIELDS = (
    "name", "goal", "agent_id", "model", "instructions", "max_output_tokens", "evaluator_kind", "evaluator_url",
    "evaluator_timeout", "judge_model", "rubric", "scale_low", "scale_high", "direction", "target_score",
    "max_iterations", "budget_usd", "max_seconds", "no_improvement", "attempts", "visibility", "raw", "stop",
)  # fmt: skip

PLAIN_STOPS = frozenset({"target_score", "max_iterations", "budget_usd", "max_seconds", "no_improvement"})

EMPTY: Mapping[str, str] = {
    "evaluator_kind": "judge", "direction": "maximize", "max_output_tokens": "1000", "scale_low": "0",
    "scale_high": "10", "evaluator_timeout": "30", "attempts": "1", "max_iterations": "20", "budget_usd": "0.50",
    "visibility": "private",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoopFormContext(Context):
    """The form."""

    loop: Loop | None
    """The loop that is edited; `None` for a new one."""
    values: Fields
    agents: Sequence[tuple[str, str]]
    kept_kind: str
    """The kind of an evaluator that the form has no fields for."""
    key: str
    practice: bool
    """Whether a template runs on the practice model since no key of a model is known here."""
    worst: str
    wrong: Wrong = field(default_factory=dict[str, str])


async def _form(
    request: Request, rt: Runtime, me: Caller, values: Fields, *, loop: Loop | None = None, wrong: Wrong | None = None,
    practice: bool = False,
) -> Response:  # fmt: skip
    kind = str(_group(loop.spec.get("evaluator")).get("kind", "")) if loop else ""
    context = LoopFormContext(
        title=f"Edit {one_line(loop.name, 60)}" if loop else "New loop",
        nav="/",
        loop=loop,
        values=values,
        agents=[(key, one_line(name, 80)) for key, name in await agent_names(rt.database, me)],
        kept_kind=kind if kind not in ("", "http", "judge") else "",
        key=values.short("once") or new_key(),
        practice=practice,
        worst=show_usd(loop.worst_case_usd) if loop else "",
        wrong=wrong or {},
    )
    return page(request, "loop_form.html", context, 422 if wrong else 200)


@router.get("/new")
async def new(request: Request, rt: Rt, me: Me, template: Annotated[str, Query(max_length=20)] = "") -> Response:
    """The form of a new loop, empty or filled with a template."""
    model = await suggested_model(rt, me)
    chosen = BY_KEY.get(template)
    plain = {"model": model or "practice", "judge_model": model or ""}
    filled = chosen.filled(str(request.base_url), model) if chosen else plain
    values = Fields({name: [value] for name, value in {**EMPTY, **filled}.items()})
    return await _form(request, rt, me, values, practice=bool(chosen and chosen.takes_model and not model))


@router.post("/new")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new loop, and go to its page."""
    try:
        loop = await create_draft(rt, me, draft_of(form, {}), once(form))
    except InvalidInput as error:
        return await _form(request, rt, me, form, wrong=wrong_of(error, FIELDS))
    return RedirectResponse(f"/loops/{loop.id}", 303)


@router.post("/check")
async def check(rt: Rt, me: Me, form: Form) -> Response:
    """What is wrong with what is typed so far, and what an iteration could cost: for the form's own script."""
    loop_id = form.short("loop_id")
    try:
        old = (await get_loop(rt, me, UUID(loop_id))).spec if loop_id else {}
        worst = await check_draft(rt, me, draft_of(form, old))
    except InvalidInput as error:
        return JSONResponse({"wrong": wrong_of(error, FIELDS), "worst": ""})
    except ValueError:
        return JSONResponse({"wrong": {}, "worst": ""}, 422)
    return JSONResponse({"wrong": {}, "worst": show_usd(worst.total)})


@router.get("/{loop_id}/edit")
async def edit(request: Request, rt: Rt, me: Me, loop_id: UUID) -> Response:
    """The form of a loop."""
    loop = await get_loop(rt, me, loop_id)
    if not me.is_admin and str(loop.owner_id) != me.user_id:
        raise NotAllowed("this loop is shared with you to run; only its owner or an admin changes it")
    return await _form(request, rt, me, typed_of(loop), loop=loop)


@router.post("/{loop_id}/edit")
async def save(request: Request, rt: Rt, me: Me, loop_id: UUID, form: Form) -> Response:
    """Change a loop."""
    loop = await get_loop(rt, me, loop_id)
    try:
        draft = draft_of(form, loop.spec)
        change = LoopChange(name=draft.name, agent_id=draft.agent_id, spec=draft.spec, visibility=draft.visibility)
        await change_loop(rt, me, loop_id, form.whole("version") or 0, change)
    except InvalidInput as error:
        return await _form(request, rt, me, form, loop=loop, wrong=wrong_of(error, FIELDS))
    return RedirectResponse(f"/loops/{loop_id}?note=saved", 303)


# --- from what is typed to a loop, and back ---


def draft_of(form: Fields, old: Mapping[str, Any]) -> Draft:
    """The loop that was typed. What the form has no field for stays as it is in `old`.

    Raises:
        InvalidInput: a field can't be read.
    """
    spec = _raw(form) if form.short("raw") else _spec(form, old)
    agent_id = _agent_id(form)
    agent: dict[str, Any] | None = None
    if agent_id is None:
        agent = {"model": form.short("model"), "instructions": form.text("instructions")}
        if tokens := form.whole("max_output_tokens", least=16):
            agent["max_output_tokens"] = tokens
    form.refuse()
    visibility: Visibility = "workspace" if form.short("visibility") == "workspace" else "private"
    return Draft(name=form.short("name"), spec=spec, agent_id=agent_id, agent_spec=agent, visibility=visibility)


def _agent_id(form: Fields) -> UUID | None:
    text = form.short("agent_id")
    try:
        return UUID(text) if text else None
    except ValueError:
        raise InvalidInput(Problem(field="agent_id", message="is none of your agents; choose one")) from None


def _raw(form: Fields) -> dict[str, Any]:
    try:
        data: Any = json.loads(form.text("raw"))
    except ValueError as error:
        raise InvalidInput(Problem(field="raw", message=f"is not JSON: {error}")) from None
    if not isinstance(data, dict):
        raise InvalidInput(Problem(field="raw", message="must be a JSON object, such as {…}"))
    return cast("dict[str, Any]", data)


def _spec(form: Fields, old: Mapping[str, Any]) -> dict[str, Any]:
    spec = copy.deepcopy(dict(old))
    spec["goal"] = form.text("goal").strip()
    spec["direction"] = "minimize" if form.short("direction") == "minimize" else "maximize"
    if (attempts := form.whole("attempts", most=64)) and (attempts > 1 or "attempts" in spec):
        spec["attempts"] = attempts
    evaluator = _evaluator(form, _group(old.get("evaluator")))
    spec.pop("evaluator", None)
    if evaluator is not None:
        spec["evaluator"] = evaluator
    spec["stop"] = _stop(form, _group(old.get("stop")))
    return spec


def _evaluator(form: Fields, old: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = form.short("evaluator_kind")
    if kind == "keep":
        return dict(old)
    kept: dict[str, Any] = dict(old) if old.get("kind") == kind else {"kind": kind}
    if kind == "http":
        kept["url"] = form.short("evaluator_url")
        if (seconds := form.number("evaluator_timeout")) is not None:
            kept["timeout_seconds"] = seconds
        return kept
    if kind == "judge":
        low, high = form.number("scale_low"), form.number("scale_high")
        kept |= {"model": form.short("judge_model"), "rubric": form.text("rubric")}
        kept["scale"] = [0.0 if low is None else low, 1.0 if high is None else high]
        return kept
    return None


def _stop(form: Fields, old: Mapping[str, Any]) -> dict[str, Any]:
    stop: dict[str, Any] = {}
    if (target := form.number("target_score")) is not None:
        stop["target_score"] = target
    if (many := form.whole("max_iterations")) is not None:
        stop["max_iterations"] = many
    if (budget := form.money("budget_usd")) is not None:
        stop["budget_usd"] = f"{budget:f}"
    if (seconds := form.number("max_seconds")) is not None:
        stop["max_seconds"] = seconds
    if (patience := form.whole("no_improvement")) is not None:
        before = _group(old.get("no_improvement"))
        stop["no_improvement"] = {**before, "patience": patience} if before else patience
    return stop


def typed_of(loop: Loop) -> Fields:
    """A stored loop as its form shows it; one that the form can't express is shown as JSON."""
    spec, evaluator = loop.spec, _group(loop.spec.get("evaluator"))
    stop = _group(spec.get("stop"))
    kind = str(evaluator.get("kind", ""))
    scale = cast("Sequence[object]", evaluator.get("scale", (0, 1)))
    values: dict[str, object] = {
        **EMPTY,
        "name": loop.name,
        "goal": spec.get("goal", ""),
        "agent_id": loop.agent_id,
        "direction": spec.get("direction", "maximize"),
        "attempts": spec.get("attempts", 1),
        "visibility": loop.visibility,
        "evaluator_kind": kind if kind in ("", "http", "judge") else "keep",
        "evaluator_url": evaluator.get("url", ""),
        "evaluator_timeout": _number(evaluator.get("timeout_seconds", 30)),
        "judge_model": evaluator.get("model", ""),
        "rubric": evaluator.get("rubric", ""),
        "scale_low": _number(scale[0]),
        "scale_high": _number(scale[-1]),
        **{name: _number(stop.get(name, "")) for name in PLAIN_STOPS - {"no_improvement"}},
        "no_improvement": _group(stop.get("no_improvement")).get("patience", "") or _number(stop.get("no_improvement")),
        "raw": "" if stop.keys() <= PLAIN_STOPS else json.dumps(spec, indent=2, ensure_ascii=False),
    }
    return Fields({name: [str(value)] for name, value in values.items()})


def _number(value: object) -> str:
    if value is None or isinstance(value, dict):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _group(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
