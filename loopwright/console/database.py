"""`loopwright db …`: the database itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from ..core.errors import DatabaseAway, InvalidInput, Problem
from ..settings import Settings
from .outcome import ERROR, REACHED, say
from .service import guarded, settings_with
from .text import printable


@dataclass(frozen=True)
class Place:
    """A database, and the programs that come with it."""

    url: str
    maintenance: str | None
    """Another database of the same server, where this one can be dropped; `None` where it isn't ours to drop."""
    binaries: Path | None

    def program(self, name: str) -> str:
        """The path of a Postgres program.

        Raises:
            InvalidInput: it isn't installed.
        """
        found = self.binaries / name if self.binaries else shutil.which(name)
        if not found:
            message = f"{name} is not installed here; install Postgres' client programs"
            raise InvalidInput(Problem(field="", message=message))
        return str(found)


@contextmanager
def place_of(settings: Settings) -> Generator[Place]:
    """The database that the settings name; the embedded one is up meanwhile."""
    from ..service.database import ensure_embedded

    if url := settings.database_url_direct or settings.database_url:
        yield Place(url, None, None)
        return
    with ensure_embedded(settings) as server:
        yield Place(server.url, server.maintenance, server.binaries)


def status() -> int:
    """`loopwright db status`."""

    async def run() -> int:
        from ..service.database import describe

        settings = settings_with()
        with place_of(settings) as place:
            found = await describe(place.url)
        print(f"database   {'embedded in ' + str(settings.data_folder) if place.binaries else 'DATABASE_URL'}")
        print(f"server     Postgres {found.version}, {found.size}")
        print(f"schema     {found.applied} migrations applied, {len(found.pending)} to apply")
        for name in found.pending:
            print(f"           {name}")
        print(f"runs       {found.runs}")
        return REACHED

    return guarded(run)


def migrate() -> int:
    """`loopwright db migrate`."""

    async def run() -> int:
        from ..service.database import bring_up_to_date

        with place_of(settings_with()) as place:
            applied = await bring_up_to_date(place.url)
        for name in applied:
            print(f"applied {name}")
        if not applied:
            print("there was nothing to apply")
        return REACHED

    return guarded(run)


def shell(arguments: list[str]) -> int:
    """`loopwright db psql`."""

    async def run() -> int:
        with place_of(settings_with()) as place:
            return _call([place.program("psql"), place.url, *arguments])

    return guarded(run)


def backup(path: Path) -> int:
    """`loopwright db backup`: a consistent copy, while everything goes on."""

    async def run() -> int:
        _refuse(path, there=True)
        with place_of(settings_with()) as place:
            draft = path.with_name(f".{path.name}.part")
            code = _call([place.program("pg_dump"), "--format=custom", f"--file={draft}", place.url])
            if code != 0:
                draft.unlink(missing_ok=True)
                return ERROR
            draft.replace(path)
        print(printable(f"wrote {path}"))
        say("the key of stored secrets is not in it: keep LOOPWRIGHT_SECRET_KEY or the data folder's secret.key too")
        return REACHED

    return guarded(run)


def restore(path: Path) -> int:
    """`loopwright db restore`: puts a backup in place of what is there."""

    async def run() -> int:
        from ..service.database import make_roles

        _refuse(path, there=False)
        with place_of(settings_with()) as place:
            if place.maintenance is None:
                message = "restores the embedded database only; for DATABASE_URL use pg_restore on an empty database"
                raise InvalidInput(Problem(field="", message=message))
            await make_roles(place.maintenance)
            fresh = "loopwright_restored"
            await _statement(place.maintenance, "drop database if exists {} with (force)", fresh)
            await _statement(place.maintenance, "create database {}", fresh)
            target = place.url.replace("/loopwright?", f"/{fresh}?")
            restoring = [place.program("pg_restore"), "--no-owner", "--exit-on-error", f"--dbname={target}", str(path)]
            if _call(restoring) != 0:
                await _statement(place.maintenance, "drop database {} with (force)", fresh)
                return ERROR
            await _swap(place.maintenance, fresh)
        print(printable(f"restored {path}; what was there before is kept as the database loopwright_before"))
        return REACHED

    return guarded(run)


def _refuse(path: Path, *, there: bool) -> None:
    """Refuse a file that is there already, or one that isn't.

    Raises:
        InvalidInput: says which.
    """
    if there and path.exists():
        raise InvalidInput(Problem(field="FILE", message=f"{path} is there already; take another name"))
    if not there and not path.is_file():
        raise InvalidInput(Problem(field="FILE", message=f"there is no file {path}"))


async def _swap(maintenance: str, fresh: str) -> None:
    """Put the restored database in place of the one that is there, unless somebody works with it.

    Raises:
        InvalidInput: a server or worker uses it.
    """
    try:
        await _statement(maintenance, "drop database if exists {} with (force)", "loopwright_before")
        await _statement(maintenance, "alter database loopwright rename to {}", "loopwright_before")
    except psycopg.errors.ObjectInUse:
        message = "the database is in use; stop `loopwright serve` and workers first"
        raise InvalidInput(Problem(field="", message=message)) from None
    await _statement(maintenance, "alter database {} rename to loopwright", fresh)


async def _statement(url: str, statement: str, name: str) -> None:
    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(sql.SQL(statement).format(sql.Identifier(name)))  # pyright: ignore[reportArgumentType]
    except psycopg.OperationalError as error:
        if isinstance(error, psycopg.errors.ObjectInUse):
            raise
        raise DatabaseAway(f"the database can't be reached: {error}") from error


def _call(command: list[str]) -> int:
    return subprocess.run(command, check=False, env={**os.environ, "PGCLIENTENCODING": "UTF8"}).returncode
