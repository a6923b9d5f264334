"""Guardrails: which there are, for everybody; what they look for, their forms and a text to try them on, for admins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter, ValidationError
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.guardrails import GuardrailSpec
from ..core.records import Guardrail
from ..service import guardrails as service
from ..service.guardrails import GuardrailChange, Trial
from ..service.runtime import Runtime
from .deps import Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .text import one_line

router = APIRouter(prefix="/guardrails", route_class=PageRoute)

FIELDS: Final = (
    "name", "kind", "scope", "pattern", "characters", "models", "hosts", "model", "base_url", "instruction", "active",
)  # fmt: skip

KINDS: Final = (
    ("deny_pattern", "a pattern that is denied"),
    ("max_length", "a length that is not exceeded"),
    ("allowed_models", "models that are allowed"),
    ("allowed_hosts", "hosts that are allowed"),
    ("llm", "the verdict of a model"),
)

_SPEC: Final[TypeAdapter[GuardrailSpec]] = TypeAdapter(GuardrailSpec)


@dataclass(frozen=True, kw_only=True)
class GuardrailsContext(Context):
    """The list, and for admins the form of a new one and a text to try them on."""

    guardrails: Sequence[Guardrail]
    next_cursor: str | None
    kinds: dict[str, str]
    is_admin: bool
    trial: Trial | None
    """What came of a text."""
    values: Fields
    key: str
    wrong: Wrong = field(default_factory=dict[str, str])


async def _list(
    request: Request, rt: Runtime, me: Caller, cursor: str | None = None, *, values: Fields | None = None,
    wrong: Wrong | None = None, trial: Trial | None = None,
) -> Response:  # fmt: skip
    found = await service.list_guardrails(rt.database, me, cursor=cursor, limit=50)
    context = GuardrailsContext(
        title="Guardrails",
        nav="/settings",
        guardrails=found.items,
        next_cursor=found.next_cursor,
        kinds=dict(KINDS),
        is_admin=me.is_admin,
        trial=trial,
        values=values or Fields({"active": ["yes"], "scope": ["both"]}),
        key=new_key(),
        wrong=wrong or {},
    )
    return page(request, "guardrails.html", context, 422 if wrong else 200)


@router.get("")
async def show_all(
    request: Request, rt: Rt, me: Me, cursor: Annotated[str | None, Query(max_length=160)] = None
) -> Response:
    """The workspace's guardrails."""
    return await _list(request, rt, me, cursor)


@router.post("")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new guardrail. For admins."""
    try:
        await service.create_guardrail(rt.database, me, change_of(form, {}), once(form))
    except InvalidInput as error:
        return await _list(request, rt, me, values=form, wrong=wrong_of(error, FIELDS))
    return RedirectResponse("/guardrails?note=saved", 303)


@router.post("/try")
async def try_text(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Say what the guardrails make of a text. For admins; nothing is kept."""
    what = "tool call" if form.short("what") == "tool call" else "goal"
    trial = await service.try_text(rt.database, me, form.text("text"), what)
    shown = {"active": ["yes"], "scope": ["both"], "text": [form.text("text")], "what": [what]}
    return await _list(request, rt, me, values=Fields(shown), trial=trial)


@dataclass(frozen=True, kw_only=True)
class GuardrailContext(Context):
    """The page of a guardrail."""

    guardrail: Guardrail
    kind: str
    """What it checks, in words."""
    is_admin: bool
    kinds: dict[str, str]
    values: Fields
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request,
    rt: Runtime,
    me: Caller,
    found: Guardrail,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    context = GuardrailContext(
        title=one_line(found.name, 60),
        nav="/settings",
        guardrail=found,
        kind=dict(KINDS).get(found.kind, "something that this version does not know, so it lets nothing pass"),
        is_admin=me.is_admin,
        kinds=dict(KINDS),
        values=values or _typed(found),
        wrong=wrong or {},
    )
    return page(request, "guardrail.html", context, 422 if wrong else 200)


def _typed(found: Guardrail) -> Fields:
    spec = found.spec or {}
    texts = {name: [str(spec[name])] for name in FIELDS if spec.get(name) is not None}
    lists = {
        name: ["\n".join(map(str, spec[name]))] for name in ("models", "hosts") if isinstance(spec.get(name), list)
    }
    known = {"name": [found.name], "kind": [found.kind], "active": ["yes"] if found.active else []}
    return Fields({"scope": ["goal" if found.kind == "llm" else "both"], **texts, **lists, **known})


@router.get("/{guardrail_id}")
async def show(request: Request, rt: Rt, me: Me, guardrail_id: UUID) -> Response:
    """A guardrail."""
    return await _page(request, rt, me, await service.get_guardrail(rt.database, me, guardrail_id))


@router.post("/{guardrail_id}")
async def save(request: Request, rt: Rt, me: Me, guardrail_id: UUID, form: Form) -> Response:
    """Change a guardrail. For admins."""
    found = await service.get_guardrail(rt.database, me, guardrail_id)
    try:
        version = form.whole("version") or 0
        await service.change_guardrail(rt.database, me, guardrail_id, version, change_of(form, found.spec or {}))
    except InvalidInput as error:
        return await _page(request, rt, me, found, form, wrong_of(error, FIELDS))
    return RedirectResponse(f"/guardrails/{guardrail_id}?note=saved", 303)


@router.post("/{guardrail_id}/delete")
async def delete(rt: Rt, me: Me, guardrail_id: UUID, form: Form) -> Response:
    """Delete a guardrail. For admins."""
    await service.delete_guardrail(rt.database, me, guardrail_id, form.whole("version") or 0)
    return RedirectResponse("/guardrails?note=deleted", 303)


def change_of(form: Fields, before: dict[str, Any]) -> GuardrailChange:
    """The guardrail that was typed. What its kind has and the form has no field for stays as it was.

    Raises:
        InvalidInput: a field can't be read.
    """
    kind, name = form.short("kind"), form.short("name")[:200]
    if not name:
        form.problems.found.append(Problem(field="name", message="is missing; refusals call the guardrail by it"))
    typed: dict[str, Any] = {"kind": kind}
    match kind:
        case "deny_pattern":
            typed |= {"pattern": form.text("pattern"), "scope": form.short("scope")}
        case "max_length":
            typed |= {"characters": form.whole("characters"), "scope": form.short("scope")}
        case "allowed_models" | "allowed_hosts":
            listed = kind.removeprefix("allowed_")
            typed |= {listed: form.text(listed).split()}
        case _:
            address = form.short("base_url") or None
            typed |= {name: form.text(name).strip() for name in ("model", "instruction")}
            typed |= {"scope": form.short("scope"), "base_url": address}
    kept = before if before.get("kind") == kind else {}
    try:
        spec = _SPEC.validate_python({**kept, **typed})
    except ValidationError as error:
        for each in error.errors():
            place = str(each["loc"][1]) if len(each["loc"]) > 1 else "kind"
            form.problems.found.append(Problem(field=place, message=each["msg"][:1].lower() + each["msg"][1:]))
        spec = None
    form.refuse()
    return GuardrailChange(name=name, spec=spec, active=form.flag("active"))
