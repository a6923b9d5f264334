"""What happens when a schedule is due.

DBOS's scheduler keeps the time: it calls us once for each schedule and due time, whatever the number of processes.
What is due and what came of it stands in our own tables, so that a call that is lost, late or repeated changes nothing:
each call decides all times up to now while it holds the schedule, and a run is made in one transaction with the note
that it was started. A look every few seconds makes up for calls that were lost with their process.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from dbos import DBOS

from ..cancellation import end_all
from ..core.errors import Conflict, DatabaseAway, LoopwrightError, NotFound
from ..core.records import Firing, Schedule
from ..store import schedules as store
from ..store.database import Connection, connect_direct
from .cron import MOST_MISSED, Cron
from .people import caller_of
from .runtime import Runtime
from .start import Wanted, begin, prepare

LATE_SECONDS = 90.0
"""A due time that is decided later than this was missed: the schedule's backfill says what happens then. DBOS may call
ten seconds late, to spare the database."""

LOOK_SECONDS = 5.0
"""How often to look for what is due and not decided, or waits."""

MOST_WAITING = 100
"""How many due times of one schedule may wait for the runs before them."""

MOST_AT_ONCE = 4
"""How many schedules one process decides at once: each holds connections while it does."""

PREFIX = "schedule:"

_log = logging.getLogger(__name__)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(kw_only=True)
class Ticking:
    """Fires schedules in this process. Open it with `async with`, while the engine is open; one in a process."""

    runtime: Runtime
    clock: Callable[[], datetime] = _now
    look_seconds: float = LOOK_SECONDS
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))

    async def __aenter__(self) -> Ticking:
        global _ticking  # noqa: PLW0603 - DBOS is one in a process, and its workflows are module functions
        self._loop = asyncio.get_running_loop()
        _ticking = self
        self._tasks = [asyncio.create_task(each) for each in (self._watch(), self._hear())]
        return self

    async def __aexit__(self, *_: object) -> None:
        global _ticking  # noqa: PLW0603
        _ticking = None
        await end_all(self._tasks)

    async def tick(self, schedule_id: UUID) -> None:
        """Decide what is due of a schedule up to now, and start what may start."""
        async with self._turns:
            await self._tick(schedule_id)

    async def _tick(self, schedule_id: UUID) -> None:
        now = self.clock()
        for step in (self._decide, self._start_waiting):
            async with self.runtime.database.service_session() as connection, connection.transaction():
                schedule = await store.get_schedule(connection, schedule_id, lock=True)
                if schedule is None:
                    return
                await step(connection, schedule, now)

    async def _decide(self, connection: Connection, schedule: Schedule, now: datetime) -> None:
        """Write down the times that are due, and which of them are to start."""
        if schedule.status != "active" or schedule.next_due_at is None or schedule.next_due_at > now:
            return
        cron = Cron.stored(schedule.cron, schedule.zone)
        due = cron.between(schedule.next_due_at, now)
        late = [each for each in due if (now - each).total_seconds() > LATE_SECONDS]
        reasons = missed(schedule, late, any_on_time=len(late) < len(due))
        for each in due:
            reason = reasons.get(each, "")
            start = each + timedelta(seconds=jitter(schedule.id, each, schedule.jitter_seconds))
            outcome = "missed" if reason else "waiting"
            await store.add_firing(connection, schedule.id, each, start_at=start, outcome=outcome, reason=reason)
        await store.set_next(connection, schedule.id, cron.next_after(now))

    async def _start_waiting(self, connection: Connection, schedule: Schedule, now: datetime) -> None:
        """Start what may start, oldest first. Each run is there as soon as it is written down that it was started."""
        for firing in await store.waiting(connection, schedule.id, now):
            await self._too_many_failures(connection, schedule)
            schedule = await store.get_schedule(connection, schedule.id) or schedule  # it may be disabled by now
            if schedule.status != "active":
                await store.settle(connection, firing, "skipped", f"the schedule was {schedule.status}")
            elif schedule.overlap == "parallel" or not await store.goes_on(connection, schedule.id):
                await self._start(connection, schedule, firing)
            elif schedule.overlap == "queue":
                await self._refuse_crowd(connection, schedule, now)
                return
            else:
                await store.settle(connection, firing, "skipped", "the run before it was not over")
        await self._too_many_failures(connection, schedule)

    async def _refuse_crowd(self, connection: Connection, schedule: Schedule, now: datetime) -> None:
        """Where too many wait for the run before them, the newest are dropped."""
        for firing in (await store.waiting(connection, schedule.id, now))[MOST_WAITING:]:
            reason = f"{MOST_WAITING} others wait for the run before them"
            await store.settle(connection, firing, "skipped", reason)

    async def _start(self, connection: Connection, schedule: Schedule, firing: Firing) -> None:
        """Start a run as the owner, or say why none was started."""
        caller = await caller_of(self.runtime.database, str(schedule.owner_id), "schedule")
        if caller is None:
            await store.disable(connection, schedule, "its owner is not of this workspace any more")
            return
        wanted = Wanted.of(schedule.wanted)

        async def note(of_run: Connection) -> None:
            if not await store.note_started(of_run, firing, run.id):
                raise Conflict("it was decided meanwhile")

        try:
            run = await prepare(self.runtime, caller, schedule.loop_id, schedule.agent_id, wanted)
            await begin(self.runtime, caller, run, also=note)
        except NotFound:
            await store.disable(connection, schedule, "what it starts is gone, or is not its owner's to see any more")
        except DatabaseAway:
            raise
        except LoopwrightError as error:
            await store.settle(connection, firing, "failed", str(error)[:2000])

    async def _too_many_failures(self, connection: Connection, schedule: Schedule) -> None:
        """Disable a schedule that failed too often in a row."""
        if schedule.status != "active" or (
            await store.failures_in_a_row(connection, schedule.id) < schedule.max_failures
        ):
            return
        times = "time" if schedule.max_failures == 1 else "times in a row"
        await store.disable(connection, schedule, f"it failed {schedule.max_failures} {times}; see why, and resume it")

    # --- keeping up ---

    async def look(self) -> None:
        """Make DBOS's schedules those of the table, and tick what is due and was not decided, or waits."""
        await self._apply()
        async with self.runtime.database.service_session() as connection:
            found = await store.overdue(connection, self.clock())
        for schedule_id in found:
            try:
                await self.tick(schedule_id)
            except DatabaseAway:
                raise
            except Exception:  # noqa: BLE001 - logged; one schedule must not keep the others from theirs
                _log.exception("the schedule %s can't be decided; it is tried again", schedule_id)

    async def _apply(self) -> None:
        async with self.runtime.database.service_session() as connection:
            wanted = {f"{PREFIX}{key}": (cron, zone) for key, cron, zone in await store.active(connection)}
        known: dict[str, Any] = {
            each["schedule_name"]: (each["schedule"], each["cron_timezone"])
            for each in await DBOS.list_schedules_async(schedule_name_prefix=PREFIX)
        }
        for name in known.keys() - wanted.keys():
            await DBOS.delete_schedule_async(name)
        changed = [name for name, definition in wanted.items() if known.get(name) != definition]
        if changed:
            await DBOS.apply_schedules_async(
                [
                    {
                        "schedule_name": name,
                        "workflow_fn": fire,
                        "schedule": wanted[name][0],
                        "context": name.removeprefix(PREFIX),
                        "cron_timezone": wanted[name][1],
                    }
                    for name in changed
                ]
            )

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except DatabaseAway:
                pass  # nothing can start meanwhile; what is missed is made up for when it is back
            except Exception:  # noqa: BLE001 - logged; this must never end
                _log.exception("looking after the schedules failed; it is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(self.look_seconds):
                    await self._wake.wait()
            self._wake.clear()

    async def _hear(self) -> None:
        """Listen for changed schedules, so that they hold at once."""
        while True:
            try:
                async with await connect_direct(self.runtime.database.urls) as connection:
                    await connection.execute("listen loopwright_schedules")
                    async for _ in connection.notifies():
                        self._wake.set()
            except (DatabaseAway, psycopg.Error, OSError) as error:
                _log.debug("not in touch with the database: %s", error)
            except Exception:  # noqa: BLE001 - logged; this must never end
                _log.exception("listening for schedules failed; it is tried again")
            await asyncio.sleep(0.5)


def missed(schedule: Schedule, late: Sequence[datetime], *, any_on_time: bool) -> dict[datetime, str]:
    """Why late times don't start, by the schedule's backfill: those that aren't named do."""
    reason = "nothing was running to start it"
    if schedule.backfill == "no":
        return dict.fromkeys(late, reason)
    if schedule.backfill == "one":
        kept = late[:0] if any_on_time else late[-1:]
        return {each: f"{reason}; the last one stands for all" for each in late if each not in kept}
    too_old = late[:-MOST_MISSED]
    return dict.fromkeys(too_old, f"{reason}; only the last {MOST_MISSED} are made up for")


def jitter(schedule_id: UUID, due_at: datetime, most: int) -> float:
    """How many seconds a due time is put off: by chance, but the same for whoever asks."""
    if most == 0:
        return 0.0
    digest = hashlib.sha256(f"{schedule_id} {due_at.astimezone(UTC).isoformat()}".encode()).digest()
    return round(int.from_bytes(digest[:8]) / 2**64 * most, 3)


_ticking: Ticking | None = None


@DBOS.workflow(name="loopwright.schedule")
async def fire(due_at: object, schedule_id: str) -> None:
    """A schedule is due, as DBOS sees it. When is for our tables to say: this call may be late, or repeated."""
    ticking = _ticking
    _ = due_at
    if ticking is None or ticking._loop is None:  # pyright: ignore[reportPrivateUsage]
        return  # this process leaves; another one looks
    # DBOS runs what comes from its queue on an event loop of its own; connections belong to the application's.
    ticked = asyncio.run_coroutine_threadsafe(ticking.tick(UUID(schedule_id)), ticking._loop)  # pyright: ignore[reportPrivateUsage]
    try:
        await asyncio.wrap_future(ticked)
    except Exception:  # noqa: BLE001 - logged; nothing is lost, since it is looked for again
        _log.warning("the schedule %s was not decided; it is tried again", schedule_id, exc_info=True)
