"""Personal API keys as they are stored: by their hashes."""

from __future__ import annotations

from uuid import UUID

from psycopg.rows import class_row

from ..core.records import ApiKey
from .database import Connection


async def list_keys(connection: Connection) -> list[ApiKey]:
    """The caller's keys, newest first."""
    cursor = connection.cursor(row_factory=class_row(ApiKey))
    await cursor.execute(
        "select id, name, prefix, created_at, last_used_at from public.api_keys order by created_at desc, id"
    )
    return await cursor.fetchall()


async def insert_key(connection: Connection, *, name: str, prefix: str, sha256: bytes) -> ApiKey | None:
    """Store a key of the caller's; `None` if it has one of this name."""
    cursor = connection.cursor(row_factory=class_row(ApiKey))
    await cursor.execute(
        "insert into public.api_keys (name, prefix, sha256) values (%s, %s, %s) on conflict do nothing "
        "returning id, name, prefix, created_at, last_used_at",
        (name, prefix, sha256),
    )
    return await cursor.fetchone()


async def delete_key(connection: Connection, key_id: UUID) -> str | None:
    """Revoke a key of the caller's; its name, or `None` if there is none."""
    cursor = await connection.execute("delete from public.api_keys where id = %s returning name", (key_id,))
    row = await cursor.fetchone()
    return str(row[0]) if row else None


async def owner_of_key(connection: Connection, sha256: bytes) -> str | None:
    """The owner of a key that was shown; `None` for none. For the service itself."""
    row = await (await connection.execute("select private.owner_of_key(%s)", (sha256,))).fetchone()
    return str(row[0]) if row and row[0] else None
