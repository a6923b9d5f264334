"""The composition that `serve`, `worker` and the command line share: a database, the engine, the hub, the vault."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
import psycopg
from psycopg import sql

from ..core.caller import Caller
from ..core.errors import DatabaseAway, InvalidInput, Problem
from ..core.spec import LoopSpec
from ..settings import Settings
from ..store import profiles, run_queries, threads
from ..store.database import Database, Urls, connect_direct
from ..store.embedded import APP, EmbeddedServer
from ..store.migrate import migrate
from ..store.run_store import TakenRun
from ..store.runs import Submission
from ..store.workspace import get_settings
from ..tracing import FLUSH_SECONDS, set_up
from .checks import refuse_local_code, refuse_private_hosts
from .guardrails import rules_in_force
from .hub import Hub
from .secrets import Vault, open_vault, private_bytes, values_of
from .world import World

if TYPE_CHECKING:
    from ..runner.library import Loop
    from .engine import Engine
    from .executor import Executor

LOCAL_OWNER = "00000000-0000-4000-8000-000000000001"
"""The one user of a local installation."""

DATABASE = "loopwright"


@dataclass(kw_only=True)
class Runtime:
    """Everything that use cases need. Made by `open_runtime`."""

    settings: Settings
    database: Database
    vault: Vault
    hub: Hub
    engine: Engine | None = None
    """`None` in a process that executes no runs, and in one whose engine is not up yet."""
    executor: Executor | None = None
    """In a terminal: executes what its run starts, since there may be nobody else."""
    awaits_engine: bool = False
    """Whether an engine is still to come up in this process."""
    binaries: Path | None = None
    """Where psql and pg_dump lie, with the embedded database."""

    async def submit(self, run: Submission) -> None:
        """Have a committed run executed: here, or else by the first worker that hears of it; that may be the engine of
        this process, as soon as it is up."""
        if self.engine is not None:
            await self.engine.submit(run)
            return
        if self.executor is not None:
            self.executor.begin(run)
            return
        async with self.database.service_session() as connection:
            await run_queries.offer(connection, run.id)

    async def world(self, owner_id: str, folder: str | None) -> World:
        """What loops of an owner may reach; with a folder, those that were pushed from it.

        Raises:
            InvalidInput: one of the owner's secrets can't be opened.
        """
        local = self.settings.mode == "local"
        named: Mapping[str, str] = await values_of(self.database, self.vault, owner_id)
        async with self.database.service_session() as connection:
            workspace = await get_settings(connection)
        pushed = local and folder is not None
        return World(
            folder=Path(folder) if pushed and folder else self.settings.data_folder / "nowhere",
            environ={**os.environ, **named} if local else named,
            allow_hosts=self.settings.egress_allow.union(workspace.allow_hosts),
            prices=workspace.prices,
            rules=await rules_in_force(self.database),
            trusts_writer=pushed,
            trusts_loopback=local,
            local_code=pushed,
        )

    async def load(self, run: TakenRun) -> Loop:
        """Make the loop of a run from what the run keeps of it.

        Raises:
            InvalidInput: it can't work here and now, and why.
        """

        from ..builtins.registry import Builtins
        from .assemble import assemble
        from .desk import RunDesk

        async with self.database.service_session() as connection:
            folder = await run_queries.run_folder(connection, run.id)
            granted = await run_queries.builtins_of(connection, run.id)
            conversation = await threads.conversation_of(connection, run.id) if run.is_thread else None
        world = await self.world(str(run.owner_id), folder)
        spec = LoopSpec.model_validate(run.spec)
        refuse_local_code(run.spec, world)
        await refuse_private_hosts(spec, world)
        agents = replace(self, database=self.database.for_agents())
        desk = RunDesk(agents, Caller(user_id=str(run.owner_id), role="member", door=run.door))
        builtins = Builtins(granted, desk)
        return assemble(spec, folder=world.folder, world=world, builtins=builtins, conversation=conversation)

    def owner(self) -> Caller:
        """The owner of a local installation, as whom the command line acts.

        Raises:
            InvalidInput: there is no such owner, since users sign in here.
        """
        if self.settings.mode == "shared":
            message = "users sign in here, so the command line does not know who you are; use the API with your token"
            raise InvalidInput(Problem(field="", message=message))
        return Caller(user_id=LOCAL_OWNER, role="admin", door="cli")


def local_token(settings: Settings) -> str:
    """What the owner of a local installation signs in with.

    Raises:
        InvalidInput: its file in the data folder can't be used.
    """
    return base64.urlsafe_b64encode(private_bytes(settings.data_folder / "token")).decode().rstrip("=")


@asynccontextmanager
async def open_runtime(settings: Settings, *, engine: bool = True, urls: Urls | None = None) -> AsyncGenerator[Runtime]:
    """Open all that use cases need: the database up and migrated, and with `engine` the means to execute runs.

    Raises:
        InvalidInput: a setting or the data folder can't be used.
        StoreUnavailable: the database does not come up.
    """
    settings.check()
    async with AsyncExitStack() as stack:
        if engine:  # its imports take as long as the database does to come up
            stack.callback(asyncio.create_task(anyio.to_thread.run_sync(_import_engine)).cancel)
        binaries = None
        if urls is None:
            urls, binaries = await _database(settings, stack)
        await prepare(urls, local=settings.mode == "local")
        database = await stack.enter_async_context(Database(urls=urls))
        key = settings.secret_key.get_secret_value() if settings.secret_key else None
        vault = open_vault(key, settings.data_folder)
        hub = Hub(database)
        runtime = Runtime(settings=settings, database=database, vault=vault, hub=hub, binaries=binaries)
        await stack.enter_async_context(hub)
        if engine:
            await stack.enter_async_context(engine_of(runtime))
        yield runtime


@asynccontextmanager
async def engine_of(runtime: Runtime) -> AsyncGenerator[Engine]:
    """Execute runs in this process as long as the block lasts."""
    await anyio.to_thread.run_sync(_import_engine)
    from ..agents.clients import shared_connections
    from .delivering import Delivering
    from .engine import Engine, Limits
    from .pruning import Pruning
    from .ticking import Ticking

    settings, traces = runtime.settings, set_up()
    engine = Engine(
        database=runtime.database,
        load=runtime.load,
        limits=Limits(per_process=settings.runs_per_process, per_user=settings.runs_per_user),
        viewers=runtime.hub,
        grace_seconds=settings.grace_seconds,
    )
    try:
        async with shared_connections(), engine:  # to the models' providers: they outlast the runs
            runtime.engine, runtime.awaits_engine = engine, False
            pruning = Pruning(database=runtime.database, engine_days=settings.engine_days)
            delivering = Delivering(runtime=runtime, grace_seconds=settings.grace_seconds)
            async with Ticking(runtime=runtime), pruning, delivering:
                yield engine
    finally:
        if traces:
            await anyio.to_thread.run_sync(traces.force_flush, int(FLUSH_SECONDS * 1000))


@asynccontextmanager
async def engine_behind(runtime: Runtime) -> AsyncGenerator[asyncio.Task[None]]:
    """`engine_of`, without waiting until it is up. The task that is given ends early only if it does not come up."""
    leave = asyncio.Event()
    runtime.awaits_engine = True

    async def carry() -> None:
        async with engine_of(runtime):
            await leave.wait()

    carrying = asyncio.create_task(carry())
    try:
        yield carrying
    finally:
        leave.set()
        await asyncio.wait([carrying])


def _import_engine() -> None:
    from . import assemble, delivering, engine, pruning, ticking

    _ = assemble, delivering, engine, pruning, ticking


async def _database(settings: Settings, stack: AsyncExitStack) -> tuple[Urls, Path | None]:
    """How to reach the database that the settings name; the embedded one is started."""
    if settings.database_url:
        direct = settings.database_url_direct or settings.database_url
        pooled = settings.database_url_direct is not None
        return Urls(app=settings.database_url, direct=direct, engine=direct, pooled=pooled), None
    server = EmbeddedServer(settings.data_folder)
    await anyio.to_thread.run_sync(server.start)
    stack.push_async_callback(anyio.to_thread.run_sync, server.stop)
    await anyio.to_thread.run_sync(create_database, server.url(database="postgres"))
    app = server.url(APP, DATABASE)
    return Urls(app=app, direct=server.url(database=DATABASE), engine=app), server.binaries


def create_database(maintenance: str) -> None:
    """Make the database in a fresh embedded server."""
    with psycopg.connect(maintenance, autocommit=True) as connection:
        rows = connection.execute("select from pg_database where datname = %s", (DATABASE,))
        if not rows.rowcount:
            try:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                return  # another process was quicker


async def prepare(urls: Urls, *, local: bool) -> None:
    """Bring a database to this version, and in local mode make its owner.

    Raises:
        InvalidInput: the database is of a newer version.
        DatabaseAway: it can't be reached.
    """
    try:
        async with await connect_direct(urls) as connection:
            await migrate(connection)
            if local:
                await profiles.make_owner(connection, LOCAL_OWNER, "admin")
    except psycopg.OperationalError as error:
        raise DatabaseAway(f"the database went away: {error}") from error
