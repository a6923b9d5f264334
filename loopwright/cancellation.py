"""What must be done to its end whoever is cancelled meanwhile: booking money above all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
