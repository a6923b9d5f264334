"""The engine: DBOS carries the runs of this process; cancelling, heartbeats and taking over are ours."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dbos import DBOS, DBOSConfig, EnqueueOptions, Serializer, SetWorkflowID

from ..core.errors import DatabaseAway, InvalidInput, StaleEpoch, StoreUnavailable
from ..core.events import TextDelta
from ..runner.library import Loop
from ..runner.plan import Halt
from ..runner.workflow import drive
from ..store import runs, workers
from ..store.database import Database, connect_direct
from ..store.run_store import PgRunStore, TakenRun, take_run
from ..store.runs import Submission

FORMAT = "1"
"""The workflow-format number: raised only when older code could not go on with a run of newer code. A build with the
same number continues the runs of the one before it."""

QUEUE = "runs"

BEAT_SECONDS = 5.0
"""How often a worker says that it lives."""

DEAD_AFTER_SECONDS = 15.0
"""A worker that was silent for so long is taken for dead; its runs go to others within 30 s of its death."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many runs go on at once."""

    per_process: int = 1000
    per_user: int = 100
    """In one process, so that one user's runs leave room for another's."""
    poll_seconds: float = 0.2
    """How often the queue is looked at."""


@dataclass
class _Work:
    """A run that this process executes."""

    store: PgRunStore
    halt: Halt = field(default_factory=Halt)
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True)
class Engine:
    """Executes runs in this process. Open it with `async with`; one in a process, since DBOS is one in a process.

    Args:
        database: where the runs are.
        load: makes the loop of a run from what the run keeps of it.
        limits: how many runs at once.
        executor: this worker's id; a new one each time, so that a dead worker's runs are taken over, not waited for.
        on_text: gets the text deltas of runs in this process.
    """

    database: Database
    load: Callable[[TakenRun], Coroutine[Any, Any, Loop]]
    limits: Limits = field(default_factory=Limits)
    executor: str = field(default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    on_text: Callable[[TextDelta], None] | None = None
    beat_seconds: float = BEAT_SECONDS
    dead_after_seconds: float = DEAD_AFTER_SECONDS
    grace_seconds: float = 20.0
    """How long requests in flight may take to finish when this process leaves."""
    _working: dict[str, _Work] = field(default_factory=dict[str, "_Work"])
    _owners: dict[str, str] = field(default_factory=dict[str, str])
    """Who owns the runs that this process executes or is about to."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _leaving: bool = False
    _loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Engine:
        global _engine  # noqa: PLW0603 - DBOS itself is one in a process, and its workflows are module functions
        if _engine is not None:
            raise RuntimeError("there is an engine in this process already")
        self._loop = asyncio.get_running_loop()
        _engine = self
        async with self.database.service_session() as connection:
            await workers.beat(connection, self.executor)
        await asyncio.to_thread(self._launch)
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=self.limits.per_process,
            partition_worker_concurrency=self.limits.per_user,
            polling_interval_sec=self.limits.poll_seconds,
            on_conflict="always_update",
        )
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._hear())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave: requests in flight finish and are recorded, then the runs are put back into the queue."""
        global _engine  # noqa: PLW0603
        self._leaving = True
        for work in self._working.values():
            work.store.leaving = True
        if running := [work.done.wait() for work in self._working.values()]:
            await asyncio.wait([asyncio.ensure_future(w) for w in running], timeout=self.grace_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(DatabaseAway):  # then others notice by our silence
            async with self.database.service_session() as connection:
                await workers.leave(connection, self.executor)
                orphans = await runs.requeue_orphans(connection)
            for orphan in orphans:
                await self._enqueue(orphan)
        await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)
        _engine = None

    # --- Starting and stopping runs ---

    async def submit(self, run: Submission) -> None:
        """Have a run executed: here and now if there is room, else by whoever has room first."""
        owner = str(run.owner_id)
        busy = sum(each == owner for each in self._owners.values())
        if self._leaving or len(self._owners) >= self.limits.per_process or busy >= self.limits.per_user:
            await self._enqueue(run)
            return
        self._owners[run.id] = owner
        with SetWorkflowID(run.workflow_id):
            await DBOS.start_workflow_async(execute_run, run.id)

    async def _enqueue(self, run: Submission) -> None:
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": run.workflow_id,
            "queue_partition_key": str(run.owner_id),
            "app_version": FORMAT,
        }
        await DBOS.enqueue_workflow_with_options_async(options, run.id)

    def halt(self, run_id: str) -> None:
        """Cancel a run if it goes on in this process."""
        if work := self._working.get(run_id):
            work.halt("cancelled")

    @property
    def running(self) -> int:
        """How many runs go on in this process."""
        return len(self._working)

    # --- Executing one run ---

    async def execute(self, run_id: str) -> str:
        """Execute a run to its end, or until another worker takes it; returns how that went, for the engine's books."""
        try:
            while True:
                try:
                    run = await take_run(self.database, run_id, self.executor)
                    return await self._execute(run) if run else "finished already"
                except StaleEpoch:
                    return "in other hands"
                except DatabaseAway:
                    await asyncio.sleep(1)  # the run goes on when it is back
        finally:
            self._owners.pop(run_id, None)

    async def _execute(self, run: TakenRun) -> str:
        self._owners[run.id] = str(run.owner_id)
        direction = "minimize" if run.spec.get("direction") == "minimize" else "maximize"
        store = PgRunStore(
            self.database,
            run.id,
            run.epoch,
            wallet=run.wallet,
            started_at=run.started_at,
            direction=direction,
            on_text=self.on_text,
        )
        work = self._working[run.id] = _Work(store)
        store.leaving = self._leaving
        try:
            result = await drive(run, store, await self.load(run), work.halt)
            if not result.recorded:
                await self._give_up(run, result.error or result.sentence)
            return result.stop_reason
        except DatabaseAway:
            raise
        except (InvalidInput, StoreUnavailable) as error:
            await self._give_up(run, str(error))
            return "error"
        finally:
            del self._working[run.id]
            work.done.set()

    async def _give_up(self, run: TakenRun, error: str) -> None:
        """End a run that can't go on; its best candidate is on record already."""
        async with self.database.service_session() as connection:
            await runs.fail(connection, run.id, run.epoch, error)

    # --- Other workers ---

    async def _beat(self) -> None:
        """Say that we live, and put the runs of those who don't back into the queue."""
        while True:
            with suppress(DatabaseAway):  # nobody can take over either; we go on when it is back
                async with self.database.service_session() as connection:
                    await workers.beat(connection, self.executor)
                    await workers.bury(connection, self.dead_after_seconds)
                    lost = await runs.requeue_orphans(connection)
                    lost += await runs.waiting(connection, 2 * self.dead_after_seconds)
                for run in lost:
                    await self._enqueue(run)
            await asyncio.sleep(self.beat_seconds)

    async def _hear(self) -> None:
        """Listen for requests to cancel runs, from whatever process took them."""
        while True:
            with suppress(DatabaseAway, OSError):
                async with await connect_direct(self.database.urls) as connection:
                    await connection.execute("listen loopwright_cancel")
                    async with self.database.service_session() as session:
                        for run_id in await runs.cancelled(session, self.executor):
                            self.halt(run_id)
                    async for notification in connection.notifies():
                        self.halt(notification.payload)
            await asyncio.sleep(0.5)

    def _launch(self) -> None:
        config: DBOSConfig = {
            "name": "loopwright",
            "system_database_url": self.database.urls.direct,
            "dbos_system_schema": "dbos",
            "application_version": FORMAT,
            "executor_id": self.executor,
            "sys_db_pool_size": 8,
            "max_executor_threads": 32,
            "log_level": "ERROR",
            "serializer": _Json(),
        }
        DBOS(config=config)
        DBOS.launch()


class _Json(Serializer):
    """What DBOS keeps of our workflows is a run's id and a word: JSON is enough, and can't run code as pickle can."""

    def serialize(self, data: object) -> str:
        return json.dumps(data)

    def deserialize(self, serialized_data: str) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        return json.loads(serialized_data)

    def name(self) -> str:
        return "json"


WORKFLOW = "loopwright.run"

_engine: Engine | None = None


@DBOS.workflow(name=WORKFLOW)
async def execute_run(run_id: str) -> str:
    """One execution of a run, as DBOS sees it: a workflow without steps, since the journal of the run is its memory."""
    engine = _engine
    if engine is None or engine._loop is None:  # pyright: ignore[reportPrivateUsage]
        raise StoreUnavailable("the engine has left")
    if asyncio.get_running_loop() is engine._loop:  # pyright: ignore[reportPrivateUsage]
        return await engine.execute(run_id)
    # DBOS runs what comes from its queue on an event loop of its own; connections belong to the engine's.
    running = asyncio.run_coroutine_threadsafe(engine.execute(run_id), engine._loop)  # pyright: ignore[reportPrivateUsage]
    return await asyncio.wrap_future(running)
