"""The HTTP clients of models: where they may send, and connections that runs share, so that starting one is cheap."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai.models import create_async_httpx2_client
from pydantic_ai.providers import Provider

from ..egress import EgressClient, ssl_context
from .reach import EgressTransport

READ_SECONDS = 600.0
"""How long a provider may say nothing; the run's own limits come on top."""
LONG_READ_SECONDS = {"google": 1200.0, "google-cloud": 1200.0}
"""What Google asks clients to allow for its longest answers."""
CONNECT_SECONDS = 5.0

_LEGACY = frozenset({"cohere", "github", "groq", "huggingface"})
"""Providers whose SDKs speak through the older httpx: they make their clients themselves."""


def takes_our_client(kind: str, provider: Callable[..., Provider[Any]]) -> bool:
    """Whether a provider sends its requests through a client that it is given."""
    return kind not in _LEGACY and "http_client" in inspect.signature(provider).parameters


def model_client(kind: str, egress: EgressClient | None = None) -> httpx2.AsyncClient:
    """A client for a provider. It holds nothing open itself and needs no closing.

    Args:
        kind: the provider, as in model strings.
        egress: says where requests may go, each time one is sent, and holds the connections. Without it they go
            wherever the provider is, over the connections that all runs of the event loop share.
    """
    read = LONG_READ_SECONDS.get(kind, READ_SECONDS)
    return create_async_httpx2_client(
        timeout=httpx2.Timeout(read, connect=CONNECT_SECONDS),
        transport=_SharedTransport() if egress is None else EgressTransport(egress),
    )


@asynccontextmanager
async def shared_connections() -> AsyncGenerator[None]:
    """Keep the connections to providers open inside; they are closed when the last one of the event loop leaves."""
    shared = _shared()
    shared.users += 1
    try:
        yield
    finally:
        shared.users -= 1
        if not shared.users:
            _by_loop.pop(asyncio.get_running_loop(), None)
            await shared.client.aclose()


def _client() -> httpx2.AsyncClient:
    # A client and not a bare transport: it finds the proxies that the environment names.
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=200)
    return httpx2.AsyncClient(verify=ssl_context(), limits=limits, timeout=READ_SECONDS)


@dataclass
class _Shared:
    client: httpx2.AsyncClient = field(default_factory=_client)
    users: int = 0


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
"""Connections belong to the event loop that opened them."""


def _shared() -> _Shared:
    loop = asyncio.get_running_loop()
    if loop not in _by_loop:
        _by_loop[loop] = _Shared()
    return _by_loop[loop]


class _SharedTransport(httpx2.AsyncBaseTransport):
    """Sends requests over the connections of the running event loop; follows no redirects."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await _shared().client.send(request, stream=True, follow_redirects=False)
