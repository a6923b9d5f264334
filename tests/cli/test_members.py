"""`loopwright members`: the first admin, and everybody after."""

from __future__ import annotations

import asyncio

import psycopg
from psycopg import sql
from typer.testing import CliRunner

from loopwright.cli import app
from loopwright.store.database import Urls
from loopwright.store.embedded import EmbeddedServer
from tests.postgres import fresh_database, pg_server

__all__ = ["pg_server"]


def call(urls: Urls, *arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(
        app, ["members", *arguments], env={"DATABASE_URL": urls.app, "DATABASE_URL_DIRECT": urls.direct}
    )
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_who_belongs_to_the_workspace(pg_server: EmbeddedServer) -> None:
    opened = fresh_database(pg_server)
    with asyncio.Runner() as runner:
        urls = runner.run(opened.__aenter__())
        try:
            assert call(urls, "list").split() == [
                "member",
                "a@example.com",
                "member",
                "b@example.com",
                "admin",
                "c@example.com",
            ]
            assert "a@example.com is an admin" in call(urls, "add", "A@Example.com", "--admin")
            assert "admin   a@example.com" in call(urls, "list")
            assert "a@example.com is a member" in call(urls, "add", "a@example.com")
            assert "no member any more" in call(urls, "remove", "b@example.com")
            assert "b@example.com" not in call(urls, "list")
            assert "is no member" in call(urls, "remove", "b@example.com", code=2)
            assert "is a member" in call(urls, "add", "b@example.com")
            assert "invite this address" in call(urls, "add", "nobody@example.com", "--admin", code=2)
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
