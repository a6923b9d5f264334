"""Sends the requests of an httpx2 client, such as that of an MCP server or a model, where the egress policy lets them
go."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any, cast

import httpcore
import httpx2

from ..egress import EgressClient, EgressFailed, checked_url

_ERRORS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx2.ConnectTimeout),
    (httpcore.ReadTimeout, httpx2.ReadTimeout),
    (httpcore.WriteTimeout, httpx2.WriteTimeout),
    (httpcore.PoolTimeout, httpx2.PoolTimeout),
    (httpcore.ConnectError, httpx2.ConnectError),
    (httpcore.ReadError, httpx2.ReadError),
    (httpcore.WriteError, httpx2.WriteError),
    (httpcore.RemoteProtocolError, httpx2.RemoteProtocolError),
    (httpcore.LocalProtocolError, httpx2.LocalProtocolError),
    (httpcore.NetworkError, httpx2.NetworkError),
    (httpcore.TimeoutException, httpx2.TimeoutException),
)
"""The connections speak httpcore, their user httpx2; the first that fits counts."""


def egress_http_client(
    egress: EgressClient,
    *,
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """An httpx2 client on the connections of an `EgressClient`; it follows no redirects."""
    waits = timeout or httpx2.Timeout(30.0, read=300.0)
    return httpx2.AsyncClient(headers=headers, timeout=waits, auth=auth, transport=EgressTransport(egress))


class EgressTransport(httpx2.AsyncBaseTransport):
    """Carries requests over the connections of an `EgressClient`, which it leaves open for others.

    What the client adds for whole answers (a size, a time) is up to who uses the transport: a stream has no end.
    """

    def __init__(self, egress: EgressClient) -> None:
        self._egress = egress

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and give back the response with its body still to come.

        Raises:
            EgressRefused: the policy doesn't let it go there; nothing was sent.
        """
        checked_url(str(request.url))
        url = request.url
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=cast("AsyncIterable[bytes]", request.stream),
            extensions=request.extensions,
        )
        with _translated():
            answer = await self._egress.pool(url.scheme).handle_async_request(sent)
        extensions = cast("dict[str, Any]", cast(Any, answer).extensions)
        return httpx2.Response(answer.status, headers=answer.headers, stream=_Body(answer), extensions=extensions)


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in cast("AsyncIterable[bytes]", self._answer.stream):
                yield chunk

    async def aclose(self) -> None:
        with _translated():
            await self._answer.aclose()


@contextmanager
def _translated() -> Generator[None]:
    try:
        yield
    except EgressFailed as error:  # the host can't be found
        raise httpx2.ConnectError(str(error)) from error
    except Exception as error:
        for kind, other in _ERRORS:
            if isinstance(error, kind):
                raise other(str(error) or type(error).__name__) from error
        raise
