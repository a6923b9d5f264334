"""Stored tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.records import Tool, Visibility
from .database import Connection
from .paging import Place

_COLUMNS: LiteralString = (
    "id, owner_id, name, kind, spec, visibility, version, created_at, updated_at, is_builtin, active"
)


async def list_tools(connection: Connection, place: Place, limit: int) -> list[Tool]:
    """The tools that the caller may see, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Tool))
    await cursor.execute(
        f"select {_COLUMNS} from public.tools where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "order by created_at desc, id desc limit %s",
        (place.at, place.id, limit + 1),
    )
    return await cursor.fetchall()


async def get_tool(connection: Connection, tool_id: UUID) -> Tool | None:
    """A tool, if the caller may see it."""
    found = await get_tools(connection, [tool_id])
    return found[0] if found else None


async def get_tools(connection: Connection, tool_ids: Sequence[UUID]) -> list[Tool]:
    """Those of the tools that the caller may see, in the order of the ids."""
    cursor = connection.cursor(row_factory=class_row(Tool))
    await cursor.execute(
        f"select {_COLUMNS} from public.tools where id = any(%s) order by array_position(%s, id)",
        (list(tool_ids), list(tool_ids)),
    )
    return await cursor.fetchall()


async def find_tool(connection: Connection, owner_id: str, name: str) -> Tool | None:
    """The owner's newest tool of a name."""
    cursor = connection.cursor(row_factory=class_row(Tool))
    await cursor.execute(
        f"select {_COLUMNS} from public.tools where owner_id = %s and name = %s order by created_at desc limit 1",
        (owner_id, name),
    )
    return await cursor.fetchone()


async def insert_tool(
    connection: Connection, *, name: str, kind: str, spec: dict[str, Any], active: bool, visibility: Visibility
) -> Tool | None:
    """Store a tool of the caller's."""
    cursor = connection.cursor(row_factory=class_row(Tool))
    await cursor.execute(
        "insert into public.tools (name, kind, spec, active, visibility) values (%s, %s, %s, %s, %s) "
        f"returning {_COLUMNS}",
        (name, kind, Jsonb(spec), active, visibility),
    )
    return await cursor.fetchone()


async def update_tool(
    connection: Connection, tool: Tool, *, name: str, spec: dict[str, Any], active: bool, visibility: Visibility
) -> Tool | None:
    """Change one that still has the version that was read; `None` if it hasn\'t, or isn\'t the caller\'s to change."""
    cursor = connection.cursor(row_factory=class_row(Tool))
    await cursor.execute(
        "update public.tools set name = %s, kind = %s, spec = %s, active = %s, visibility = %s "
        f"where id = %s and version = %s returning {_COLUMNS}",
        (name, spec["kind"], Jsonb(spec), active, visibility, tool.id, tool.version),
    )
    return await cursor.fetchone()


async def switch_builtin(connection: Connection, tool_id: UUID, active: bool) -> None:
    """Switch a builtin on or off for everybody.

    Raises:
        psycopg.errors.InsufficientPrivilege: the caller is no admin.
    """
    await connection.execute("select private.switch_builtin(%s, %s)", (tool_id, active))


async def delete_tool(connection: Connection, tool: Tool) -> bool:
    """Delete a tool; false if it isn't the caller's to delete, or has another version by now."""
    cursor = await connection.execute(
        "delete from public.tools where id = %s and version = %s", (tool.id, tool.version)
    )
    return cursor.rowcount == 1


async def users_of_tool(connection: Connection, tool_id: UUID) -> list[str]:
    """Names of the agents that use a tool, of those that the caller may see."""
    rows = await connection.execute(
        "select name from public.agents where tool_ids @> array[%s]::uuid[] order by name limit 10", (tool_id,)
    )
    return [str(row[0]) for row in await rows.fetchall()]
