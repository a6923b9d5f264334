"""People who talk to agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.api.world import Api
from tests.builtins.world import Brain, House
from tests.postgres import OWNER

ALL = ("start_loop", "check_loop", "list_loops")


@dataclass
class Answer:
    """A stream of events, read to its end."""

    status: int
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    ids: list[int] = field(default_factory=list[int])

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["type"] == kind]

    @property
    def streamed(self) -> str:
        return "".join(each["text"] for each in self.of("text_delta"))

    @classmethod
    def read(cls, status: int, text: str) -> Answer:
        lines = text.splitlines()
        data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        return cls(status, data, [int(line.removeprefix("id: ")) for line in lines if line.startswith("id: ")])


@dataclass
class Chat:
    """The service, its model, and what people do with conversations."""

    house: House

    @property
    def api(self) -> Api:
        return self.house.api

    @property
    def brain(self) -> Brain:
        return self.house.brain

    async def make_agent(self, name: str = "helper", /, *, builtins: Sequence[str] = ALL, **spec: object) -> Any:
        ids = [(await self.house.builtin(each))["id"] for each in builtins]
        whole = {"model": "openai:gpt-4o-mini", "base_url": self.brain.url, "max_output_tokens": 500, **spec}
        return await self.api.make("/api/agents", {"name": name, "spec": whole, "tool_ids": ids})

    async def begin(self, *, cap: str = "0.50", builtins: Sequence[str] = ALL, **spec: object) -> str:
        """A new conversation."""
        agent = await self.make_agent("helper", builtins=builtins, **spec)
        return (await self.api.make("/api/threads", {"agent_id": agent["id"], "cap_usd": cap}))["id"]

    async def say(self, thread: str, text: str, *, user: str = OWNER, **headers: str) -> Answer:
        """Send a message, and read its answer."""
        path = f"/api/threads/{thread}/messages"
        answer = await self.api.call("POST", path, {"text": text}, user=user, **headers)
        return Answer.read(answer.status_code, answer.text if answer.status_code == 200 else "")

    async def refused(self, thread: str, text: str, **headers: str) -> Any:
        """Send a message that is refused; gives the problem."""
        answer = await self.api.call("POST", f"/api/threads/{thread}/messages", {"text": text}, **headers)
        assert answer.status_code in (404, 409, 422), answer.text
        return answer.json()

    async def thread(self, thread: str) -> Any:
        return await self.api.get(f"/api/threads/{thread}")

    async def last(self, thread: str) -> Any:
        return (await self.thread(thread))["items"][-1]

    async def until(self, thread: str, status: str) -> Any:
        """The conversation, once it has a status."""
        async with asyncio.timeout(30):
            while (found := await self.thread(thread))["status"] != status:
                await asyncio.sleep(0.02)
        return found
