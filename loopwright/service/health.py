"""Whether the service can work."""

from __future__ import annotations

from dataclasses import dataclass

from .runtime import Runtime


@dataclass(frozen=True)
class Counts:
    """What this process does."""

    running: int
    viewers: int


async def check_ready(runtime: Runtime) -> Counts:
    """Ask the database whether it answers.

    Raises:
        DatabaseAway: it doesn't.
    """
    async with runtime.database.service_session() as connection:
        await connection.execute("select 1")
    return Counts(runtime.engine.running if runtime.engine else 0, runtime.hub.viewers)
