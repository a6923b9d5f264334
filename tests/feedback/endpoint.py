"""A tiny HTTP server whose every byte a test decides."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

Script = Callable[["Connection"], Awaitable[None]]


@dataclass(frozen=True)
class Received:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Connection:
    writer: asyncio.StreamWriter
    endpoint: Endpoint

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()
        self.endpoint.sent += len(data)


@dataclass
class Endpoint:
    """Answers each request with the next of `replies`; the last one stays."""

    replies: list[bytes | Script] = field(default_factory=lambda: [reply({"score": 0.5})])
    received: list[Received] = field(default_factory=list[Received])
    connections: int = 0
    sent: int = 0
    port: int = 0
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection was closed from this side."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/score"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answers(self, *replies: bytes | Script) -> None:
        self.replies = list(replies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
                while not writer.is_closing():
                    self.received.append(await _read_request(reader))
                    next_reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                    connection = Connection(writer, self)
                    await (connection.send(next_reply) if isinstance(next_reply, bytes) else next_reply(connection))
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            self.closed.set()
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, target, headers, body)


def reply(body: object = b"", status: int = 200, **headers: str) -> bytes:
    """The bytes of a response; a body that isn't bytes or text goes as JSON."""
    content = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


async def hang(connection: Connection) -> None:
    await asyncio.Event().wait()


async def drip(connection: Connection) -> None:
    """Never done, but never silent for long either."""
    await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        await connection.send(b" ")
        await asyncio.sleep(0.01)


async def fifty_megabytes(connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    piece = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
    for _ in range(800):
        await connection.send(piece)
    await connection.send(b"0\r\n\r\n")


async def disconnect(connection: Connection) -> None:
    connection.writer.close()


def then_close(data: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.send(data)
        connection.writer.close()

    return script


@asynccontextmanager
async def running_endpoint(tls: ssl.SSLContext | None = None):
    endpoint = Endpoint()
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.get_running_loop().create_task(endpoint.serve(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        yield endpoint
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
