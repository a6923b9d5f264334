"""Each request has a number: in the log, and in the answer, so that one leads to the other."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import logs

HEADER = "X-Request-ID"

_SOUND = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Numbered:
    """ASGI middleware: takes the number that a proxy gave a request, or makes one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. What is logged about it, by the server too, carries its number."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        number = given if _SOUND.fullmatch(given) else uuid.uuid4().hex
        logs.request.set(number)  # not taken back: the server answers each request in a task of its own

        async def numbered(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = number
            await send(message)

        await self.app(scope, receive, numbered)
