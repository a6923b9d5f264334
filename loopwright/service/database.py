"""The database as an operator sees it: what it is, what has been applied to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from ..core.errors import DatabaseAway, InvalidInput, Problem
from ..settings import Settings
from ..store.database import Connection, Urls, connect_direct
from ..store.embedded import EmbeddedServer
from ..store.migrate import applied, make_shim, migrate, migrations, refuse_newer
from ..store.runs import active
from .runtime import DATABASE, create_database


@dataclass(frozen=True)
class Embedded:
    """The embedded database while it is up."""

    url: str
    maintenance: str
    binaries: Path


@contextmanager
def ensure_embedded(settings: Settings) -> Generator[Embedded]:
    """The embedded database, up inside.

    Raises:
        InvalidInput: the data folder can't be used.
        StoreUnavailable: it does not come up.
    """
    with EmbeddedServer(settings.data_folder) as server:
        maintenance = server.url(database="postgres")
        create_database(maintenance)
        yield Embedded(server.url(database=DATABASE), maintenance, server.binaries)


@dataclass(frozen=True)
class Description:
    """What a database is."""

    version: str
    size: str
    applied: int
    pending: Sequence[str]
    runs: int
    """How many go on or wait."""


async def describe(url: str) -> Description:
    """What a database is.

    Raises:
        DatabaseAway: it can't be reached.
    """
    async with await connect_direct(_urls(url)) as connection:
        facts = "select current_setting('server_version'), pg_size_pretty(pg_database_size(current_database()))"
        row = await (await connection.execute(facts)).fetchone() or ("", "")
        done = await applied(connection)
        pending = [f"{m.version}_{m.name}" for m in migrations() if m.version not in done]
        runs = await active(connection) if not pending else 0
        return Description(str(row[0]), str(row[1]), len(done), pending, runs)


async def bring_up_to_date(url: str) -> list[str]:
    """Apply what has not been applied yet; returns what was.

    Raises:
        InvalidInput: the database is of a newer version.
        DatabaseAway: it can't be reached.
    """
    try:
        async with await connect_direct(_urls(url)) as connection:
            refuse_newer(migrations(), await applied(connection))
            return [f"{m.version}_{m.name}" for m in await migrate(connection)]
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"the database went away: {error}") from error


@asynccontextmanager
async def as_owner(url: str) -> AsyncGenerator[Connection]:
    """A transaction as the owner of a database that is up to date.

    Raises:
        InvalidInput: it isn't, or is of a newer version.
        DatabaseAway: it can't be reached.
    """
    async with await connect_direct(_urls(url)) as connection:
        done = await applied(connection)
        refuse_newer(migrations(), done)
        if any(m.version not in done for m in migrations()):
            message = "the database is not up to date; run `loopwright db migrate` first"
            raise InvalidInput(Problem(field="database", message=message))
        async with connection.transaction():
            yield connection


async def make_roles(maintenance: str) -> None:
    """Make the roles that a backup's rights name; they belong to a server and are in no backup.

    Raises:
        DatabaseAway: the server can't be reached.
    """
    async with await connect_direct(_urls(maintenance)) as connection:
        await make_shim(connection, roles_only=True)


def _urls(url: str) -> Urls:
    return Urls(app=url, direct=url, engine=url)
