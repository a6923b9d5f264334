"""Requests that must do their work once however often they are sent: by an `Idempotency-Key`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from psycopg import errors
from pydantic import BaseModel

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, Problem
from ..store import idempotency
from ..store.database import Connection, Database

B = TypeVar("B", bound=BaseModel)

WAIT = "set local lock_timeout = '10s'"
"""How long a request waits for another one with its key."""


@dataclass(frozen=True, kw_only=True)
class Once:
    """A request's key, and a digest of what it asks for."""

    key: str
    sha256: bytes


async def replayed(database: Database, caller: Caller, once: Once | None, kind: type[B]) -> B | None:
    """The answer that an earlier request with this key got, or `None`.

    Raises:
        InvalidInput: the key was used for another request.
    """
    if once is None:
        return None
    async with database.as_user(caller.user_id) as connection:
        return await _answer(connection, caller, once, kind)


async def do_once(
    database: Database,
    caller: Caller,
    once: Once | None,
    kind: type[B],
    work: Callable[[Connection], Awaitable[B]],
) -> tuple[B, bool]:
    """Do work in one transaction with the books about its key; returns its answer, and whether it was done now.

    Raises:
        InvalidInput: the key was used for another request.
        Conflict: a request with the same key takes too long.
    """
    async with database.as_user(caller.user_id) as connection:
        if once is None:
            return await work(connection), True
        await connection.execute(WAIT)
        try:
            first = await idempotency.claim(connection, caller.user_id, once.key, once.sha256)
        except errors.LockNotAvailable:
            raise Conflict("another request with this Idempotency-Key is still being answered; try again") from None
        if not first and (answer := await _answer(connection, caller, once, kind)):
            return answer, False
        done = await work(connection)
        await idempotency.keep(connection, caller.user_id, once.key, done.model_dump(mode="json"))
        return done, True


async def _answer(connection: Connection, caller: Caller, once: Once, kind: type[B]) -> B | None:
    kept = await idempotency.find(connection, caller.user_id, once.key)
    if kept is None:
        return None
    if kept.request_sha256 != once.sha256:
        message = "was used for another request already; take a new key for each request"
        raise InvalidInput(Problem(field="Idempotency-Key", message=message))
    return kind.model_validate(kept.response)
