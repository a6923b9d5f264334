"""Runs a loop while somebody watches: signals stop it cleanly, a closed pipe too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from ..core.events import RunEvent
from ..core.models import Direction
from ..core.result import RunResult
from ..core.stop import Stop, Target
from .outcome import CANCELLED, ERROR, NOT_REACHED, REACHED, say
from .screens import Screen

GRACE_SECONDS = 2.0
"""How long after the second signal the process waits for evaluators to be ended."""


class Watched(Protocol):
    """A run that is shown while it goes on: `runner.library.Run`, or `stored.StoredRun`."""

    def events(self) -> AsyncIterator[RunEvent]:
        """Its events, to its last one."""
        ...

    def cancel(self) -> None:
        """Stop it cleanly."""
        ...

    def __await__(self) -> Generator[object, None, RunResult]:
        """Its result."""
        ...


@dataclass(frozen=True, kw_only=True)
class Driven:
    """How a watched run ended."""

    result: RunResult
    nobody_watches: bool
    """Standard output was closed while the run went on."""


def prepare_models() -> None:
    """Import what makes loops, which takes a while, and keep its banner off the screen, which is ours."""
    import pydantic_ai

    from ..service import assemble

    _ = assemble
    pydantic_ai.BANNER_ENABLED = False


async def drive(run: Watched, screen: Screen) -> Driven:
    """Show a run to its end. The first SIGINT or SIGTERM stops it cleanly, the second one ends the process."""
    nobody_watches = False
    screen.open()
    try:
        with _signals(run, screen):
            async for event in run.events():
                if nobody_watches:
                    continue
                try:
                    screen.show(event)
                except OSError:  # nobody reads: to go on would spend money on what nobody sees
                    nobody_watches = True
                    run.cancel()
            result = await run
    finally:
        with suppress(OSError):
            screen.close()
    return Driven(result=result, nobody_watches=nobody_watches)


@contextmanager
def _signals(run: Watched, screen: Screen) -> Generator[None]:
    loop = asyncio.get_running_loop()
    received = 0

    def stop() -> None:
        nonlocal received
        received += 1
        if received == 1:
            run.cancel()
            with suppress(OSError):
                screen.stopping()
        elif received == 2:
            _abort(loop, screen)
        else:
            os._exit(CANCELLED)

    watched = (signal.SIGINT, signal.SIGTERM)
    added: list[signal.Signals] = []
    for number in watched:
        # Not in the main thread, or not on this system: then the caller's own ways to stop have to do.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)


def _abort(loop: asyncio.AbstractEventLoop, screen: Screen) -> None:
    """End the process soon whatever hangs; the journal has all that was paid for."""
    with suppress(OSError):
        screen.close()
    say("Aborting.")
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_later(GRACE_SECONDS, os._exit, CANCELLED)


def exit_code(result: RunResult, stop: Stop, direction: Direction) -> int:
    """0 where the target is reached, or where there is none and the run ended well; 1, 3 and 130 as `--help` says."""
    if result.stop_reason == "cancelled":
        return CANCELLED
    if result.stop_reason == "error":
        return ERROR
    targets = [part.score for part in stop.parts() if isinstance(part, Target)]
    score = result.best.score if result.best else None
    if not targets or result.stop_reason == "target_reached":
        return REACHED
    sign = 1 if direction == "maximize" else -1
    return REACHED if score is not None and all(sign * score >= sign * t for t in targets) else NOT_REACHED
