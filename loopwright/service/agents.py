"""Stored agents: looking at them and editing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from psycopg import errors

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotFound, Problem
from ..core.records import Agent, Page, Tool, Visibility
from ..store import activity, tools
from ..store import agents as store
from ..store.database import Connection
from ..store.paging import page, read_cursor
from .changes import editable, refuse_in_use, written
from .checks import check_agent
from .once import Once, do_once, replayed
from .runtime import Runtime


@dataclass(frozen=True, kw_only=True)
class AgentChange:
    """An agent as it is to be; `None` leaves a part as it is."""

    name: str | None = None
    spec: dict[str, Any] | None = None
    tool_ids: Sequence[UUID] | None = None
    visibility: Visibility | None = None


async def list_agents(runtime: Runtime, caller: Caller, *, cursor: str | None, limit: int) -> Page[Agent]:
    """The agents that the caller may use, newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        return page(await store.list_agents(connection, read_cursor(cursor), limit), limit)


async def get_agent(runtime: Runtime, caller: Caller, agent_id: UUID) -> Agent:
    """An agent.

    Raises:
        NotFound: there is none that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if agent := await store.get_agent(connection, agent_id):
            return agent
    raise NotFound


async def create_agent(runtime: Runtime, caller: Caller, wanted: AgentChange, once: Once | None = None) -> Agent:
    """Store an agent.

    Raises:
        InvalidInput: everything that is wrong with it.
    """
    if answer := await replayed(runtime.database, caller, once, Agent):
        return answer
    name, spec, tool_ids = wanted.name or "", wanted.spec or {}, wanted.tool_ids or ()
    visibility = wanted.visibility or "private"
    await _check(runtime, caller, spec, tool_ids, visibility)

    async def insert(connection: Connection) -> Agent:
        row = await store.insert_agent(connection, name=name, spec=spec, tool_ids=tool_ids, visibility=visibility)
        agent = written(row)
        await activity.note(connection, caller.door, "agent_created", f"agent:{agent.id}", name=agent.name)
        return agent

    return (await do_once(runtime.database, caller, once, Agent, insert))[0]


async def change_agent(runtime: Runtime, caller: Caller, agent_id: UUID, version: int, wanted: AgentChange) -> Agent:
    """Change an agent. Runs that are under way keep the agent that they started with.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
        InvalidInput: everything that is wrong with the change.
    """
    agent = editable(await get_agent(runtime, caller, agent_id), caller, version)
    spec = agent.spec if wanted.spec is None else wanted.spec
    tool_ids = agent.tool_ids if wanted.tool_ids is None else wanted.tool_ids
    visibility = wanted.visibility or agent.visibility
    if wanted.spec is not None or wanted.tool_ids is not None or visibility != agent.visibility:
        await _check(runtime, caller, spec, tool_ids, visibility)
    async with runtime.database.as_user(caller.user_id) as connection:
        changed = await store.update_agent(
            connection,
            agent,
            name=agent.name if wanted.name is None else wanted.name,
            spec=spec,
            tool_ids=tool_ids,
            visibility=visibility,
        )
        await activity.note(connection, caller.door, "agent_changed", f"agent:{agent_id}")
        return written(changed)


async def delete_agent(runtime: Runtime, caller: Caller, agent_id: UUID, version: int) -> None:
    """Delete an agent.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
        Conflict: a loop uses it.
    """
    try:
        async with runtime.database.as_user(caller.user_id) as connection:
            agent = editable(await store.get_agent(connection, agent_id), caller, version)
            refuse_in_use("agent", await store.users_of_agent(connection, agent_id))
            if not await store.delete_agent(connection, agent):
                written(None)
            await activity.note(connection, caller.door, "agent_deleted", f"agent:{agent_id}", name=agent.name)
    except errors.IntegrityError:
        raise Conflict("the agent is used by a loop; give that another one first, or delete it") from None


async def _check(
    runtime: Runtime, caller: Caller, spec: dict[str, Any], tool_ids: Sequence[UUID], visibility: Visibility
) -> None:
    async with runtime.database.as_user(caller.user_id) as connection:
        found = await tools.get_tools(connection, tool_ids)
    _refuse_tools(tool_ids, found, visibility)
    stored = [tool.spec for tool in found if not tool.is_builtin]
    own = spec.get("tools", [])
    await check_agent(
        {**spec, "tools": [*own, *stored] if isinstance(own, list) else own}, await runtime.world(caller.user_id, None)
    )


def _refuse_tools(tool_ids: Sequence[UUID], found: Sequence[Tool], visibility: Visibility) -> None:
    known = {tool.id: tool for tool in found}
    problems: list[Problem] = []
    for number, tool_id in enumerate(tool_ids):
        tool = known.get(tool_id)
        if tool is None:
            message = "there is no tool with this id that you may use"
            problems.append(Problem(field=f"tool_ids.{number}", message=message))
        elif visibility == "workspace" and tool.visibility == "private":
            message = f"{tool.name!r} is private, so others can't use an agent with it; share the tool first"
            problems.append(Problem(field=f"tool_ids.{number}", message=message))
    if problems:
        raise InvalidInput(*problems)
