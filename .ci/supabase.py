"""What a Supabase project would say of the migrations: `supabase db push`, and its advisors at level warn.

The command is the real one, of a pinned version, out of npm. The project is a database of the embedded Postgres with
what Supabase has in it, and with an owner that has no more rights than a project's owner has.

    python .ci/supabase.py     needs npx and, the first time, an npm registry
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psycopg

from loopwright.service.database import bring_up_to_date
from loopwright.store.embedded import EmbeddedServer
from loopwright.store.migrate import migrations

CLI = "supabase@2.117.0"

ROOT = Path(__file__).resolve().parent.parent

PROJECT = """
create role supabase_auth_admin nologin noinherit createrole;
alter schema auth owner to supabase_auth_admin;
alter table auth.users owner to supabase_auth_admin;
create role project_owner login createrole createdb bypassrls password 'x';
grant anon, authenticated, service_role to project_owner with admin option;
grant usage on schema auth to project_owner;
grant all on auth.users to project_owner;
alter database project owner to project_owner;
alter publication supabase_realtime owner to project_owner;
"""
"""What makes a database one of Supabase's, beside what the shim brings."""


@asynccontextmanager
async def over_tcp(socket: Path) -> AsyncGenerator[int]:
    """The server's socket at a port of this machine: the embedded server itself listens on no network."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(str(socket))
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    async with await asyncio.start_server(connect, "127.0.0.1") as listening:
        yield int(listening.sockets[0].getsockname()[1])


async def supabase(*arguments: str, fails: bool = False) -> str:
    """Run the Supabase CLI, and end with it where it fails, or where it should and doesn't."""
    env = {**os.environ, "SUPABASE_TELEMETRY_DISABLED": "1", "DO_NOT_TRACK": "1"}
    command = ["npx", "--yes", CLI, *arguments, "--workdir", str(ROOT), "--yes", "--agent", "no"]
    running = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE)
    out = (await running.communicate())[0].decode()
    if not fails:
        print(out, flush=True)
    if bool(running.returncode) != fails:
        sys.exit(f"supabase {' '.join(arguments[:2])} {'found nothing' if fails else 'failed'}")
    return out


def make_project(server: EmbeddedServer) -> None:
    """A database as a fresh Supabase project has it."""
    shim = (ROOT / "loopwright/store/supabase_shim.sql").read_text(encoding="utf-8")
    with psycopg.connect(server.url(database="postgres"), autocommit=True) as connection:
        connection.execute("create database project")
    with psycopg.connect(server.url(database="project")) as connection:
        connection.execute(shim)  # pyright: ignore[reportArgumentType]
        connection.execute(PROJECT)


async def check(server: EmbeddedServer) -> None:
    """Push, look at the books from both sides, and ask the advisors."""
    make_project(server)
    mine = server.url("project_owner", "project")
    socket = next(Path(server.data).parent.glob("**/.s.PGSQL.5432"))
    async with over_tcp(socket) as port:
        url = f"postgresql://project_owner:x@127.0.0.1:{port}/project?sslmode=disable"
        await supabase("db", "push", "--db-url", url, "--skip-vault")
        again = await bring_up_to_date(mine)
        if again:
            sys.exit(f"loopwright would apply again what supabase applied: {again}")
        ask = ("db", "advisors", "--db-url", url, "--type", "all", "--level", "warn", "--fail-on", "warn")
        await supabase(*ask)
        with psycopg.connect(mine) as connection:  # they do look: a table without row-level security is noticed
            connection.execute("create table public.open_to_all (id int)")
            connection.execute("grant select on public.open_to_all to anon")
        if "open_to_all" not in await supabase(*ask, fails=True):
            sys.exit("the advisors did not notice a table without row-level security")
    with psycopg.connect(mine) as connection:
        published = connection.execute(
            "select tablename from pg_publication_tables where pubname = 'supabase_realtime' order by 1"
        ).fetchall()
    if published != [("loop_runs",), ("run_events",)]:
        sys.exit(f"Realtime publishes {published}")
    print(f"{len(migrations())} migrations pushed; the advisors say nothing at level warn")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lws-") as folder, EmbeddedServer(Path(folder)) as running:
        asyncio.run(check(running))
