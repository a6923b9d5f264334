"""Stored tools: looking at them and editing them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotAllowed, NotFound, Problem, VersionStale
from ..core.records import Page, Tool, Visibility
from ..store import activity
from ..store import tools as store
from ..store.database import Connection
from ..store.paging import page, read_cursor
from .changes import ANY_VERSION, editable, refuse_in_use, written
from .checks import check_tool
from .once import Once, do_once, replayed
from .runtime import Runtime


@dataclass(frozen=True, kw_only=True)
class ToolChange:
    """A tool as it is to be; `None` leaves a part as it is."""

    spec: dict[str, Any] | None = None
    active: bool | None = None
    visibility: Visibility | None = None


async def list_tools(runtime: Runtime, caller: Caller, *, cursor: str | None, limit: int) -> Page[Tool]:
    """The tools that the caller may use, newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        return page(await store.list_tools(connection, read_cursor(cursor), limit), limit)


async def get_tool(runtime: Runtime, caller: Caller, tool_id: UUID) -> Tool:
    """A tool.

    Raises:
        NotFound: there is none that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if tool := await store.get_tool(connection, tool_id):
            return tool
    raise NotFound


async def create_tool(runtime: Runtime, caller: Caller, wanted: ToolChange, once: Once | None = None) -> Tool:
    """Store a tool.

    Raises:
        InvalidInput: everything that is wrong with it.
    """
    if answer := await replayed(runtime.database, caller, once, Tool):
        return answer
    spec = await _checked(runtime, caller, wanted.spec or {})

    async def insert(connection: Connection) -> Tool:
        tool = written(
            await store.insert_tool(
                connection,
                name=spec["name"],
                kind=spec["kind"],
                spec=spec,
                active=wanted.active is not False,
                visibility=wanted.visibility or "private",
            )
        )
        await activity.note(connection, caller.door, "tool_created", f"tool:{tool.id}", name=tool.name)
        return tool

    return (await do_once(runtime.database, caller, once, Tool, insert))[0]


async def change_tool(runtime: Runtime, caller: Caller, tool_id: UUID, version: int, wanted: ToolChange) -> Tool:
    """Change a tool.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
        InvalidInput: everything that is wrong with the change.
    """
    found = await get_tool(runtime, caller, tool_id)
    if found.is_builtin and wanted.active is not None and wanted.spec is None and wanted.visibility is None:
        return await _switch(runtime, caller, found, version, active=wanted.active)
    tool = editable(found, caller, version)
    spec = tool.spec if wanted.spec is None else await _checked(runtime, caller, wanted.spec)
    async with runtime.database.as_user(caller.user_id) as connection:
        changed = await store.update_tool(
            connection,
            tool,
            name=spec["name"],
            spec=spec,
            active=tool.active if wanted.active is None else wanted.active,
            visibility=wanted.visibility or tool.visibility,
        )
        await activity.note(connection, caller.door, "tool_changed", f"tool:{tool_id}")
        return written(changed)


async def _switch(runtime: Runtime, caller: Caller, tool: Tool, version: int, *, active: bool) -> Tool:
    """Switch a builtin on or off for everybody's agents. For admins."""
    if not caller.is_admin:
        raise NotAllowed("only an admin switches what comes with Loopwright on or off")
    if version not in (ANY_VERSION, tool.version):
        raise VersionStale
    async with runtime.database.as_user(caller.user_id) as connection:
        await store.switch_builtin(connection, tool.id, active)
        await activity.note(connection, caller.door, "builtin_switched", f"tool:{tool.id}", name=tool.name, on=active)
        return written(await store.get_tool(connection, tool.id))


async def delete_tool(runtime: Runtime, caller: Caller, tool_id: UUID, version: int) -> None:
    """Delete a tool.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
        Conflict: an agent uses it.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        tool = editable(await store.get_tool(connection, tool_id), caller, version)
        refuse_in_use("tool", await store.users_of_tool(connection, tool_id))
        if not await store.delete_tool(connection, tool):
            written(None)
        await activity.note(connection, caller.door, "tool_deleted", f"tool:{tool_id}", name=tool.name)


async def _checked(runtime: Runtime, caller: Caller, spec: dict[str, Any]) -> dict[str, Any]:
    if spec.get("kind") not in ("http", "mcp"):
        message = "a stored tool is of kind `http` or `mcp`; others belong into the agent's `spec.tools`"
        raise InvalidInput(Problem(field="spec.kind", message=message))
    await check_tool(spec, await runtime.world(caller.user_id, None))
    return spec
