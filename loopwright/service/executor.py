"""Executing runs in this process: taking them, driving them, heartbeats, hearing who wants them cancelled."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import psycopg

from .. import logs
from ..cancellation import end_all
from ..core.errors import DatabaseAway, LoopwrightError, StaleEpoch, StoreUnavailable
from ..core.ports import Viewers
from ..runner.library import Loop
from ..runner.plan import Halt
from ..runner.workflow import drive, end
from ..store import runs, workers
from ..store.database import Database, connect_direct
from ..store.run_store import PgRunStore, TakenRun, take_run
from ..store.runs import Submission

FORMAT = "1"
"""The workflow-format number: raised only when older code could not go on with a run of newer code. A build with the
same number continues the runs of the one before it."""

BEAT_SECONDS = 5.0
"""How often a worker says that it lives."""

HALT_SECONDS = 5.0
"""How long runs that were cut off may take to let go when this process leaves."""

AGAIN_SECONDS = 5.0
"""How long to wait before the end of a run is recorded again that could not be, for a full disk, say."""

_log = logging.getLogger(__name__)


@dataclass
class Work:
    """A run that this process executes or is about to."""

    halt: Halt = field(default_factory=Halt)
    """There before the run is taken, so that no request to cancel it is missed."""
    store: PgRunStore | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True)
class Executor:
    """Executes the runs that it is told to. Open it with `async with`.

    While it is open, other processes know that it lives, and nobody takes its runs over. `Engine` adds the queue.

    Args:
        database: where the runs are.
        load: makes the loop of a run from what the run keeps of it.
        executor: this worker's id; a new one each time, so that a dead worker's runs are taken over, not waited for.
        viewers: get the text of agents in this process as it comes.
        beat_seconds: how often to say that this worker lives.
        grace_seconds: how long requests in flight may take to finish when this process leaves.
    """

    database: Database
    load: Callable[[TakenRun], Coroutine[Any, Any, Loop]]
    executor: str = field(default_factory=lambda: f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    viewers: Viewers | None = None
    beat_seconds: float = BEAT_SECONDS
    grace_seconds: float = 20.0
    takes_queue: ClassVar[bool] = False
    """Whether it also executes what others put into the queue."""
    _working: dict[str, Work] = field(default_factory=dict[str, "Work"])
    _refused: list[str] = field(default_factory=list[str])
    """Runs that the queue gave to this process while it left."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _begun: set[asyncio.Task[str]] = field(default_factory=set[asyncio.Task[str]])
    _leaving: bool = False

    async def __aenter__(self) -> Self:
        await self._say_that_we_live()
        self._tasks = [asyncio.create_task(each) for each in (self._beat(), self._hear())]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave: requests in flight finish and are recorded, then the runs are put back into the queue."""
        self._leaving = True
        await self._wind_up()
        await end_all(self._tasks)
        await self._say_that_we_leave()

    async def _say_that_we_live(self) -> None:
        async with self.database.service_session() as connection:
            await workers.beat(connection, self.executor, int(FORMAT), takes_queue=self.takes_queue)

    async def _say_that_we_leave(self) -> None:
        with suppress(DatabaseAway):  # then others notice by our silence
            async with self.database.service_session() as connection:
                await workers.leave(connection, self.executor)
                await runs.release(connection, self.executor, self._refused)

    async def _wind_up(self) -> None:
        """Let what is in flight finish; what takes too long is cut off, and charged whole by whoever goes on."""
        stores = [work.store for work in self._working.values() if work.store]
        for store in stores:
            store.leaving = True
        await self._until_done(self.grace_seconds)
        for work in self._working.values():
            if work.store:
                work.store.abandon()
            work.halt("cancelled")
        await self._until_done(HALT_SECONDS)

    async def _until_done(self, seconds: float) -> None:
        if waits := [asyncio.ensure_future(work.done.wait()) for work in self._working.values()]:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for each in late:
                each.cancel()

    def halt(self, run_id: str) -> None:
        """Cancel a run if it goes on in this process."""
        if work := self._working.get(run_id):
            work.halt("cancelled")

    @property
    def running(self) -> int:
        """How many runs go on in this process."""
        return len(self._working)

    # --- Executing one run ---

    def begin(self, run: Submission) -> None:
        """Execute a run in the background; what is not over when this process leaves goes back into the queue."""
        task = asyncio.create_task(self.execute(run.id, run.submissions))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def execute(self, run_id: str, submission: int) -> str:
        """Execute a run to its end, or until another worker takes it; returns how that went, for the engine's books."""
        with logs.of_run(run_id):
            return await self._execute(run_id, submission)

    async def _execute(self, run_id: str, submission: int) -> str:
        while before := self._working.get(run_id):  # its last execution is about to end
            await before.done.wait()
        if self._leaving:
            self._refused.append(run_id)
            return "left to others"
        work = self._working[run_id] = Work()
        try:
            while True:
                try:
                    return await self._take(run_id, submission, work)
                except StaleEpoch:
                    return "in other hands"
                except DatabaseAway:
                    if self._leaving:
                        return "left to others"
                    await asyncio.sleep(1)  # the run goes on when it is back
        finally:
            del self._working[run_id]
            self._ended(run_id)
            work.done.set()

    async def _take(self, run_id: str, submission: int, work: Work) -> str:
        run = await take_run(self.database, run_id, self.executor, submission=submission, format_number=int(FORMAT))
        if run is None:
            return "finished, or in other hands"
        self._taken(run)
        _log.info("%s takes the run, for the %d. time", self.executor, run.epoch)
        store = work.store = PgRunStore(
            self.database,
            run.id,
            run.epoch,
            wallet=run.wallet,
            started_at=run.started_at,
            direction=run.direction,
        )
        store.leaving = self._leaving
        try:
            result = await drive(run, store, await self.load(run), work.halt, self.viewers)
        except (StaleEpoch, DatabaseAway):
            raise
        except Exception as error:  # noqa: BLE001 - a run that nobody goes on with has to end, with a reason
            _log.warning("the run %s can't go on", run.id, exc_info=not isinstance(error, LoopwrightError))
            text = str(error) if isinstance(error, LoopwrightError) else f"{type(error).__name__}: {error}"
            await self._give_up(run, store, text)
            return "error"
        if not result.recorded:
            await self._give_up(run, store, result.error or result.sentence)
        _log.info("the run is over: %s", result.stop_reason)
        return result.stop_reason

    async def _give_up(self, run: TakenRun, store: PgRunStore, error: str) -> None:
        """End a run that can't go on; its best candidate is on record already."""
        try:
            await end(run, store, "error", error)
        except DatabaseAway:
            raise
        except StoreUnavailable:
            _log.exception("the end of the run %s can't be written as an event", run.id)
        else:
            return None
        while True:
            try:
                return await store.fail(error)
            except DatabaseAway:
                raise
            except StoreUnavailable:  # a full disk, say: until there is room the run stands still
                await asyncio.sleep(AGAIN_SECONDS)

    def _taken(self, run: TakenRun) -> None:
        """For those who count the runs of this process: one was taken."""

    def _ended(self, run_id: str) -> None:
        """For those who count the runs of this process: one is not executed here any more."""

    # --- Other processes ---

    async def _beat(self) -> None:
        """Say that we live. Nothing else is done here that could hold it up."""
        while True:
            try:
                await self._say_that_we_live()
            except DatabaseAway:
                pass  # nobody can take over either; we go on when it is back
            except Exception:  # noqa: BLE001 - logged; this must never end, for who does not beat is taken for dead
                _log.exception("the heartbeat failed; it is tried again")
            await asyncio.sleep(self.beat_seconds)

    def _news(self) -> None:
        """Somebody says that there are runs to be found."""

    async def _hear(self) -> None:
        """Listen for requests to cancel runs, and for news of runs to be found, from whatever process they come."""
        while True:
            try:
                async with await connect_direct(self.database.urls) as connection:
                    await connection.execute("listen loopwright_cancel")
                    await connection.execute("listen loopwright_queue")
                    async with self.database.service_session() as session:
                        for run_id in await runs.cancelled(session, self.executor):
                            self.halt(run_id)
                    async for notification in connection.notifies():
                        if notification.channel == "loopwright_queue":
                            self._news()
                        else:
                            self.halt(notification.payload)
            except (DatabaseAway, psycopg.Error, OSError) as error:
                _log.debug("not in touch with the database: %s", error)
            except Exception:  # noqa: BLE001 - logged; this must never end, or nobody could cancel a run
                _log.exception("listening failed; it is tried again")
            await asyncio.sleep(0.5)
