"""Secrets as they are stored: sealed. What opens them is `service.secrets`; the key lies outside the database."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg.rows import class_row

from ..core.records import SecretName
from .database import Connection


@dataclass(frozen=True)
class Sealed:
    """A sealed value."""

    name: str
    nonce: bytes
    sealed: bytes
    key_id: str


async def list_secrets(connection: Connection) -> list[SecretName]:
    """The names of the caller's secrets."""
    cursor = connection.cursor(row_factory=class_row(SecretName))
    await cursor.execute("select name, created_at from public.secrets order by name")
    return await cursor.fetchall()


async def put_secret(connection: Connection, secret: Sealed) -> bool:
    """Store a secret of the caller's, in place of one of the same name; true if there was none."""
    values = {"name": secret.name, "nonce": secret.nonce, "sealed": secret.sealed, "key_id": secret.key_id}
    # Not `on conflict do update`: that needs the right to read what is sealed, which callers don't have.
    changed = await connection.execute(
        "update public.secrets set nonce = %(nonce)s, sealed = %(sealed)s, key_id = %(key_id)s where name = %(name)s",
        values,
    )
    if changed.rowcount:
        return False
    await connection.execute(
        "insert into public.secrets (name, nonce, sealed, key_id) values (%(name)s, %(nonce)s, %(sealed)s, %(key_id)s)",
        values,
    )
    return True


async def delete_secret(connection: Connection, name: str) -> bool:
    """Delete a secret of the caller's; false if there is none."""
    return (await connection.execute("delete from public.secrets where name = %s", (name,))).rowcount == 1


async def sealed_of(connection: Connection, owner_id: str) -> list[Sealed]:
    """All sealed values of an owner. For the service itself."""
    cursor = connection.cursor(row_factory=class_row(Sealed))
    await cursor.execute("select name, nonce, sealed, key_id from public.secrets where owner_id = %s", (owner_id,))
    return await cursor.fetchall()
