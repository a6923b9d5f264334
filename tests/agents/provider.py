"""A paid provider that isn't one: OpenAI's and Anthropic's chat APIs over real HTTP on 127.0.0.1, by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer of the provider."""

    text: str = "hello"
    tools: tuple[tuple[str, Mapping[str, object]], ...] = ()
    """Tool calls, as name and arguments."""
    tokens: tuple[int, int] | None = (100, 10)
    """Input and output tokens of the usage; `None` leaves the usage out."""
    cached: int = 0
    """How many of the input tokens came from the cache."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    """Sent instead of everything else."""
    drop: bool = False
    """Hang up without an answer."""
    hang: bool = False
    """Never finish: before the answer, or in a stream after its first piece."""


class Provider:
    """Answers by `script`, then by `default`."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.default = Reply()
        self.bodies: list[dict[str, Any]] = []
        """Bodies of the requests so far."""
        self.connections = 0
        self.counted = 0
        """How often tokens were counted."""
        self.count: int | None = None
        """What a count answers; `None` for a 404."""
        self.arrived = asyncio.Event()
        """Set once a request has come in."""
        self.may_answer = asyncio.Semaphore(1_000_000)
        """How many more requests get their answers; the others wait."""
        self.port = 0
        self.http_client = httpx2.AsyncClient(timeout=60)

    @property
    def seen(self) -> int:
        return len(self.bodies)

    def openai(self, name: str = "gpt-4o-mini", *, url: str | None = None) -> OpenAIChatModel:
        return OpenAIChatModel(name, provider=self._openai(url))

    def responses(self, name: str = "gpt-4o-mini") -> OpenAIResponsesModel:
        return OpenAIResponsesModel(name, provider=self._openai(None))

    def anthropic(self, name: str = "claude-haiku-4-5", *, url: str | None = None) -> AnthropicModel:
        address = url or self.url("")
        return AnthropicModel(
            name, provider=AnthropicProvider(base_url=address, api_key="k", http_client=self.http_client)
        )

    def _openai(self, url: str | None) -> OpenAIProvider:
        return OpenAIProvider(base_url=url or self.url("/v1"), api_key="k", http_client=self.http_client)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        try:
            while line := await reader.readline():
                headers = dict[str, str]()
                while (header := (await reader.readline()).decode().strip()) != "":
                    key, _, value = header.partition(":")
                    headers[key.lower()] = value.strip()
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                if not await self.answer(line.decode().split()[1], body, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client left, as some tests do
        finally:
            writer.close()

    async def answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Answer one request; says whether the connection may be used again."""
        if "count_tokens" in path or path.endswith("input_tokens"):
            self.counted += 1
            found = {"input_tokens": self.count, "object": "response.input_tokens"}
            self.send(writer, 200 if self.count else 404, found if self.count else {"error": {"message": "no"}})
            return True
        self.bodies.append(body)
        reply = self.script.pop(0) if self.script else self.default
        self.arrived.set()
        await self.may_answer.acquire()
        if reply.drop:
            return False
        if reply.hang and not body.get("stream"):
            await asyncio.Event().wait()
        if reply.status != 200 or reply.body is not None:
            error = {"type": "error", "error": {"message": "no", "type": "api_error", "code": None}}
            self.send(writer, reply.status, reply.body if reply.body is not None else error, reply.headers)
            return True
        answer = _anthropic if path.endswith("/messages") else _openai
        if not body.get("stream"):
            self.send(writer, 200, answer(body, reply), reply.headers)
            return True
        await _stream(
            writer, _anthropic_events(body, reply) if answer is _anthropic else _openai_events(body, reply), reply
        )
        return False

    def send(
        self, writer: asyncio.StreamWriter, status: int, body: object, headers: Mapping[str, str] | None = None
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{key}: {value}\r\n" for key, value in lines.items())
        writer.write(head.encode() + b"\r\n" + data)


@asynccontextmanager
async def running_provider() -> AsyncGenerator[Provider]:
    provider = Provider()
    tasks = set[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(provider.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        await provider.http_client.aclose()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(writer: asyncio.StreamWriter, events: list[tuple[str, object]], reply: Reply) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    for number, (name, event) in enumerate(events):
        data = event if isinstance(event, str) else json.dumps(event)
        writer.write((f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode())
        await writer.drain()
        if reply.hang and number == len(events) // 2:
            await asyncio.Event().wait()


def _openai(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    calls = [
        {
            "id": f"c{len(body['messages'])}-{n}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for n, (name, arguments) in enumerate(reply.tools)
    ]
    message = {"role": "assistant", "content": None if calls else reply.text, "tool_calls": calls or None}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"], "choices": [choice]}
    return answer | ({"usage": _openai_usage(reply)} if reply.tokens else {})


def _openai_usage(reply: Reply) -> dict[str, Any]:
    into, out = reply.tokens or (0, 0)
    return {
        "prompt_tokens": into,
        "completion_tokens": out,
        "total_tokens": into + out,
        "prompt_tokens_details": {"cached_tokens": reply.cached},
    }


def _openai_events(body: dict[str, Any], reply: Reply) -> list[tuple[str, object]]:
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    events: list[tuple[str, object]] = [
        (
            "",
            base
            | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": f"{word} "}, "finish_reason": None}]},
        )
        for word in reply.text.split(" ")
    ]
    events.append(("", base | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    if reply.tokens:
        events.append(("", base | {"choices": [], "usage": _openai_usage(reply)}))
    return [*events, ("", "[DONE]")]


def _anthropic(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "tool_use", "id": f"t{len(body['messages'])}-{n}", "name": name, "input": arguments}
        for n, (name, arguments) in enumerate(reply.tools)
    ]
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content or [{"type": "text", "text": reply.text}],
        "stop_reason": "tool_use" if content else "end_turn",
        "stop_sequence": None,
        "usage": _anthropic_usage(reply),
    }


def _anthropic_usage(reply: Reply) -> dict[str, Any]:
    into, out = reply.tokens or (0, 0)
    return {
        "input_tokens": into - reply.cached,
        "output_tokens": out,
        "cache_read_input_tokens": reply.cached,
        "cache_creation_input_tokens": 0,
    }


def _anthropic_events(body: dict[str, Any], reply: Reply) -> list[tuple[str, object]]:
    usage = _anthropic_usage(reply)
    start = _anthropic(body, reply) | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    block = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": reply.text}
    events: list[tuple[str, object]] = [
        ("message_start", {"type": "message_start", "message": start}),
        ("content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        (
            "message_delta",
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": usage["output_tokens"]},
            },
        ),
        ("message_stop", {"type": "message_stop"}),
    ]
    return events
