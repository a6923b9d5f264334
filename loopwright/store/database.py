"""The connection pool, and the transactions in which a caller's claims hold."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from ..core.errors import DatabaseAway

Connection = AsyncConnection[TupleRow]

DatabaseRole = Literal["anon", "authenticated", "service_role"]

POOL_SIZE = 16
"""Most connections of one process; statements are short."""


def is_away(error: Exception) -> bool:
    """Whether a database error says that the server is away or going away, rather than that it refuses something."""
    if isinstance(error, PoolTimeout | psycopg.InterfaceError):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    # 08: connections; 57P: the server stops, starts or crashed. Others, such as a full disk (53100), are no absence.
    return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))


@dataclass(frozen=True, kw_only=True)
class Urls:
    """How to reach the database."""

    app: str
    """As the application's role, perhaps through a transaction pooler."""
    direct: str
    """As the owner, directly: for migrations, LISTEN and the engine."""
    engine: str
    """As the application's role, directly: sessions keep their role."""
    pooled: bool = False
    """Whether `app` goes through a transaction pooler, where prepared statements don't work."""


@dataclass(kw_only=True)
class Database:
    """The application's way to the database. Open it with `async with`."""

    urls: Urls
    pool: AsyncConnectionPool[Connection] = field(init=False)
    """For requests: each transaction names its caller, and without one nothing is possible."""
    engine: AsyncConnectionPool[Connection] = field(init=False)
    """For the engine's own single statements: sessions of the service role, directly connected."""
    lowered: bool = field(default=False, init=False)
    """Whether admins have a member's rights here."""

    def __post_init__(self) -> None:
        options: dict[str, object] = {"autocommit": True}
        if self.urls.pooled:
            options["prepare_threshold"] = None
        self.pool = AsyncConnectionPool(
            self.urls.app, min_size=1, max_size=POOL_SIZE, open=False, kwargs=options, timeout=10, name="requests"
        )
        service = {"autocommit": True, "options": "-c role=service_role"}
        self.engine = AsyncConnectionPool(
            self.urls.engine, min_size=1, max_size=POOL_SIZE, open=False, kwargs=service, timeout=10, name="engine"
        )

    async def __aenter__(self) -> Database:
        await self.pool.open()
        await self.engine.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()
        await self.pool.close()

    def for_agents(self) -> Database:
        """The same connections for what agents ask for: an admin has a member's rights there."""
        made = copy.copy(self)
        made.lowered = True
        return made

    @asynccontextmanager
    async def service_session(self) -> AsyncGenerator[Connection]:
        """A connection of the service role for single statements of the engine, each its own transaction."""
        try:
            async with _connection(self.engine) as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as error:
            if is_away(error):
                raise DatabaseAway(f"the database is away: {error}") from error
            raise

    @asynccontextmanager
    async def as_user(self, user_id: str) -> AsyncGenerator[Connection]:
        """A transaction in which row-level security sees this user, and nothing more than the user may is possible."""
        claims = {"sub": user_id, "role": "authenticated", **({"loopwright_as": "member"} if self.lowered else {})}
        async with self._transaction("authenticated", claims) as connection:
            yield connection

    @asynccontextmanager
    async def as_service(self) -> AsyncGenerator[Connection]:
        """A transaction of the service itself: the engine's own writes, never on behalf of a caller."""
        async with self._transaction("service_role", {"role": "service_role"}) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self, role: DatabaseRole, claims: dict[str, str]) -> AsyncGenerator[Connection]:
        try:
            async with _connection(self.pool) as connection, connection.transaction():
                # One round trip; both settings end with the transaction.
                await connection.execute(
                    "select set_config('role', %s, true), set_config('request.jwt.claims', %s, true)",
                    (role, json.dumps(claims)),
                )
                yield connection
        except (psycopg.Error, PoolTimeout) as error:
            if is_away(error):
                raise DatabaseAway(f"the database is away: {error}") from error
            raise


@asynccontextmanager
async def _connection(pool: AsyncConnectionPool[Connection]) -> AsyncGenerator[Connection]:
    """A connection of the pool. Python 3.11's `wait_for`, on which the pool waits, drops a cancellation that comes in
    the moment its wait ends; who was cancelled meanwhile learns of it here."""
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    async with pool.connection() as connection:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError
        yield connection


async def connect_direct(urls: Urls) -> Connection:
    """A connection of the owner, outside the pool, in autocommit mode.

    Raises:
        DatabaseAway: the database can't be reached.
    """
    try:
        return await AsyncConnection.connect(urls.direct, autocommit=True)
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"the database can't be reached: {error}") from error
