"""`loopwright members`: the first admin, and everybody after."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg import sql
from typer.testing import CliRunner

from loopwright.cli import app
from loopwright.core.errors import InvalidInput
from loopwright.service.members import put_member
from loopwright.store.database import Database, Urls, connect_direct
from loopwright.store.embedded import EmbeddedServer
from tests.postgres import ADMIN, OTHER, OWNER, database, fresh_database, pg_server, urls

__all__ = ["database", "pg_server", "urls"]


def call(at: Urls, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(
        app, ["members", *arguments], env={"DATABASE_URL": at.app, "DATABASE_URL_DIRECT": at.direct}
    )
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_who_belongs_to_the_workspace(pg_server: EmbeddedServer) -> None:
    opened = fresh_database(pg_server)
    with asyncio.Runner() as runner:
        at = runner.run(opened.__aenter__())
        try:
            people = [(OWNER, "member", "a"), (OTHER, "member", "b"), (ADMIN, "admin", "c")]
            listed = [line.split() for line in call(at, "list").splitlines()]
            assert listed == [[user, role, f"{name}@example.com"] for user, role, name in people]
            assert "a@example.com is an admin" in call(at, "add", "A@Example.com", "--admin")
            assert "admin   a@example.com" in call(at, "list")
            assert "a@example.com is a member" in call(at, "add", "a@example.com")
            assert "no member any more" in call(at, "remove", "b@example.com")
            assert "b@example.com" not in call(at, "list")
            assert "is no member" in call(at, "remove", "b@example.com", code=2)
            assert "is a member" in call(at, "add", "b@example.com")
            assert "new@example.com is an admin" in call(at, "add", "new@example.com", "--admin")  # no Supabase here
            assert "no mail address" in call(at, "add", "nonsense", code=2)
        finally:
            runner.run(opened.__aexit__(None, None, None))


def test_a_database_that_is_not_up_to_date(pg_server: EmbeddedServer) -> None:
    name = sql.Identifier("t_members_bare")
    with psycopg.connect(pg_server.url(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {}").format(name))
        try:
            url = pg_server.url(database="t_members_bare")
            assert "loopwright db migrate" in call(Urls(app=url, direct=url, engine=url), "list", code=2)
        finally:
            connection.execute(sql.SQL("drop database {} with (force)").format(name))


async def test_users_of_a_supabase_project_are_made_there(database: Database) -> None:
    async with await connect_direct(database.urls) as connection, connection.transaction(force_rollback=True):
        await connection.execute("create role supabase_auth_admin")  # as a project has it; nobody else sees it
        with pytest.raises(InvalidInput, match="invite this address"):
            await put_member(connection, "nobody@example.com", "admin")
        assert (await put_member(connection, "A@example.com", "admin")).role == "admin"
