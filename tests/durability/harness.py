"""Kills workers at random points, again and again, and holds what became of their runs against undisturbed ones.

`python -m tests.durability.harness --schedules 1000 --seed 7` runs as many as one likes; CI runs some.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from loopwright.core.events import EVENT, RunEvent
from loopwright.store.database import Database
from loopwright.store.embedded import EmbeddedServer

from ..postgres import OWNER, open_database, server
from .loops import IN_FLIGHT, KINDS
from .outside import Outside, outside
from .stage import (
    Outcome,
    Workers,
    Zygote,
    all_rows,
    insert_run,
    money_of,
    new_tag,
    outcome_of,
    running_zygote,
    until_finished,
    workers,
)


@dataclass(frozen=True)
class Kill:
    """When to kill a worker after its start: at a moment of the outside, or after a time."""

    at_moment: int | None
    """At the so manieth thing that happens outside, counted from the worker's start."""
    after: float
    """Seconds after that moment, or after the start of the process."""


@dataclass(frozen=True)
class Schedule:
    """What is run, and how it is disturbed."""

    kinds: tuple[str, ...]
    kills: tuple[Kill, ...]


def schedule(seed: int) -> Schedule:
    """A schedule, the same for the same seed."""
    dice = random.Random(seed)
    kinds = tuple(dice.choices(list(KINDS), k=dice.choice((1, 1, 2))))
    return Schedule(kinds, tuple(_kill(dice) for _ in range(dice.choice((1, 1, 2, 2, 3)))))


def _kill(dice: random.Random) -> Kill:
    if dice.random() < 0.75:  # something happens every few milliseconds: in between, too
        return Kill(dice.randint(1, 25), dice.choice((0, 0, dice.uniform(0, 0.004), dice.uniform(0, 0.03))))
    return Kill(None, dice.uniform(0, 0.8))  # while it starts, recovers, works


@dataclass(frozen=True)
class Undisturbed:
    """What a loop comes to when nobody is killed."""

    outcome: Outcome
    requests: int


@dataclass
class Harness:
    """One database, one outside, one zygote; runs schedule after schedule."""

    database: Database
    world: Outside
    workers: Workers
    references: dict[str, Undisturbed] = field(default_factory=dict[str, Undisturbed])
    spent: Decimal = Decimal(0)
    """By all runs so far."""
    kills: int = 0
    extra: int = 0
    """Requests that were sent a second time."""
    runs: int = 0
    moments: Counter[str] = field(default_factory=Counter[str])
    """The last thing that had happened outside when a worker was killed."""

    async def run(self, plan: Schedule) -> None:
        """Run one schedule and check everything."""
        tags = [new_tag() for _ in plan.kinds]
        made = [
            await insert_run(self.database, KINDS[kind](self.world.url, tag))
            for kind, tag in zip(plan.kinds, tags, strict=True)
        ]
        kills = await self._disturb(plan.kills, made)
        for kind, tag, run_id in zip(plan.kinds, tags, made, strict=True):
            await self._check(run_id, tag, kills * IN_FLIGHT.get(kind, 1), self.references[kind])
        await self._check_month()
        self.kills += kills

    async def _disturb(self, kills: Sequence[Kill], runs: Sequence[str]) -> int:
        """Execute the runs with a worker that is killed as often as the schedule says; returns how often it was."""
        pid, done = self.workers.start([(run_id, OWNER, 0) for run_id in runs]), 0
        for kill in kills:
            if not await self._strike(kill, pid, runs):
                break
            done += 1
            pid = self.workers.start()
        await until_finished(self.database, runs)
        if pid in self.workers.alive:
            self.workers.kill(pid)  # once all is recorded, this harms nobody
        return done

    async def _strike(self, kill: Kill, pid: int, runs: Sequence[str]) -> bool:
        """Kill the worker when its time has come; says whether that was before the runs were over."""
        struck, count, last = asyncio.Event(), 0, "start"

        def strike() -> None:
            self.moments[last] += 1
            self.workers.kill(pid)
            struck.set()

        def on_moment(name: str) -> None:
            nonlocal count, last
            if not struck.is_set():
                count, last = count + 1, name
                if count == kill.at_moment and kill.after:
                    timers.append(asyncio.get_running_loop().call_later(kill.after, strike))
                elif count == kill.at_moment:
                    strike()  # at this very moment: nothing that comes after it happens first

        self.world.on_moment = on_moment
        timers = [asyncio.get_running_loop().call_later(kill.after, strike)] if kill.at_moment is None else []
        over = asyncio.ensure_future(until_finished(self.database, runs))
        waiting = asyncio.ensure_future(struck.wait())
        try:
            await asyncio.wait({over, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.world.on_moment = lambda _: None
            waiting.cancel()
            over.cancel()
            for timer in timers:
                timer.cancel()
        return struck.is_set()

    async def undisturbed(self, kinds: Iterable[str]) -> None:
        """Run a loop of each kind with nobody killed, all by one worker, to hold the others against."""
        tags = {kind: new_tag() for kind in kinds}
        made = {kind: await insert_run(self.database, KINDS[kind](self.world.url, tag)) for kind, tag in tags.items()}
        pid = self.workers.start([(run_id, OWNER, 0) for run_id in made.values()])
        await until_finished(self.database, list(made.values()))
        self.workers.kill(pid)
        for kind, run_id in made.items():
            outcome = await outcome_of(self.database, run_id)
            assert outcome.stop_reason in ("max_iterations", "converged"), outcome
            self.references[kind] = Undisturbed(outcome, self.world.requests[tags[kind]])
            await self._check(run_id, tags[kind], 0, self.references[kind])

    async def _check(self, run_id: str, tag: str, kills: int, undisturbed: Undisturbed) -> None:
        assert await outcome_of(self.database, run_id) == undisturbed.outcome
        requests = self.world.requests[tag]
        assert undisturbed.requests <= requests <= undisturbed.requests + kills
        money = await money_of(self.database, run_id)
        assert self.world.billed[tag] <= money.spent
        assert money.cap is not None
        assert money.spent <= money.cap
        assert money.spent == money.usage == money.entries
        assert (money.reserved, money.overrun, money.still_open) == (0, 0, 0)
        await self._check_events(run_id)
        self.spent += money.spent
        self.extra += requests - undisturbed.requests
        self.runs += 1

    async def _check_events(self, run_id: str) -> None:
        rows = await all_rows(
            self.database, "select seq, data from public.run_events where run_id = %s order by seq", run_id
        )
        assert [seq for seq, _ in rows] == list(range(1, len(rows) + 1))
        events = [EVENT.validate_python(data) for _, data in rows]
        assert [event.seq for event in events] == [seq for seq, _ in rows]
        kinds = Counter(event.type for event in events)
        assert (events[0].type, kinds["run_started"]) == ("run_started", 1)
        assert (events[-1].type, kinds["run_finished"]) == ("run_finished", 1)
        positions = await all_rows(
            self.database,
            "select attempt, number from public.loop_iterations where run_id = %s order by position",
            run_id,
        )
        assert [place for event in events if (place := _finished(event))] == positions
        for told in ("iteration_started", "candidate_produced"):
            places = [(e.attempt, e.number) for e in events if e.type == told]  # pyright: ignore[reportAttributeAccessIssue]
            assert sorted(places) == sorted(positions)
        assert kinds["money_reserved"] == kinds["money_settled"]

    async def _check_month(self) -> None:
        rows = await all_rows(self.database, "select sum(spent_usd), sum(reserved_usd) from public.monthly_spend")
        assert rows == [(self.spent, 0)]


def _finished(event: RunEvent) -> tuple[int, int] | None:
    return (event.iteration.attempt, event.iteration.number) if event.type == "iteration_finished" else None


async def open_harness(stack: AsyncExitStack, running: EmbeddedServer, zygote: Zygote, folder: Path) -> Harness:
    """A harness on a fresh database of a server."""
    database = await stack.enter_async_context(open_database(running))
    world = await stack.enter_async_context(outside())
    return Harness(database, world, stack.enter_context(workers(zygote, database.urls, folder)))


async def run_schedules(
    running: EmbeddedServer, zygote: Zygote, seeds: Sequence[int], folder: Path, *, report: int = 0
) -> Harness:
    """Run the schedules of some seeds, one after the other.

    Raises:
        AssertionError: one of them broke a promise; it says which seed.
    """
    async with AsyncExitStack() as stack:
        harness = await open_harness(stack, running, zygote, folder)
        await harness.undisturbed(sorted({kind for seed in seeds for kind in schedule(seed).kinds}))
        for seed in seeds:
            try:
                await harness.run(schedule(seed))
                if report and (seed - seeds[0] + 1) % report == 0:
                    print(f"{seed - seeds[0] + 1} schedules, {harness.kills} kills", flush=True)
            except (AssertionError, TimeoutError) as error:
                error.add_note(
                    f"seed {seed}: {schedule(seed)}; workers wrote:\n{(folder / 'workers.log').read_text()[-4000:]}"
                )
                raise
        return harness


def main() -> int:
    """Run as many schedules as asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=100, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed (%(default)s)")
    options = parser.parse_args()
    began = time.perf_counter()
    with server() as running, running_zygote() as zygote, tempfile.TemporaryDirectory() as folder:
        seeds = range(options.seed, options.seed + options.schedules)
        harness = asyncio.run(run_schedules(running, zygote, seeds, Path(folder), report=25))
    print(
        f"{options.schedules} schedules from seed {options.seed}: {harness.runs} runs, {harness.kills} kills, "
        f"{harness.extra} requests sent again, in {time.perf_counter() - began:.0f} s; "
        f"killed after {dict(harness.moments)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
