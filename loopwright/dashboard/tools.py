"""The tools that agents may use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput
from ..core.records import Tool, Visibility
from ..service import tools as service
from ..service.tools import ToolChange
from ..service.trials import try_tool
from .agents import json_of
from .deps import Cursor, Form, Me, Rt, new_key, once
from .describe import host
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .text import one_line

if TYPE_CHECKING:
    from ..agents.try_tool import Tried

router = APIRouter(prefix="/tools", route_class=PageRoute)

FIELDS = ("spec", "visibility", "active")

EXAMPLE = {
    "kind": "http",
    "name": "search",
    "description": "Searches the catalogue by words.",
    "method": "GET",
    "url": "https://example.com/search",
    "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
}


@dataclass(frozen=True, kw_only=True)
class ToolsContext(Context):
    """The list of tools."""

    tools: Sequence[Tool]
    next_cursor: str | None


@router.get("")
async def show_all(request: Request, rt: Rt, me: Me, cursor: Cursor = None) -> Response:
    """The tools that the caller may use."""
    found = await service.list_tools(rt, me, cursor=cursor, limit=50)
    context = ToolsContext(title="Tools", nav="/tools", tools=found.items, next_cursor=found.next_cursor)
    return page(request, "tools.html", context)


@dataclass(frozen=True, kw_only=True)
class ToolContext(Context):
    """The form of a tool."""

    tool: Tool | None
    values: Fields
    can_edit: bool
    can_switch: bool
    """Whether it is a builtin, and the caller says who gets it."""
    key: str
    tried: Tried | None
    """What came of trying it."""
    host: str
    """Where a call goes."""
    wrong: Wrong = field(default_factory=dict[str, str])


def _form(
    request: Request, me: Caller, *, tool: Tool | None, values: Fields, wrong: Wrong | None = None,
    tried: Tried | None = None,
) -> Response:  # fmt: skip
    context = ToolContext(
        title=one_line(tool.name, 60) if tool else "New tool",
        nav="/tools",
        tool=tool,
        values=values,
        can_edit=tool is None or (not tool.is_builtin and (me.is_admin or str(tool.owner_id) == me.user_id)),
        can_switch=tool is not None and tool.is_builtin and me.is_admin,
        key=new_key(),
        tried=tried,
        host=host(str(tool.spec.get("url") or "")) if tool else "",
        wrong=wrong or {},
    )
    return page(request, "tool.html", context, 422 if wrong else 200)


@router.get("/new")
async def new(request: Request, me: Me) -> Response:
    """The form of a new tool."""
    values = Fields({"spec": [json.dumps(EXAMPLE, indent=2)], "active": ["yes"], "visibility": ["private"]})
    return _form(request, me, tool=None, values=values)


@router.post("/new")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new tool."""
    try:
        tool = await service.create_tool(rt, me, change_of(form), once(form))
    except InvalidInput as error:
        return _form(request, me, tool=None, values=form, wrong=_wrong(error))
    return RedirectResponse(f"/tools/{tool.id}?note=saved", 303)


@router.get("/{tool_id}")
async def show(request: Request, rt: Rt, me: Me, tool_id: UUID) -> Response:
    """A tool."""
    tool = await service.get_tool(rt, me, tool_id)
    return _form(request, me, tool=tool, values=typed_of(tool))


@router.post("/{tool_id}")
async def save(request: Request, rt: Rt, me: Me, tool_id: UUID, form: Form) -> Response:
    """Change a tool."""
    tool = await service.get_tool(rt, me, tool_id)
    try:
        await service.change_tool(rt, me, tool_id, form.whole("version") or 0, change_of(form))
    except InvalidInput as error:
        return _form(request, me, tool=tool, values=form, wrong=_wrong(error))
    return RedirectResponse(f"/tools/{tool_id}?note=saved", 303)


@router.post("/{tool_id}/switch")
async def switch(rt: Rt, me: Me, tool_id: UUID, form: Form) -> Response:
    """Switch what comes with Loopwright on or off for everybody's agents."""
    change = ToolChange(active=form.flag("active"))
    await service.change_tool(rt, me, tool_id, form.whole("version") or 0, change)
    return RedirectResponse(f"/tools/{tool_id}?note=saved", 303)


@router.post("/{tool_id}/try")
async def try_it(request: Request, rt: Rt, me: Me, tool_id: UUID, form: Form) -> Response:
    """Call it once with arguments, as an agent would."""
    tool = await service.get_tool(rt, me, tool_id)
    values = Fields({**typed_of(tool).values, **{name: [form.text(name)] for name in ("arguments", "which")}})
    try:
        name = form.short("which") if tool.kind == "mcp" else tool.name
        tried = await try_tool(rt, me, tool_id, name, json_of(form, "arguments"))
    except InvalidInput as error:
        wrong = {"arguments": "; ".join(wrong_of(error, ("arguments",)).values())}
        return _form(request, me, tool=tool, values=values, wrong=wrong)
    return _form(request, me, tool=tool, values=values, tried=tried)


@router.post("/{tool_id}/delete")
async def delete(rt: Rt, me: Me, tool_id: UUID, form: Form) -> Response:
    """Delete a tool that no agent uses."""
    await service.delete_tool(rt, me, tool_id, form.whole("version") or 0)
    return RedirectResponse("/tools?note=deleted", 303)


def change_of(form: Fields) -> ToolChange:
    """The tool that was typed.

    Raises:
        InvalidInput: its settings aren't JSON.
    """
    visibility: Visibility = "workspace" if form.short("visibility") == "workspace" else "private"
    return ToolChange(spec=json_of(form, "spec"), active=form.flag("active"), visibility=visibility)


def typed_of(tool: Tool) -> Fields:
    """A stored tool as its form shows it."""
    spec = json.dumps(tool.spec, indent=2, ensure_ascii=False)
    arguments = json.dumps(dict.fromkeys(_parameters(tool), ""), indent=2, ensure_ascii=False)
    values = {"spec": [spec], "visibility": [tool.visibility], "arguments": [arguments]}
    return Fields({**values, "active": ["yes"] if tool.active else []})


def _parameters(tool: Tool) -> Iterable[str]:
    """The names of what an HTTP tool takes."""
    match tool.spec.get("parameters"):
        case {"properties": dict()} as parameters:
            return cast("dict[str, dict[str, object]]", parameters)["properties"]
        case _:
            return ()


def _wrong(error: InvalidInput) -> dict[str, str]:
    """All that is wrong stands below the one field that holds it."""
    return {"spec": "; ".join(wrong_of(error, ()).values())}
