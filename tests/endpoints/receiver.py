"""A server that takes messages, and checks their signatures by the letter of Standard Webhooks' specification."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

Reply = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Message:
    """A message as it came."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Whether one of the signatures is that of this secret: HMAC-SHA256 of `id.timestamp.body`."""
        key = base64.b64decode(secret.split("_", 1)[1])
        content = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return wanted in self.headers["webhook-signature"].split(" ")


async def fine(_: Message) -> Reply:
    return 200, {}, b"thanks"


@dataclass
class Receiver:
    """Answers as the test says."""

    reply: Callable[[Message], Awaitable[Reply]] = fine
    host: str = ""
    messages: list[Message] = field(default_factory=list[Message])
    paths: list[str] = field(default_factory=list[str])

    @property
    def url(self) -> str:
        return f"http://{self.host}/hook"

    def answers(self, *statuses: int, body: bytes = b"", **headers: str) -> None:
        """Answer with these, one after the other, and with the last one from then on."""
        left = list(statuses)

        async def reply(_: Message) -> Reply:
            return left.pop(0) if len(left) > 1 else left[0], headers, body

        self.reply = reply

    async def heard(self, many: int) -> list[Message]:
        """The messages, once there are so many."""
        async with asyncio.timeout(60):
            while len(self.messages) < many:
                await asyncio.sleep(0.02)
        return self.messages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = bytearray()
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        message = Message(headers, bytes(body))
        self.messages.append(message)
        self.paths.append(scope["path"])
        status, more, answer = await self.reply(message)
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in more.items()]
        await send({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": answer})


@asynccontextmanager
async def receiving() -> AsyncGenerator[Receiver]:
    """A receiver on a port of this machine."""
    made = Receiver()
    config = uvicorn.Config(made, port=0, lifespan="off", log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    made.host = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.should_exit = True
        await serving
