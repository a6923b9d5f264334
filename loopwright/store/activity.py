"""The activity log: append-only."""

from __future__ import annotations

from psycopg.rows import class_row
from psycopg.types.json import Jsonb
from pydantic import JsonValue

from ..core.caller import Door
from ..core.records import Activity
from .database import Connection


async def note(connection: Connection, door: Door, action: str, subject: str, **detail: JsonValue) -> None:
    """Write down what the transaction's caller does."""
    await connection.execute("select private.note(%s, %s, %s, %s)", (door, action, subject, Jsonb(detail)))


async def list_activity(connection: Connection, *, before: int | None, limit: int) -> list[Activity]:
    """What the caller did, or for an admin what everybody did; newest first."""
    cursor = connection.cursor(row_factory=class_row(Activity))
    await cursor.execute(
        "select id, at, user_id, door, action, subject, detail from public.activity_log "
        "where id < %s order by id desc limit %s",
        (before if before is not None else 2**62, limit),
    )
    return await cursor.fetchall()
