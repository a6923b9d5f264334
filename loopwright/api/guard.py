"""What a request must be before any route sees it: addressed to us, from our own pages, small, and sound JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_core import from_json
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ProblemResponse, problem

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

MAX_DEPTH = 40
"""How deeply a body's JSON may be nested: a loop with agents among its tools' agents takes about ten levels."""

MAX_BITS = 1_024
"""The largest whole number is about that of a float; Python refuses to write out much larger ones."""

MAX_TARGET_BYTES = 8_000
"""The longest path and query."""


class Refusal(Exception):
    """A request that no route sees."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.response: ProblemResponse = problem(status, detail)


@dataclass(frozen=True)
class Guard:
    """ASGI middleware."""

    app: ASGIApp
    _: KW_ONLY
    hosts: frozenset[str]
    """Host names that requests may be addressed to, in lower case and without a port."""
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is sound, and answer the rest with a problem."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            if scope["method"] not in SAFE:
                _check_origin(headers)
            _check_target(scope)
            body = await self._body(scope, headers, receive)
        except Refusal as refusal:
            await refusal.response(scope, receive, send)
            return
        await self.app(scope, receive if body is None else _replay(body, receive), send)

    def _check_host(self, headers: Headers) -> None:
        """Refuse requests to other names: a page elsewhere may have pointed its own name at this address."""
        name = _host_name(headers.get("host", ""))
        if name not in self.hosts:
            raise Refusal(
                421,
                f"this server does not answer for {name!r:.100}; its operator adds names to LOOPWRIGHT_ALLOWED_HOSTS",
            )

    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body, checked; `None` where there is none."""
        if "content-length" not in headers and "transfer-encoding" not in headers:
            return None
        declared = headers.get("content-length", "0")
        if not declared.isascii() or not declared.isdigit():
            raise Refusal(400, "Content-Length is not a number")
        if int(declared) > self.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the request ended before its body did")
            body += message.get("body", b"")
            if len(body) > self.max_body_bytes:
                raise self._too_large()
            if not message.get("more_body"):
                break
        if body and scope["method"] not in SAFE:
            _check_json(bytes(body), headers)
        return bytes(body)

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self.max_body_bytes:,} bytes")


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[").lower()
    return host.partition(":")[0].rstrip(".").lower()


def _check_origin(headers: Headers) -> None:
    """Refuse what another site's page sends: the browser would add our cookie to it."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        own = site in ("same-origin", "none")
    else:
        own = origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    if not own:
        raise Refusal(403, "this request comes from a page of another site, so it is refused")


def _check_target(scope: Scope) -> None:
    path, query = cast("bytes", scope.get("raw_path") or b""), cast("bytes", scope["query_string"])
    if len(path) + len(query) > MAX_TARGET_BYTES:
        raise Refusal(414, f"the address is longer than {MAX_TARGET_BYTES:,} bytes")
    if "\x00" in scope["path"] or b"%00" in query:
        raise Refusal(400, "the address holds a NUL character, which nothing here can have in it")
    if "\ufffd" in scope["path"]:
        raise Refusal(400, "the address is not UTF-8")


def _check_json(body: bytes, headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "send the body as JSON, with `Content-Type: application/json`")
    try:
        body.decode()
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not UTF-8") from None
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    for value, depth in _walk(data):
        if depth > MAX_DEPTH:
            raise Refusal(400, f"the body is nested more than {MAX_DEPTH} levels deep")
        if (isinstance(value, int) and value.bit_length() > MAX_BITS) or value in (math.inf, -math.inf):
            raise Refusal(400, "the body holds a number that is too large")
        if isinstance(value, str) and "\x00" in value:
            raise Refusal(400, "the body holds a NUL character, which no text here can have in it")


def _walk(data: Any) -> Iterator[tuple[Any, int]]:
    """Every value and key in JSON with its depth, however deep, without recursion."""
    waiting: list[tuple[Any, int]] = [(data, 1)]
    while waiting:
        value, depth = waiting.pop()
        yield value, depth
        if isinstance(value, dict):
            for key, inner in cast("dict[str, Any]", value).items():
                waiting.append((key, depth))
                waiting.append((inner, depth + 1))
        elif isinstance(value, list):
            waiting.extend((inner, depth + 1) for inner in cast("list[Any]", value))


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then whatever comes: a disconnect."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
