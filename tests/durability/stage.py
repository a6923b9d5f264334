"""What the durability tests share: workers in processes of their own, runs in the database, and what became of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from loopwright.store.database import Database, Urls

from ..postgres import OWNER

Zygote = subprocess.Popen[str]

ROOT = Path(__file__).parent.parent.parent


@dataclass
class Workers:
    """Starts workers by a zygote, and ends them."""

    zygote: Zygote
    urls: Urls
    log: Path
    alive: list[int] = field(default_factory=list[int])

    def start(
        self,
        submit: Sequence[tuple[str, str, int]] = (),
        *,
        engine: dict[str, Any] | None = None,
        limits: dict[str, Any] | None = None,
    ) -> int:
        """Start a worker; returns its process id before it has done anything."""
        order: dict[str, Any] = {"urls": vars(self.urls), "log": str(self.log), "submit": list(submit)}
        order |= {"engine": engine} if engine is not None else {}
        order |= {"limits": limits} if limits is not None else {}
        assert self.zygote.stdin
        assert self.zygote.stdout
        self.zygote.stdin.write(json.dumps(order) + "\n")
        self.zygote.stdin.flush()
        pid = int(self.zygote.stdout.readline())  # it forks at once
        self.alive.append(pid)
        return pid

    def kill(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a worker."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if number is signal.SIGKILL:
            self.alive.remove(pid)

    async def leave(self, pid: int, seconds: float = 90) -> None:
        """Ask a worker to leave, and wait until it has."""
        os.kill(pid, signal.SIGTERM)
        async with asyncio.timeout(seconds):
            while is_alive(pid):
                await asyncio.sleep(0.01)
        self.alive.remove(pid)


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextmanager
def running_zygote() -> Generator[Zygote]:
    """A process that has loaded everything, from which workers are forked: for all tests of a process."""
    command = [sys.executable, "-m", "tests.durability.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as zygote:
        assert zygote.stdin
        assert zygote.stdout
        assert zygote.stdout.readline() == "ready\n"
        yield zygote
        zygote.stdin.close()


@contextmanager
def workers(zygote: Zygote, urls: Urls, folder: Path) -> Generator[Workers]:
    """Workers on a database; those that are still there at the end are killed."""
    made = Workers(zygote, urls, folder / "workers.log")
    try:
        yield made
    finally:
        for pid in list(made.alive):
            made.kill(pid)


def new_tag() -> str:
    """What stands in the goal of a run and of no other."""
    return f"[run:{uuid.uuid4().hex[:8]}]"


async def insert_run(database: Database, spec: dict[str, Any], *, owner: str = OWNER, cap: str | None = "0.5") -> str:
    """Put a run into the table, as the service does before it tells the engine; returns its id."""
    run_id = f"run_{uuid.uuid4().hex[:21]}"
    async with database.service_session() as connection:
        await connection.execute(
            "insert into public.loop_runs (id, loop_name, owner_id, door, spec, goal, cap_usd) "
            "values (%s, %s, %s, 'api', %s, %s, %s)",
            (run_id, spec["name"], owner, json.dumps(spec), spec["goal"], cap),
        )
    return run_id


async def all_rows(database: Database, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
    """What a query finds, as the service."""
    async with database.service_session() as connection:
        return await (await connection.execute(statement, arguments)).fetchall()  # pyright: ignore[reportArgumentType]


async def finished(database: Database, ids: Sequence[str]) -> int:
    """How many of the runs are over."""
    rows = await all_rows(
        database, "select count(*) from public.loop_runs where id = any(%s) and status = 'finished'", list(ids)
    )
    return int(rows[0][0])


async def until_finished(database: Database, ids: Sequence[str], seconds: float = 90) -> None:
    """Wait until all of the runs are over."""
    async with asyncio.timeout(seconds):
        while await finished(database, ids) < len(ids):
            await asyncio.sleep(0.02)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to, as far as it must be the same each time."""

    stop_reason: str
    error: str | None
    best: tuple[int | None, int | None, float | None]
    iterations: frozenset[tuple[int, int, float | None, float | None, str]]
    """Attempt, number, score, holdout score and text of each."""
    operations: int
    """Outside operations in the journal."""


async def outcome_of(database: Database, run_id: str) -> Outcome:
    """Read it from the tables."""
    run = await all_rows(
        database,
        "select stop_reason, error, best_attempt, best_iteration, best_score from public.loop_runs where id = %s",
        run_id,
    )
    data = await all_rows(database, "select data from public.loop_iterations where run_id = %s", run_id)
    journal = await all_rows(database, "select count(*) from public.run_journal where run_id = %s", run_id)
    return Outcome(
        stop_reason=run[0][0],
        error=run[0][1],
        best=run[0][2:],
        iterations=frozenset(
            (
                d["attempt"],
                d["number"],
                d["feedback"] and d["feedback"]["score"],
                d["holdout"] and d["holdout"]["score"],
                d["candidate"]["text"] if d["candidate"] else "",
            )
            for (d,) in data
        ),
        operations=journal[0][0],
    )


@dataclass(frozen=True, kw_only=True)
class Money:
    """A run's money in USD, by each of the books."""

    cap: Decimal | None
    spent: Decimal
    reserved: Decimal
    overrun: Decimal
    usage: Decimal
    entries: Decimal
    still_open: int


async def money_of(database: Database, run_id: str) -> Money:
    """Read it from the tables."""
    rows = await all_rows(
        database,
        """
        select r.cap_usd, r.spent_usd, r.reserved_usd, r.overrun_usd,
          (select coalesce(sum(u.cost_usd), 0) from public.usage_records u where u.run_id = r.id),
          (select coalesce(sum(w.amount_usd), 0) from public.wallet_entries w where w.run_id = r.id),
          (select count(*) from public.wallet_entries w where w.run_id = r.id and w.settled_at is null)
        from public.loop_runs r where r.id = %s
        """,
        run_id,
    )
    cap, spent, reserved, overrun, usage, entries, still_open = rows[0]
    return Money(
        cap=cap, spent=spent, reserved=reserved, overrun=overrun, usage=usage, entries=entries, still_open=still_open
    )
