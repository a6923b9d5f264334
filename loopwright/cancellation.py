"""What must be done to its end whoever is cancelled meanwhile, booking money above all; and ending what must end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def whatever_happens(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end even if the task is cancelled meanwhile; the cancellation goes on afterwards.

    Both kinds are held off: anyio's, which repeats itself until the scope is left, and asyncio's own. So when this
    returns or raises, nothing of the coroutine is going on any more.
    """
    task = asyncio.ensure_future(coroutine)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


AGAIN_SECONDS = 1.0
"""After how long a task that did not end is cancelled once more."""


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel background tasks and return when all have ended, whatever they raise. A task that loses a cancellation on
    its way, to a library that drops it, is cancelled again."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
