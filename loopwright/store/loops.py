"""Stored loops."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.records import Loop, Visibility
from .database import Connection
from .paging import Place

_COLUMNS: LiteralString = (
    "id, owner_id, name, agent_id, spec, worst_case_usd, visibility, version, created_at, updated_at"
)


async def list_loops(connection: Connection, place: Place, limit: int) -> list[Loop]:
    """The loops that the caller may see, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Loop))
    await cursor.execute(
        f"select {_COLUMNS} from public.loops where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "order by created_at desc, id desc limit %s",
        (place.at, place.id, limit + 1),
    )
    return await cursor.fetchall()


async def get_loop(connection: Connection, loop_id: UUID) -> Loop | None:
    """A loop, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Loop))
    await cursor.execute(f"select {_COLUMNS} from public.loops where id = %s", (loop_id,))
    return await cursor.fetchone()


async def find_loop(connection: Connection, owner_id: str, name: str) -> Loop | None:
    """The owner's newest loop of a name."""
    cursor = connection.cursor(row_factory=class_row(Loop))
    await cursor.execute(
        f"select {_COLUMNS} from public.loops where owner_id = %s and name = %s order by created_at desc limit 1",
        (owner_id, name),
    )
    return await cursor.fetchone()


async def loops_named(connection: Connection, name: str, owner_id: str, limit: int = 10) -> list[Loop]:
    """The loops of a name that the caller may see: the owner's own first, then the newest."""
    cursor = connection.cursor(row_factory=class_row(Loop))
    await cursor.execute(
        f"select {_COLUMNS} from public.loops where name = %s "
        "order by (owner_id = %s::uuid) desc, created_at desc limit %s",
        (name, owner_id, limit),
    )
    return await cursor.fetchall()


async def folder_of(connection: Connection, loop_id: UUID) -> str | None:
    """Where the files of a pushed loop lie; `None` for one without."""
    row = await (await connection.execute("select folder from public.loops where id = %s", (loop_id,))).fetchone()
    return str(row[0]) if row and row[0] is not None else None


async def place_loop(connection: Connection, loop_id: UUID, folder: str) -> None:
    """Say where a loop's files lie."""
    await connection.execute("select private.place_loop(%s, %s)", (loop_id, folder))


async def insert_loop(
    connection: Connection,
    *,
    name: str,
    agent_id: UUID,
    spec: dict[str, Any],
    worst_case_usd: Decimal,
    visibility: Visibility,
) -> Loop | None:
    """Store a loop of the caller's."""
    cursor = connection.cursor(row_factory=class_row(Loop))
    await cursor.execute(
        "insert into public.loops (name, agent_id, spec, worst_case_usd, visibility) values (%s, %s, %s, %s, %s) "
        f"returning {_COLUMNS}",
        (name, agent_id, Jsonb(spec), worst_case_usd, visibility),
    )
    return await cursor.fetchone()


async def update_loop(
    connection: Connection,
    loop: Loop,
    *,
    name: str,
    agent_id: UUID,
    spec: dict[str, Any],
    worst_case_usd: Decimal,
    visibility: Visibility,
) -> Loop | None:
    """Change one that still has the version that was read; `None` if it hasn\'t, or isn\'t the caller\'s to change."""
    cursor = connection.cursor(row_factory=class_row(Loop))
    await cursor.execute(
        "update public.loops set name = %s, agent_id = %s, spec = %s, worst_case_usd = %s, visibility = %s "
        f"where id = %s and version = %s returning {_COLUMNS}",
        (name, agent_id, Jsonb(spec), worst_case_usd, visibility, loop.id, loop.version),
    )
    return await cursor.fetchone()


async def delete_loop(connection: Connection, loop: Loop) -> bool:
    """Delete a loop; false if it isn't the caller's to delete, or has another version by now. Its runs stay."""
    cursor = await connection.execute(
        "delete from public.loops where id = %s and version = %s", (loop.id, loop.version)
    )
    return cursor.rowcount == 1
