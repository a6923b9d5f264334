"""Stored agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.records import Agent, Visibility
from .database import Connection
from .paging import Place

_COLUMNS: LiteralString = "id, owner_id, name, spec, tool_ids, visibility, version, created_at, updated_at"


async def list_agents(connection: Connection, place: Place, limit: int) -> list[Agent]:
    """The agents that the caller may see, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Agent))
    await cursor.execute(
        f"select {_COLUMNS} from public.agents where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "order by created_at desc, id desc limit %s",
        (place.at, place.id, limit + 1),
    )
    return await cursor.fetchall()


async def get_agent(connection: Connection, agent_id: UUID) -> Agent | None:
    """An agent, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Agent))
    await cursor.execute(f"select {_COLUMNS} from public.agents where id = %s", (agent_id,))
    return await cursor.fetchone()


async def find_agent(connection: Connection, owner_id: str, name: str) -> Agent | None:
    """The owner's newest agent of a name."""
    cursor = connection.cursor(row_factory=class_row(Agent))
    await cursor.execute(
        f"select {_COLUMNS} from public.agents where owner_id = %s and name = %s order by created_at desc limit 1",
        (owner_id, name),
    )
    return await cursor.fetchone()


async def insert_agent(
    connection: Connection, *, name: str, spec: dict[str, Any], tool_ids: Sequence[UUID], visibility: Visibility
) -> Agent | None:
    """Store an agent of the caller's."""
    cursor = connection.cursor(row_factory=class_row(Agent))
    await cursor.execute(
        f"insert into public.agents (name, spec, tool_ids, visibility) values (%s, %s, %s, %s) returning {_COLUMNS}",
        (name, Jsonb(spec), list(tool_ids), visibility),
    )
    return await cursor.fetchone()


async def update_agent(
    connection: Connection,
    agent: Agent,
    *,
    name: str,
    spec: dict[str, Any],
    tool_ids: Sequence[UUID],
    visibility: Visibility,
) -> Agent | None:
    """Change one that still has the version that was read; `None` if it hasn\'t, or isn\'t the caller\'s to change."""
    cursor = connection.cursor(row_factory=class_row(Agent))
    await cursor.execute(
        "update public.agents set name = %s, spec = %s, tool_ids = %s, visibility = %s "
        f"where id = %s and version = %s returning {_COLUMNS}",
        (name, Jsonb(spec), list(tool_ids), visibility, agent.id, agent.version),
    )
    return await cursor.fetchone()


async def delete_agent(connection: Connection, agent: Agent) -> bool:
    """Delete an agent; false if it isn't the caller's to delete, or has another version by now.

    Raises:
        psycopg.errors.RestrictViolation: a loop uses it.
    """
    cursor = await connection.execute(
        "delete from public.agents where id = %s and version = %s", (agent.id, agent.version)
    )
    return cursor.rowcount == 1


async def users_of_agent(connection: Connection, agent_id: UUID) -> list[str]:
    """Names of the loops that use an agent, of those that the caller may see."""
    rows = await connection.execute(
        "select name from public.loops where agent_id = %s order by name limit 10", (agent_id,)
    )
    return [str(row[0]) for row in await rows.fetchall()]
