"""The MCP server for desktop clients: they start it and speak over its standard input and output."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from .server import build_server

if TYPE_CHECKING:
    from ..service.runtime import Runtime


async def serve_stdio(runtime: Runtime, leave: asyncio.Event, working: asyncio.Task[None]) -> None:
    """Answer the client until it goes, or until somebody asks to leave.

    Args:
        runtime: what the use cases need.
        leave: set by who asks.
        working: executes runs; if it ends by itself, nothing is answered any more.

    Raises:
        InvalidInput: users sign in here, so there is no owner who could speak.
    """
    server = build_server(runtime, owner=replace(runtime.owner(), door="mcp"))
    serving = asyncio.create_task(server.run_stdio_async())
    leaving = asyncio.create_task(leave.wait())
    await asyncio.wait({serving, leaving, working}, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if serving.done():
        return serving.result()
    serving.cancel()
    if working.done():
        leave.set()  # the reader of standard input can't be woken
        working.result()
    return None
