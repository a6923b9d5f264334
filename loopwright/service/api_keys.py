"""Personal API keys: shown once when they are made, and known by their hashes from then on."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound, Problem
from ..core.records import ApiKey, NewApiKey
from ..core.text import CONTROL
from ..store import activity
from ..store import api_keys as store
from ..store.database import Database

PREFIX = "lw_"
"""What every key begins with: so leaked ones can be searched for."""

SHOWN = 8
"""Characters of a key that are kept, so that people can tell their keys apart."""

LONGEST_NAME = 80


def is_key(token: str) -> bool:
    """Whether a bearer token is to be looked up among the keys."""
    return token.startswith(PREFIX)


async def list_keys(database: Database, caller: Caller) -> Sequence[ApiKey]:
    """The caller's keys."""
    async with database.as_user(caller.user_id) as connection:
        return await store.list_keys(connection)


async def make_key(database: Database, caller: Caller, name: str) -> NewApiKey:
    """Make a key that acts as the caller. This is the only time that it is seen whole.

    Raises:
        InvalidInput: the name is empty, too long, or that of another key of the caller's.
    """
    name = " ".join(CONTROL.sub("", name).split())
    if not 1 <= len(name) <= LONGEST_NAME:
        message = f"must have 1 to {LONGEST_NAME} characters; say what the key is for, such as: nightly script"
        raise InvalidInput(Problem(field="name", message=message))
    token = PREFIX + secrets.token_urlsafe(32)
    async with database.as_user(caller.user_id) as connection:
        made = await store.insert_key(connection, name=name, prefix=token[:SHOWN], sha256=_hash(token))
        if made is None:
            message = "is the name of another key of yours; revoke that one first, or choose another name"
            raise InvalidInput(Problem(field="name", message=message))
        await activity.note(connection, caller.door, "api_key_made", f"api_key:{made.id}", name=name)
    return NewApiKey(**made.model_dump(), token=token)


async def revoke_key(database: Database, caller: Caller, key_id: UUID) -> None:
    """Revoke a key of the caller's: from the next request on it is none.

    Raises:
        NotFound: the caller has no such key.
    """
    async with database.as_user(caller.user_id) as connection:
        name = await store.delete_key(connection, key_id)
        if name is None:
            raise NotFound
        await activity.note(connection, caller.door, "api_key_revoked", f"api_key:{key_id}", name=name)


async def owner_of(database: Database, token: str) -> str | None:
    """The user as whom a key acts; `None` if it is none, or was revoked."""
    async with database.as_service() as connection:
        return await store.owner_of_key(connection, _hash(token))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
