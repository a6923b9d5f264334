"""A real Postgres for the tests: one server for all test processes, one template database, a clone for each test."""

from __future__ import annotations

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from loopwright.runner.library import Loop
from loopwright.service.engine import Engine
from loopwright.store.database import Database, Urls, connect_direct
from loopwright.store.embedded import APP, EmbeddedServer
from loopwright.store.migrate import migrate
from loopwright.store.run_store import TakenRun

OWNER = "00000000-0000-0000-0000-00000000000a"
"""A member."""
OTHER = "00000000-0000-0000-0000-00000000000b"
"""Another member."""
ADMIN = "00000000-0000-0000-0000-00000000000c"
"""An admin."""


_SOLO = f"solo{uuid.uuid4().hex[:8]}"
"""The name of a test run without xdist. Not the process's number: those come again, and the folder stays."""


@contextmanager
def server() -> Generator[EmbeddedServer]:
    """The server of this test run. Its folder is named after the run, so that all xdist workers share it."""
    name = os.environ.get("PYTEST_XDIST_TESTRUNUID") or _SOLO
    home = Path(tempfile.gettempdir()) / f"lwt-{name[:12]}"
    with EmbeddedServer(home) as running:
        asyncio.run(_make_template(running))
        yield running


async def _make_template(running: EmbeddedServer) -> None:
    async with await psycopg.AsyncConnection.connect(running.url(database="postgres"), autocommit=True) as c:
        await c.execute("select pg_advisory_lock(1)")
        rows = await c.execute("select 1 from pg_database where datname = 'template_loopwright'")
        if await rows.fetchone():
            return
        # Nobody pulls the plug of a test machine; a killed process loses nothing by it.
        await c.execute("alter system set fsync = off")
        await c.execute("select pg_reload_conf()")
        await c.execute("create database making_template")
        urls = urls_of(running, "making_template")
        async with await connect_direct(urls) as made:
            await migrate(made)
            for user, role in ((OWNER, "member"), (OTHER, "member"), (ADMIN, "admin")):
                await made.execute(
                    "insert into auth.users (id, email) values (%s, %s)", (user, f"{user[-1]}@example.com")
                )
                await made.execute("update public.profiles set role = %s where id = %s", (role, user))
        await _launch_engine_once(urls)
        await c.execute("alter database making_template rename to template_loopwright")


async def _launch_engine_once(urls: Urls) -> None:
    """Let the engine make its own tables, which takes a second that no test has to wait for then."""

    async def nothing(run: TakenRun) -> Loop:
        raise AssertionError(f"there is no run {run.id} in a template")

    async with Database(urls=urls) as database, Engine(database=database, load=nothing):
        pass


def urls_of(running: EmbeddedServer, name: str) -> Urls:
    """How to reach one of the server's databases."""
    app = running.url(APP, name)
    return Urls(app=app, direct=running.url(database=name), engine=app)


@asynccontextmanager
async def fresh_database(running: EmbeddedServer) -> AsyncGenerator[Urls]:
    """A database of the test's own, cloned from the template."""
    name = f"t{uuid.uuid4().hex[:16]}"
    async with await psycopg.AsyncConnection.connect(running.url(database="postgres"), autocommit=True) as c:
        await c.execute(sql.SQL("create database {} template template_loopwright").format(sql.Identifier(name)))
    try:
        yield urls_of(running, name)
    finally:
        async with await psycopg.AsyncConnection.connect(running.url(database="postgres"), autocommit=True) as c:
            await c.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@asynccontextmanager
async def open_database(running: EmbeddedServer) -> AsyncGenerator[Database]:
    """A fresh database, opened as the application opens it."""
    async with fresh_database(running) as urls, Database(urls=urls) as database:
        yield database


@pytest.fixture(scope="session")
def pg_server() -> Generator[EmbeddedServer]:
    """The server of this test run."""
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def data_folder(pg_server: EmbeddedServer) -> Generator[None]:
    """One data folder for the command line, whose database is up already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_HOME", str(pg_server.home))
        yield


@pytest.fixture
async def urls(pg_server: EmbeddedServer) -> AsyncGenerator[Urls]:
    """A database of the test's own."""
    async with fresh_database(pg_server) as made:
        yield made


@pytest.fixture
async def database(urls: Urls) -> AsyncGenerator[Database]:
    """A database of the test's own, opened as the application opens it."""
    async with Database(urls=urls) as opened:
        yield opened
