"""The engine: DBOS carries the queue; sharing it out and taking over the runs of dead workers are ours."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Self

from dbos import DBOS, DBOSConfig, EnqueueOptions, Serializer, SetWorkflowID

from ..cancellation import end_all
from ..core.errors import DatabaseAway, StoreUnavailable
from ..store import runs, workers
from ..store.run_store import TakenRun
from ..store.runs import Submission
from ..tracing import wanted
from .executor import FORMAT, Executor

QUEUE = "runs"

DEAD_AFTER_SECONDS = 15.0
"""A worker that was silent for so long is taken for dead. Its runs go to others within 30 s of its death: at most 15 s
until it is taken for dead, 5 s until somebody looks, and what the queue takes. On the same machine its death is seen,
which takes 5 s."""

SCHEDULES_SECONDS = 2.0
"""How often DBOS looks for schedules that were made or changed."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many runs go on at once."""

    per_process: int = 1000
    per_user: int = 100
    """In one process, so that one user's runs leave room for another's."""
    poll_seconds: float = 0.2
    """How often the queue is looked at."""


@dataclass(kw_only=True)
class Engine(Executor):
    """Executes the runs of the queue, too, and those of workers that died. Open it with `async with`; one in a process,
    since DBOS is one in a process.

    Args:
        limits: how many runs at once.
        dead_after_seconds: after how long a silent worker is taken for dead.
    """

    limits: Limits = field(default_factory=Limits)
    dead_after_seconds: float = DEAD_AFTER_SECONDS
    takes_queue: ClassVar[bool] = True
    _owners: dict[str, str] = field(default_factory=dict[str, str])
    """Who owns the runs that this process executes or is about to."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when somebody says that there are runs to be found."""
    _loop: asyncio.AbstractEventLoop | None = None
    _in_touch_since: float | None = None
    """Since when this process has seen the database without a break, by the monotonic clock."""
    _looked_at: float = 0.0
    _workers: int = 1
    """How many workers share the queue, as of the last look."""
    _share: int = 0
    """How many runs of the queue a worker may have, as the queue was last told."""

    async def __aenter__(self) -> Self:
        global _engine  # noqa: PLW0603 - DBOS itself is one in a process, and its workflows are module functions
        if _engine is not None:
            raise RuntimeError("there is an engine in this process already")
        self._loop = asyncio.get_running_loop()
        _engine = self
        try:
            await self._say_that_we_live()
            async with self.database.service_session() as connection:
                self._workers = len(await workers.living(connection))
            await asyncio.to_thread(self._launch)
            await self._share_out()
        except BaseException:
            _engine = None
            _renew_threads()
            raise
        self._tasks = [asyncio.create_task(each) for each in (self._beat(), self._watch(), self._hear())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave: requests in flight finish and are recorded, then the runs are put back into the queue."""
        global _engine  # noqa: PLW0603
        self._leaving = True
        try:
            await self._wind_up()
            await end_all(self._tasks)
            await asyncio.to_thread(DBOS.destroy, workflow_completion_timeout_sec=0)
            _renew_threads()
            await self._say_that_we_leave()
        finally:
            _engine = None

    # --- Starting and stopping runs ---

    async def submit(self, run: Submission) -> None:
        """Have a run executed: here and now if there is room, else by whoever has room first."""
        owner = str(run.owner_id)
        if not self._has_room(owner):
            await self._enqueue(run)
            return
        self._owners[run.id] = owner
        started = False
        try:
            with SetWorkflowID(run.workflow_id):
                handle = await DBOS.start_workflow_async(execute_run, run.id, run.submissions)
            started = isinstance(getattr(handle, "task", None), asyncio.Future)  # else it was submitted before
        finally:
            if not started:
                self._owners.pop(run.id, None)

    def _has_room(self, owner: str) -> bool:
        """Whether a run may begin here without a place in the queue, where all workers find it."""
        if self._leaving or (self._workers > 1 and self._owners):
            return False
        busy = sum(each == owner for each in self._owners.values())
        return len(self._owners) < self.limits.per_process and busy < self.limits.per_user

    async def _enqueue(self, run: Submission) -> None:
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": run.workflow_id,
            "queue_partition_key": str(run.owner_id),
            "app_version": FORMAT,
        }
        await DBOS.enqueue_workflow_with_options_async(options, run.id, run.submissions)
        if self._workers > 1:
            await self._share_out()

    async def _share_out(self) -> None:
        """Tell the queue how many runs a worker may have: an equal share of all there are, so that the first one to
        look does not take everything; at most what the limits say."""
        share = self.limits.per_process
        if self._workers > 1:
            async with self.database.service_session() as connection:
                share = max(1, min(share, math.ceil(await runs.active(connection) / self._workers)))
        if share == self._share:
            return
        await DBOS.register_queue_async(
            QUEUE,
            worker_concurrency=share,
            partition_worker_concurrency=min(share, self.limits.per_user),
            polling_interval_sec=self.limits.poll_seconds,
            on_conflict="always_update",
        )
        self._share = share

    def _taken(self, run: TakenRun) -> None:
        self._owners[run.id] = str(run.owner_id)

    def _ended(self, run_id: str) -> None:
        self._owners.pop(run_id, None)

    def _news(self) -> None:
        self._wake.set()

    # --- Other workers ---

    async def _watch(self) -> None:
        """Find the runs that nobody executes."""
        while True:
            try:
                await self._look()
            except DatabaseAway:
                self._in_touch_since = None
            except Exception:  # noqa: BLE001 - logged; this must never end
                _log.exception("looking after the other workers failed; it is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(self.beat_seconds):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self) -> None:
        async with self.database.service_session() as connection:
            if self._knows_who_is_silent():
                await workers.bury(connection, self.executor, self.dead_after_seconds)
            await workers.bury_neighbours(connection)
            lost = await runs.requeue_orphans(connection, int(FORMAT))
            late = await runs.waiting(connection, 2 * self.dead_after_seconds, int(FORMAT))
            living = await workers.living(connection)
            await runs.end_stranded(connection, int(FORMAT))
        self._workers, self._share = len(living), 0
        await self._share_out()
        for run in [*lost, *await self._unknown_to_the_queue(late, living)]:
            await self._enqueue(run)

    def _knows_who_is_silent(self) -> bool:
        """Whether this process was in touch for so long that who was silent meanwhile must be dead. After the database
        was away, or this machine asleep, others are given the time to be heard again."""
        now = time.monotonic()
        if self._in_touch_since is None or now - self._looked_at > self.dead_after_seconds:
            self._in_touch_since = now
        self._looked_at = now
        return now - self._in_touch_since >= self.dead_after_seconds

    async def _unknown_to_the_queue(self, late: Sequence[Submission], living: dict[str, int]) -> list[Submission]:
        """Of the runs that wait for long, those that wait in vain: their process died before it told the queue, or
        after the queue had given them to it and before it took them."""
        if not late:
            return []
        ids = [run.workflow_id for run in late]
        found = await DBOS.list_workflows_async(workflow_ids=ids, load_input=False, load_output=False)
        known = {each.workflow_id: each for each in found}
        unknown, dead = list[Submission](), list[Submission]()
        for run in late:
            workflow = known.get(run.workflow_id)
            if workflow is None:
                unknown.append(run)
            elif not self._is_coming(run, workflow.status, workflow.executor_id, workflow.app_version, living):
                dead.append(run)
        if dead:
            async with self.database.service_session() as connection:
                unknown += await runs.resubmit(connection, dead)
        return unknown

    def _is_coming(
        self, run: Submission, status: str, executor: str | None, version: str | None, living: dict[str, int]
    ) -> bool:
        if status in ("ENQUEUED", "DELAYED"):
            return version in {FORMAT, *(str(number) for number in living.values())}
        if status == "PENDING":
            return executor in living and (executor != self.executor or run.id in self._working)
        return False

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
            "scheduler_polling_interval_sec": SCHEDULES_SECONDS,
            "serializer": _Json(),
        }
        DBOS(config=config)
        # Its spans join ours; its switch would have its logs sent as well.
        DBOS.tracer.disable_otlp = not wanted(os.environ)
        DBOS.tracer.otel_attribute_format = "semconv"
        DBOS.launch()


def _renew_threads() -> None:
    """DBOS makes its own threads those of the event loop, and takes them along when it leaves."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="loopwright"))


class _Json(Serializer):
    """What DBOS keeps of our workflows is ids, words and times: JSON is enough, and can't run code as pickle can."""

    def serialize(self, data: object) -> str:
        return json.dumps(data, default=_as_text)

    def deserialize(self, serialized_data: str) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        return json.loads(serialized_data)

    def name(self) -> str:
        return "json"


def _as_text(value: object) -> str:
    if isinstance(value, datetime):  # when a schedule is due
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} can't be kept")


WORKFLOW = "loopwright.run"

_engine: Engine | None = None


@DBOS.workflow(name=WORKFLOW)
async def execute_run(run_id: str, submission: int) -> str:
    """One execution of a run, as DBOS sees it: a workflow without steps, since the journal of the run is its memory."""
    engine = _engine
    if engine is None or engine._loop is None:  # pyright: ignore[reportPrivateUsage]
        raise StoreUnavailable("the engine has left")
    if asyncio.get_running_loop() is engine._loop:  # pyright: ignore[reportPrivateUsage]
        return await engine.execute(run_id, submission)
    # DBOS runs what comes from its queue on an event loop of its own; connections belong to the engine's.
    running = asyncio.run_coroutine_threadsafe(engine.execute(run_id, submission), engine._loop)  # pyright: ignore[reportPrivateUsage]
    return await asyncio.wrap_future(running)
