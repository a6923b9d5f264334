"""Guardrails: for the service as they are stored, for callers as far as they may see them."""

from __future__ import annotations

from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from ..core.records import Guardrail
from .database import Connection
from .paging import Place

_COLUMNS: LiteralString = "id, name, kind, spec, active, version, created_at, updated_at"
_NAMES: LiteralString = "id, name, kind, null::jsonb as spec, active, version, created_at, updated_at"


async def in_force(connection: Connection) -> list[dict[str, Any]]:
    """Those that are switched on, oldest first, just as they are stored. For the service itself."""
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute("select id, name, spec, version from public.guardrails where active order by created_at, id")
    return await cursor.fetchall()


def _seen(*, whole: bool) -> LiteralString:
    """What a caller reads: admins the rows, members without the specs."""
    if whole:
        return f"select {_COLUMNS} from public.guardrails"
    return f"select {_NAMES} from private.guardrail_names()"


async def list_guardrails(connection: Connection, place: Place, limit: int, *, whole: bool) -> list[Guardrail]:
    """The workspace's guardrails, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Guardrail))
    await cursor.execute(
        f"{_seen(whole=whole)} where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "order by created_at desc, id desc limit %s",
        (place.at, place.id, limit + 1),
    )
    return await cursor.fetchall()


async def get_guardrail(connection: Connection, guardrail_id: UUID, *, whole: bool) -> Guardrail | None:
    """A guardrail, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Guardrail))
    await cursor.execute(f"{_seen(whole=whole)} where id = %s", (guardrail_id,))
    return await cursor.fetchone()


async def insert_guardrail(
    connection: Connection, *, name: str, kind: str, spec: dict[str, Any], active: bool
) -> Guardrail | None:
    """Store a guardrail."""
    cursor = connection.cursor(row_factory=class_row(Guardrail))
    await cursor.execute(
        f"insert into public.guardrails (name, kind, spec, active) values (%s, %s, %s, %s) returning {_COLUMNS}",
        (name, kind, Jsonb(spec), active),
    )
    return await cursor.fetchone()


async def update_guardrail(
    connection: Connection, guardrail: Guardrail, *, name: str, kind: str, spec: dict[str, Any], active: bool
) -> Guardrail | None:
    """Change one that still has the version that was read; `None` if it hasn't."""
    cursor = connection.cursor(row_factory=class_row(Guardrail))
    await cursor.execute(
        "update public.guardrails set name = %s, kind = %s, spec = %s, active = %s "
        f"where id = %s and version = %s returning {_COLUMNS}",
        (name, kind, Jsonb(spec), active, guardrail.id, guardrail.version),
    )
    return await cursor.fetchone()


async def delete_guardrail(connection: Connection, guardrail: Guardrail) -> bool:
    """Delete a guardrail; false if it has another version by now."""
    cursor = await connection.execute(
        "delete from public.guardrails where id = %s and version = %s", (guardrail.id, guardrail.version)
    )
    return cursor.rowcount == 1
