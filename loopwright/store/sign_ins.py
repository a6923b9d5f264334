"""Browsers that are signed in. For the service itself: no caller reads or writes these."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from .database import Connection
from .secrets import Sealed


@dataclass(frozen=True, kw_only=True)
class SignedIn:
    """A browser that is signed in."""

    user_id: UUID
    nonce: bytes
    sealed: bytes
    key_id: str
    fresh_until: datetime
    """When the access token ends."""

    def tokens(self, name: str) -> Sealed:
        """The sealed tokens, under the name that they were sealed for."""
        return Sealed(name=name, nonce=self.nonce, sealed=self.sealed, key_id=self.key_id)


async def get(connection: Connection, sign_in: bytes) -> SignedIn | None:
    """A sign-in that has not ended."""
    cursor = connection.cursor(row_factory=class_row(SignedIn))
    await cursor.execute(
        "select user_id, nonce, sealed, key_id, fresh_until from public.sign_ins where id = %s and ends_at > now()",
        (sign_in,),
    )
    return await cursor.fetchone()


async def lock(connection: Connection, sign_in: bytes, *, wait: bool) -> SignedIn | None:
    """A sign-in, held until the transaction ends; without `wait` not one that somebody else holds."""
    cursor = connection.cursor(row_factory=class_row(SignedIn))
    await cursor.execute(
        "select user_id, nonce, sealed, key_id, fresh_until from public.sign_ins where id = %s and ends_at > now() "
        + ("for update" if wait else "for update skip locked"),
        (sign_in,),
    )
    return await cursor.fetchone()


async def add(
    connection: Connection, sign_in: bytes, user_id: str, tokens: Sealed, *, fresh_until: datetime, ends_at: datetime
) -> None:
    """Keep a sign-in, and forget those that have ended."""
    await forget_ended(connection)
    await connection.execute(
        "insert into public.sign_ins (id, user_id, nonce, sealed, key_id, fresh_until, ends_at) "
        "values (%s, %s, %s, %s, %s, %s, %s)",
        (sign_in, user_id, tokens.nonce, tokens.sealed, tokens.key_id, fresh_until, ends_at),
    )


async def forget_ended(connection: Connection) -> None:
    """Forget the sign-ins that have ended."""
    await connection.execute("delete from public.sign_ins where ends_at <= now()")


async def refresh(connection: Connection, sign_in: bytes, tokens: Sealed, fresh_until: datetime) -> None:
    """Put new tokens in place of those that a sign-in had."""
    await connection.execute(
        "update public.sign_ins set nonce = %s, sealed = %s, key_id = %s, fresh_until = %s where id = %s",
        (tokens.nonce, tokens.sealed, tokens.key_id, fresh_until, sign_in),
    )


async def remove(connection: Connection, sign_in: bytes) -> None:
    """Forget a sign-in."""
    await connection.execute("delete from public.sign_ins where id = %s", (sign_in,))


async def remove_all(connection: Connection, user_id: str) -> None:
    """Forget all of a user's sign-ins."""
    await connection.execute("delete from public.sign_ins where user_id = %s", (user_id,))
