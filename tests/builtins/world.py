"""A paid model that calls what a test tells it to, and agents that have builtins."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from tests.api.world import Api
from tests.examples.provider import served
from tests.postgres import OWNER

Say = str | list[tuple[str, dict[str, Any]]]
"""What the model says: a text, or calls of tools."""


@dataclass
class Seen:
    """What the model was asked."""

    body: dict[str, Any]

    @property
    def goal(self) -> str:
        return "\n".join(str(each["content"]) for each in self.body["messages"] if each["role"] == "user")

    @property
    def results(self) -> list[Any]:
        """What its tool calls came to, oldest first."""
        told = [each["content"] for each in self.body["messages"] if each["role"] == "tool"]
        return [json.loads(each) if each.startswith("{") else each for each in told]

    @property
    def tools(self) -> set[str]:
        return {tool["function"]["name"] for tool in self.body.get("tools", ())}


@dataclass
class Brain:
    """Speaks OpenAI's chat protocol; each answer costs 400 tokens in and 20 out."""

    think: Callable[[Seen], Say] = field(default=lambda _: "a text")
    may_answer: threading.Event = field(default_factory=threading.Event)
    """Answers wait while it is not set."""
    words: int | None = None
    """After so many words a streamed answer waits for `may_finish`."""
    may_finish: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    seen: list[Seen] = field(default_factory=list[Seen])

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(Seen(body))
        said = self.think(self.seen[-1])
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            message["tool_calls"] = [
                {
                    "id": f"call_{len(self.seen)}_{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for number, (name, arguments) in enumerate(said)
            ]
        finish = "stop" if isinstance(said, str) else "tool_calls"
        return {
            "id": f"chat_{len(self.seen)}",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 400, "completion_tokens": 20, "total_tokens": 420},
        }


async def _sent(brain: Brain, answer: dict[str, Any]) -> AsyncGenerator[str]:
    for number, piece in enumerate(_pieces(answer)):
        while number == brain.words and not brain.may_finish.is_set():
            await asyncio.sleep(0.01)
        yield piece


def _pieces(answer: dict[str, Any]) -> Generator[str]:
    """An answer as OpenAI streams it, a word at a time."""
    frame = {name: answer[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = [{**call, "index": number} for number, call in enumerate(message.get("tool_calls", ()))]
    deltas: list[dict[str, Any]] = [{"content": word} for word in re.findall(r"\s*\S+", message["content"] or "")]
    for delta in [*deltas, *([{"tool_calls": calls}] if calls else [])]:
        yield _line({**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _line({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    yield _line({**frame, "choices": [], "usage": answer["usage"]})
    yield "data: [DONE]\n\n"


def _line(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


@contextmanager
def brain_on_a_port() -> Generator[Brain]:
    """The model over real HTTP."""
    brain, app = Brain(), FastAPI()
    brain.may_answer.set()

    @app.post("/v1/chat/completions", response_model=None)
    async def complete(request: Request) -> dict[str, Any] | StreamingResponse:  # pyright: ignore[reportUnusedFunction]
        body = await request.json()
        answer = brain.answer(body)
        while not brain.may_answer.is_set():
            await asyncio.sleep(0.01)
        return StreamingResponse(_sent(brain, answer), media_type="text/event-stream") if body.get("stream") else answer

    with served(app) as address:
        brain.url = f"{address}/v1"
        yield brain


@dataclass
class House:
    """The service with that model."""

    api: Api
    brain: Brain

    async def builtin(self, name: str) -> Any:
        (found,) = [
            tool for tool in (await self.api.get("/api/tools"))["items"] if tool["is_builtin"] and tool["name"] == name
        ]
        return found

    async def make_loop(
        self,
        name: str,
        *,
        builtins: Sequence[str] = (),
        budget: str = "0.50",
        iterations: int = 1,
        user: str = OWNER,
        loop_done: bool = False,
    ) -> Any:
        """A loop on the paid model, whose agent has some builtins."""
        ids = [(await self.builtin(each))["id"] for each in builtins]
        spec = {
            "model": "openai:gpt-4o-mini",
            "base_url": self.brain.url,
            "max_output_tokens": 500,
            "loop_done": loop_done,
        }
        made = await self.api.make("/api/agents", {"name": name, "spec": spec, "tool_ids": ids}, user=user)
        stop = {"max_iterations": iterations, "budget_usd": budget}
        loop = {"name": name, "agent_id": made["id"], "spec": {"goal": f"the goal of {name}", "stop": stop}}
        return await self.api.make("/api/loops", loop, user=user)
