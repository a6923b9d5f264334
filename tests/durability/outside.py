"""The world outside of a run: a paid provider, evaluators and a tool, over real HTTP, in the process that kills.

Every answer follows from the request alone, so a run gives the same result however often it is asked again. The
provider counts and bills each request that reaches it, whoever is still there to hear the answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

MODEL = "openai:gpt-4o-mini"
PRICES = {"input": "1", "output": "4"}
"""USD per million tokens."""
TAG = re.compile(r"\[run:[0-9a-f]{8}\]")
"""Stands in the goal of each run, and so in each request of it."""
EVALUATION_COST = Decimal("0.0001")


@dataclass
class Outside:
    """Answers, counts, bills, and says what happens when."""

    on_moment: Callable[[str], None] = lambda _: None
    """Called as things happen: `asked`, `answering`, `answered`, `scoring`, `scored`, `called`."""
    pace: float = 0.002
    """Seconds that a model takes to answer."""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """While it isn't set, models don't answer."""
    requests: Counter[str] = field(default_factory=Counter[str])
    """Model requests by run."""
    billed: dict[str, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """USD by run."""
    port: int = 0
    _failed: set[str] = field(default_factory=set[str])

    async def asked(self, requests: int) -> None:
        """Wait until so many model requests have come in."""
        async with asyncio.timeout(90):
            while self.requests.total() < requests:
                await asyncio.sleep(0.005)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
                status, answer = await self._answer(head[0].split()[1], body, headers)
                if body.get("stream"):
                    await _stream(writer, answer)
                    self.on_moment("answered")
                    return
                data = json.dumps(answer).encode()
                lines = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
                writer.write(lines.encode() + data)
                await writer.drain()
                self.on_moment("answered" if "completions" in head[0] else "scored")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked was killed
        finally:
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if path.endswith("/completions"):
            return 200, await self._complete(body)
        if path == "/lookup":
            self.on_moment("called")
            return 200, {"found": digest(body["word"])[:6], "zeta": 1, "alpha": 2.50}
        self.on_moment("scoring")
        key = headers["idempotency-key"]
        if path == "/flaky" and int(digest(body["candidate"])[:2], 16) % 3 == 0 and key not in self._failed:
            self._failed.add(key)
            return 503, {}
        score = score_of(path + body["candidate"])
        return 200, {"score": score, "detail": f"it is {score}", "cost_usd": f"{EVALUATION_COST:f}"} if (
            path == "/paid"
        ) else {"score": score, "detail": f"it is {score}"}

    async def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        said = json.dumps(body["messages"])
        found = TAG.search(said)
        assert found, said
        tag, tokens = found[0], (len(said) // 8, 5 + int(digest(said)[:2], 16) // 8)
        self.requests[tag] += 1
        self.billed[tag] += (tokens[0] * Decimal(PRICES["input"]) + tokens[1] * Decimal(PRICES["output"])) / 1_000_000
        self.on_moment("asked")
        await asyncio.sleep(self.pace)
        await self.open.wait()
        self.on_moment("answering")
        return _completion(body, script(body, tag), tokens)


@dataclass(frozen=True)
class Said:
    """What the model answers: text, or tool calls as name and arguments."""

    text: str | None = None
    calls: tuple[tuple[str, dict[str, object]], ...] = ()


def script(body: dict[str, Any], tag: str) -> Said:
    """The model's answer to a request."""
    messages = body["messages"]
    said, last = json.dumps(messages), messages[-1]
    tools = {tool["function"]["name"] for tool in body.get("tools", ())}
    if tools - {"loop_done", "lookup", "helper"}:  # a judge: it has the tool that takes its answer and no other
        (name,) = tools
        return Said(calls=((name, {"detail": "a critique", "score": score_of(said)}),))
    if last["role"] == "user" and {"lookup", "helper"} <= tools:
        word = digest(said)[:6]
        return Said(calls=(("lookup", {"word": word}), ("helper", {"question": f"{tag} what of {word}?"})))
    if last["role"] == "user" and "converge" in said and "This is iteration 3" in str(last["content"]):
        return Said(calls=(("loop_done", {"reason": "it is good enough"}),))
    return Said(text=f"candidate {digest(said)[:12]}")


def _completion(body: dict[str, Any], said: Said, tokens: tuple[int, int]) -> dict[str, Any]:
    mark = digest(json.dumps(body["messages"]))[:10]
    calls = [
        {"id": f"call_{mark}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(said.calls)
    ]
    message = {"role": "assistant", "content": said.text, "tool_calls": calls or None}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": body["model"]}
    return answer | {"choices": [choice], "usage": usage}


async def _stream(writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
    """An answer in pieces, its usage in the last one; then the connection closes."""
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    message = answer["choices"][0]["message"]
    pieces = [{"content": message["content"][at : at + 5]} for at in range(0, len(message["content"] or ""), 5)]
    pieces += [{"tool_calls": [{**each, "index": n}]} for n, each in enumerate(message["tool_calls"] or ())]
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": answer["model"]}
    end = {"index": 0, "delta": {}, "finish_reason": answer["choices"][0]["finish_reason"]}
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": {"role": "assistant", **p}}]} for p in pieces]
    for chunk in (*chunks, {"choices": [end]}, {"choices": [], "usage": answer["usage"]}):
        writer.write(f"data: {json.dumps({**base, **chunk})}\n\n".encode())
        await writer.drain()
        await asyncio.sleep(0)
    writer.write(b"data: [DONE]\n\n")
    await writer.drain()


def digest(text: str) -> str:
    """What stands for a text, whichever run it is from."""
    return hashlib.sha256(TAG.sub("", text).encode()).hexdigest()


def score_of(text: str) -> float:
    """The score of a text: the same each time."""
    return int(digest(text)[:6], 16) % 10_000 / 10_000


@asynccontextmanager
async def outside() -> AsyncGenerator[Outside]:
    """The outside on a free port of the loopback interface."""
    world, tasks = Outside(), set[asyncio.Task[None]]()
    world.open.set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(world.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
