"""Following a run for a while, for those who want its outcome rather than its stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

from ..core.caller import Caller
from ..core.events import EVENT, IterationFinished, RunEvent
from ..core.records import Run
from .runs import get_run
from .runtime import Runtime

Tell = Callable[[IterationFinished, int], Awaitable[None]]
"""Gets each finished iteration, and how many have finished by then."""


async def follow(runtime: Runtime, caller: Caller, run_id: str, *, seconds: float, tell: Tell | None = None) -> Run:
    """The run once it is over, or after some seconds, whatever comes first. Leaving doesn't stop it.

    Raises:
        NotFound: there is no such run that the caller may see.
    """
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _to_the_end(runtime, caller, run_id, tell)
    return await get_run(runtime.database, caller, run_id)


async def _to_the_end(runtime: Runtime, caller: Caller, run_id: str, tell: Tell | None) -> None:
    stream = await runtime.hub.open(caller, run_id, 0)
    if stream is None:
        return
    finished = 0
    async with aclosing(events_in(stream)) as events:
        async for event in events:
            if isinstance(event, IterationFinished):
                finished += 1
                if tell:
                    await tell(event, finished)


async def events_in(stream: AsyncGenerator[bytes]) -> AsyncGenerator[RunEvent]:
    """The events of a stream that is ready to send."""
    async with aclosing(stream):
        async for chunk in stream:
            for line in chunk.split(b"\n"):
                if line.startswith(b"data: "):
                    yield EVENT.validate_json(line[6:])
