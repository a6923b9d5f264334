"""Whether the service can work."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import NotReady
from .runtime import Runtime


@dataclass(frozen=True)
class Counts:
    """What this process does."""

    running: int
    viewers: int


async def check_ready(runtime: Runtime) -> Counts:
    """Ask the database whether it answers, and whether runs can be executed here.

    Raises:
        NotReady: the engine is not up yet; runs that are started meanwhile wait for it.
        DatabaseAway: the database doesn't answer.
    """
    if runtime.awaits_engine:
        raise NotReady
    async with runtime.database.service_session() as connection:
        await connection.execute("select 1")
    return Counts(runtime.engine.running if runtime.engine else 0, runtime.hub.viewers)
