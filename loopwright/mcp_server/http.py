"""The MCP server at `/mcp`: streamable HTTP, one request at a time, behind the application's own guard and gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ..core.caller import Caller

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from ..service.runtime import Runtime
    from .server import LoopwrightMCP

PATH = "/mcp"

SCOPE_KEY = "loopwright.caller"
"""Where the caller stands in a request's scope, for the server behind the door."""

WhoCalls = Callable[[Request], Awaitable[Caller]]
"""Tells the caller of a request."""


@dataclass
class McpDoor:
    """The server as an ASGI application. It is made at the first request, since most servers never get one."""

    path: str = PATH
    _runtime: Runtime | None = None
    _who: WhoCalls | None = None
    _manager: StreamableHTTPSessionManager | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _leave: asyncio.Event = field(default_factory=asyncio.Event)
    _running: asyncio.Task[None] | None = None

    def add_to(self, app: FastAPI) -> None:
        """Give it its address."""
        app.router.routes.append(Route(self.path, endpoint=self, include_in_schema=False))

    @asynccontextmanager
    async def open(self, runtime: Runtime, who: WhoCalls) -> AsyncGenerator[None]:
        """Answer requests.

        Args:
            runtime: what the use cases need.
            who: tells the caller of a request, as the API does.
        """
        self._runtime, self._who, self._leave = runtime, who, asyncio.Event()
        try:
            yield
        finally:
            self._leave.set()
            if self._running is not None:
                await self._running
            self._manager = self._running = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of somebody who may ask.

        Raises:
            NotSignedIn, NotAllowed, InvalidInput: as the API refuses.
        """
        assert self._who is not None  # noqa: S101 - requests come while it is open
        # The caller is told by headers alone: the body is JSON-RPC, and the server's to read.
        caller = await self._who(Request(scope, _no_body))
        manager = self._manager or await self._made()
        await manager.handle_request({**scope, SCOPE_KEY: replace(caller, door="mcp")}, receive, send)

    async def _made(self) -> StreamableHTTPSessionManager:
        async with self._opening:
            if self._manager is None:
                assert self._runtime is not None  # noqa: S101 - as above
                build_server = await asyncio.to_thread(_import_server)
                server, ready = build_server(self._runtime), asyncio.Event()
                # Whose Host and Origin a request may have is the guard's to say, for all addresses alike.
                most = self._runtime.settings.max_body_bytes
                server.streamable_http_app(stateless_http=True, host="", max_request_body_size=most)
                self._running = asyncio.create_task(self._run(server.session_manager, ready))
                await ready.wait()
                self._manager = server.session_manager
            return self._manager

    async def _run(self, manager: StreamableHTTPSessionManager, ready: asyncio.Event) -> None:
        """Hold the manager open in a task of its own: it must be left in the one that it was entered in, and an
        application may be opened in one and closed in another."""
        async with manager.run():
            ready.set()
            await self._leave.wait()


def _import_server() -> Callable[[Runtime], LoopwrightMCP]:
    from .server import build_server

    return build_server


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}
