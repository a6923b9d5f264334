"""The agents: who does the work. Each can be tried with one message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.records import Agent, Tool, Visibility
from ..service import agents as service
from ..service.agents import AgentChange
from ..service.runtime import Runtime
from ..service.tools import list_tools
from ..service.trials import TRIAL_BUDGET, try_agent
from .deps import Cursor, Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .text import one_line

router = APIRouter(prefix="/agents", route_class=PageRoute)

FIELDS = ("name", "model", "instructions", "max_output_tokens", "fallback_models", "tool_ids", "more", "message")
OWN = ("model", "instructions", "max_output_tokens", "fallback_models")
"""What the form has fields for; the rest of an agent is shown as JSON."""


@dataclass(frozen=True, kw_only=True)
class AgentsContext(Context):
    """The list of agents."""

    agents: Sequence[Agent]
    next_cursor: str | None


@router.get("")
async def show_all(request: Request, rt: Rt, me: Me, cursor: Cursor = None) -> Response:
    """The agents that the caller may use."""
    found = await service.list_agents(rt, me, cursor=cursor, limit=50)
    context = AgentsContext(title="Agents", nav="/agents", agents=found.items, next_cursor=found.next_cursor)
    return page(request, "agents.html", context)


@dataclass(frozen=True, kw_only=True)
class AgentContext(Context):
    """The form of an agent."""

    agent: Agent | None
    values: Fields
    chosen: Sequence[str]
    tools: Sequence[Tool]
    can_edit: bool
    key: str
    budget: str = TRIAL_BUDGET
    wrong: Wrong = field(default_factory=dict[str, str])


async def _form(
    request: Request, rt: Runtime, me: Caller, *, agent: Agent | None, values: Fields, wrong: Wrong | None = None
) -> Response:
    tools = await list_tools(rt, me, cursor=None, limit=200)
    context = AgentContext(
        title=one_line(agent.name, 60) if agent else "New agent",
        nav="/agents",
        agent=agent,
        values=values,
        chosen=values.all("tool_ids"),
        tools=[tool for tool in tools.items if not (tool.is_builtin and tool.name == "loop_done")],  # all have that
        can_edit=agent is None or me.is_admin or str(agent.owner_id) == me.user_id,
        key=new_key(),
        wrong=wrong or {},
    )
    return page(request, "agent.html", context, 422 if wrong else 200)


@router.get("/new")
async def new(request: Request, rt: Rt, me: Me) -> Response:
    """The form of a new agent."""
    return await _form(request, rt, me, agent=None, values=Fields({"max_output_tokens": ["4096"]}))


@router.post("/new")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new agent."""
    try:
        agent = await service.create_agent(rt, me, change_of(form), once(form))
    except InvalidInput as error:
        return await _form(request, rt, me, agent=None, values=form, wrong=wrong_of(error, FIELDS))
    return RedirectResponse(f"/agents/{agent.id}?note=saved", 303)


@router.get("/{agent_id}")
async def show(request: Request, rt: Rt, me: Me, agent_id: UUID) -> Response:
    """An agent."""
    agent = await service.get_agent(rt, me, agent_id)
    return await _form(request, rt, me, agent=agent, values=typed_of(agent))


@router.post("/{agent_id}")
async def save(request: Request, rt: Rt, me: Me, agent_id: UUID, form: Form) -> Response:
    """Change an agent."""
    agent = await service.get_agent(rt, me, agent_id)
    try:
        await service.change_agent(rt, me, agent_id, form.whole("version") or 0, change_of(form))
    except InvalidInput as error:
        return await _form(request, rt, me, agent=agent, values=form, wrong=wrong_of(error, FIELDS))
    return RedirectResponse(f"/agents/{agent_id}?note=saved", 303)


@router.post("/{agent_id}/try")
async def try_it(request: Request, rt: Rt, me: Me, agent_id: UUID, form: Form) -> Response:
    """Give it one message, and watch."""
    try:
        started = await try_agent(rt, me, agent_id, form.text("message"), once(form))
    except InvalidInput as error:
        agent = await service.get_agent(rt, me, agent_id)
        typed = Fields({**typed_of(agent).values, "message": [form.text("message")]})
        return await _form(request, rt, me, agent=agent, values=typed, wrong=wrong_of(error, FIELDS))
    return RedirectResponse(f"/runs/{started.run_id}", 303)


@router.post("/{agent_id}/delete")
async def delete(rt: Rt, me: Me, agent_id: UUID, form: Form) -> Response:
    """Delete an agent that no loop uses."""
    await service.delete_agent(rt, me, agent_id, form.whole("version") or 0)
    return RedirectResponse("/agents?note=deleted", 303)


def change_of(form: Fields) -> AgentChange:
    """The agent that was typed.

    Raises:
        InvalidInput: a field can't be read.
    """
    spec: dict[str, Any] = {**json_of(form, "more"), "model": form.short("model")}
    spec["instructions"] = form.text("instructions")
    if tokens := form.whole("max_output_tokens", least=16):
        spec["max_output_tokens"] = tokens
    if models := [line.strip() for line in form.text("fallback_models").splitlines() if line.strip()]:
        spec["fallback_models"] = models
    form.refuse()
    visibility: Visibility = "workspace" if form.short("visibility") == "workspace" else "private"
    ids = [UUID(value) for value in form.all("tool_ids") if len(value) == 36]
    return AgentChange(name=form.short("name"), spec=spec, tool_ids=ids, visibility=visibility)


def json_of(form: Fields, name: str) -> dict[str, Any]:
    """A field that holds a JSON object; empty where nothing was typed.

    Raises:
        InvalidInput: it is none.
    """
    if not form.short(name):
        return {}
    try:
        data: Any = json.loads(form.text(name))
    except ValueError as error:
        raise InvalidInput(Problem(field=name, message=f"is not JSON: {error}")) from None
    if not isinstance(data, dict):
        raise InvalidInput(Problem(field=name, message="must be a JSON object, such as {…}"))
    return cast("dict[str, Any]", data)


def typed_of(agent: Agent) -> Fields:
    """A stored agent as its form shows it."""
    spec = agent.spec
    more = {name: value for name, value in spec.items() if name not in OWN}
    return Fields(
        {
            "name": [agent.name],
            "visibility": [agent.visibility],
            "model": [str(spec.get("model", ""))],
            "instructions": [str(spec.get("instructions", ""))],
            "max_output_tokens": [str(spec.get("max_output_tokens", 4096))],
            "fallback_models": ["\n".join(spec.get("fallback_models", ()))],
            "more": [json.dumps(more, indent=2, ensure_ascii=False) if more else ""],
            "tool_ids": [str(each) for each in agent.tool_ids],
        }
    )
