"""Answers to requests that came with an `Idempotency-Key`, kept in the transaction in which the request did its work.

So a second request with the same key waits for the first one's transaction, and then finds its answer; if the first one
failed, nothing of it is left and the second one does the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row
from psycopg.types.json import Jsonb
from pydantic import JsonValue

from .database import Connection

KEPT_DAYS = 7
"""How long answers are kept."""


@dataclass(frozen=True)
class Kept:
    """What is known of a key."""

    request_sha256: bytes
    response: JsonValue


async def find(connection: Connection, owner_id: str, key: str) -> Kept | None:
    """The answer that a key was given."""
    cursor = connection.cursor(row_factory=class_row(Kept))
    await cursor.execute(
        "select request_sha256, response from public.idempotency_keys where owner_id = %s and key = %s", (owner_id, key)
    )
    return await cursor.fetchone()


async def claim(connection: Connection, owner_id: str, key: str, sha256: bytes) -> bool:
    """Take a key for this transaction; waits for another one that is about to. False if it was used before."""
    cursor = await connection.execute(
        "insert into public.idempotency_keys (owner_id, key, request_sha256) values (%s, %s, %s) "
        "on conflict (owner_id, key) do nothing",
        (owner_id, key, sha256),
    )
    return cursor.rowcount == 1


async def keep(connection: Connection, owner_id: str, key: str, response: JsonValue) -> None:
    """Keep the answer."""
    await connection.execute(
        "update public.idempotency_keys set status = 200, response = %s where owner_id = %s and key = %s",
        (Jsonb(response), owner_id, key),
    )


async def forget_old(connection: Connection) -> None:
    """Forget answers that nobody asks for any more. For the service itself."""
    await connection.execute(
        "delete from public.idempotency_keys where created_at < now() - make_interval(days => %s)", (KEPT_DAYS,)
    )
