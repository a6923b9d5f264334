"""Workers: who lives, and who is taken for dead."""

from __future__ import annotations

import os
import socket

from .database import Connection


async def beat(connection: Connection, executor: str) -> None:
    """Say that a worker lives."""
    await connection.execute(
        "insert into public.workers (executor, host, pid) values (%s, %s, %s) "
        "on conflict (executor) do update set beat_at = now()",
        (executor, socket.gethostname(), os.getpid()),
    )


async def leave(connection: Connection, executor: str) -> None:
    """Strike a worker off the list."""
    await connection.execute("delete from public.workers where executor = %s", (executor,))


async def bury(connection: Connection, silent_for: float) -> None:
    """Strike off the workers that were silent for so many seconds."""
    await connection.execute(
        "delete from public.workers where beat_at < now() - make_interval(secs => %s)", (silent_for,)
    )
