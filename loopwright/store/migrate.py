"""The migration runner. It keeps the same books as the Supabase CLI, so the two agree on what has been applied."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from typing import LiteralString, cast

from ..core.errors import InvalidInput, Problem
from .database import Connection

_NAME = re.compile(r"^(\d{14})_(\w+)\.sql$")

APP_ROLE = """
do $$ begin
  if not exists (select from pg_roles where rolname = 'loopwright_app') then
    create role loopwright_app login noinherit nobypassrls;
  end if;
end $$;
grant anon, authenticated, service_role to loopwright_app;
"""
"""What the first migration makes for the server, for a backup that is restored into a fresh one."""

_BOOKS = """
create schema if not exists supabase_migrations;
create table if not exists supabase_migrations.schema_migrations (version text not null primary key);
alter table supabase_migrations.schema_migrations add column if not exists statements text[];
alter table supabase_migrations.schema_migrations add column if not exists name text;
"""


@dataclass(frozen=True)
class Migration:
    """One file of `migrations/`."""

    version: str
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations of this version, oldest first."""
    files = resources.files("loopwright").joinpath("migrations").iterdir()
    found = [(match, file) for file in files if (match := _NAME.match(file.name))]
    made = [Migration(match[1], match[2], file.read_text(encoding="utf-8")) for match, file in found]
    return sorted(made, key=lambda m: m.version)


async def applied(connection: Connection) -> set[str]:
    """The versions that a database says were applied to it."""
    exists = await connection.execute("select to_regclass('supabase_migrations.schema_migrations') is not null")
    row = await exists.fetchone()
    if not row or not row[0]:
        return set()
    rows = await connection.execute("select version from supabase_migrations.schema_migrations")
    return {str(version) for (version,) in await rows.fetchall()}


async def migrate(connection: Connection) -> list[Migration]:
    """Apply what has not been applied yet, each migration in a transaction of its own; returns what was.

    Args:
        connection: of an owner that may create roles, in autocommit mode, not through a transaction pooler.

    Raises:
        InvalidInput: the database was used by a newer version; nothing is changed.
    """
    await connection.execute("select pg_advisory_lock(hashtextextended('loopwright:migrate', 0))")
    try:
        mine, done = migrations(), await applied(connection)
        refuse_newer(mine, done)
        await make_shim(connection)
        await connection.execute(_BOOKS)
        new = [m for m in mine if m.version not in done]
        for migration in new:
            async with connection.transaction():
                await connection.execute("reset all")
                await connection.execute(cast(LiteralString, migration.sql))
                await connection.execute(
                    "insert into supabase_migrations.schema_migrations (version, name, statements) values (%s, %s, %s)",
                    (migration.version, migration.name, [migration.sql]),
                )
        return new
    finally:
        await connection.execute("select pg_advisory_unlock(hashtextextended('loopwright:migrate', 0))")


def refuse_newer(mine: list[Migration], done: set[str]) -> None:
    """Refuse a database that has migrations later than this version knows.

    Raises:
        InvalidInput: says which, and what to do.
    """
    last = mine[-1].version
    newer = sorted(version for version in done if version > last)
    if newer:
        message = (
            f"the database was migrated by a newer Loopwright (migration {newer[-1]}, this version ends at {last}); "
            "upgrade Loopwright, or use another data folder or database"
        )
        raise InvalidInput(Problem(field="database", message=message))


async def make_shim(connection: Connection, *, roles_only: bool = False) -> None:
    """Make what Supabase has, unless the database is Supabase's, which owns its schema auth by a role of its own.

    With `roles_only` only what belongs to the server and not to one of its databases.
    """
    rows = await connection.execute("select 1 from pg_roles where rolname = 'supabase_auth_admin'")
    if await rows.fetchone():
        return
    sql = resources.files("loopwright.store").joinpath("supabase_shim.sql").read_text(encoding="utf-8")
    if roles_only:
        sql = sql.partition("\ngrant ")[0] + APP_ROLE
    async with connection.transaction():
        await connection.execute(cast(LiteralString, sql))
