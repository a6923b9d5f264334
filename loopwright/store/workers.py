"""Workers: who lives, and who is taken for dead."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from psycopg.rows import class_row

from .database import Connection


@dataclass(frozen=True)
class _Neighbour:
    """A worker on this machine."""

    executor: str
    pid: int
    born: str | None


async def beat(connection: Connection, executor: str, format_number: int = 1, *, takes_queue: bool = True) -> None:
    """Say that a worker of this process lives."""
    await connection.execute(
        "insert into public.workers (executor, host, pid, machine, born, format, takes_queue) "
        "values (%s, %s, %s, %s, %s, %s, %s) on conflict (executor) do update set beat_at = now()",
        (executor, socket.gethostname(), os.getpid(), machine(), born(os.getpid()), format_number, takes_queue),
    )


async def leave(connection: Connection, executor: str) -> None:
    """Strike a worker off the list."""
    await connection.execute("delete from public.workers where executor = %s", (executor,))


async def bury(connection: Connection, by: str, silent_for: float) -> None:
    """Strike off the workers that were silent for so many seconds; never the one who asks, who lives."""
    await connection.execute(
        "delete from public.workers where executor <> %s and beat_at < now() - make_interval(secs => %s)",
        (by, silent_for),
    )


async def bury_neighbours(connection: Connection) -> None:
    """Strike off the workers on this machine whose process is gone: it needn't be silent for long to be surely dead."""
    if machine() is None:
        return
    cursor = connection.cursor(row_factory=class_row(_Neighbour))
    await cursor.execute("select executor, pid, born from public.workers where machine = %s", (machine(),))
    gone = [each.executor for each in await cursor.fetchall() if born(each.pid) != each.born]
    if gone:
        await connection.execute("delete from public.workers where executor = any(%s)", (gone,))


async def living(connection: Connection) -> dict[str, int]:
    """The workers on the list that take runs from the queue, each with its workflow-format number."""
    rows = await connection.execute("select executor, format from public.workers where takes_queue")
    return {str(executor): int(number) for executor, number in await rows.fetchall()}


async def is_forsaken(connection: Connection, run_id: str) -> bool:
    """Whether a run is not over and nobody executes it, nor will as long as no worker comes."""
    rows = await connection.execute(
        """
        select from public.loop_runs r
        where r.id = %s and r.status <> 'finished'
          and not exists (select from public.workers w where w.takes_queue or w.executor = r.executor)
        """,
        (run_id,),
    )
    return bool(rows.rowcount)


@cache
def machine() -> str | None:
    """This machine since it was booted, as its processes see each other; `None` where the system doesn't tell."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{booted} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def born(pid: int) -> str | None:
    """When a process began, which tells it from a later one of the same number; `None` if it is dead, or can't be
    seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return None if state in "ZX" else rest[18]
