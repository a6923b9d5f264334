"""Takes turns with agents from loop files, against the provider of `provider.py`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent

from loopwright.agents.build import build_agent
from loopwright.agents.prices import PriceBook
from loopwright.agents.turn import AgentRunner
from loopwright.builtins.loop_done import loop_done_toolset
from loopwright.core.events import MoneySettled
from loopwright.core.models import Message, Prompt, Turn
from loopwright.core.ports import Guard, TurnContext
from loopwright.core.spec import AgentSpec, Price
from loopwright.core.wallet import Charge
from loopwright.egress import EgressClient
from loopwright.store.memory import MemoryRunStore
from loopwright.testing import FakeClock, MemoryJournal

from .provider import Provider, Reply

PRICES = {"openai:gpt-4o-mini": Price.model_validate({"input": "1", "output": "10"})}
"""USD per million tokens: a default reply of 100 tokens in and 10 out costs $0.0002."""

ONE_REQUEST = Decimal("0.0002")


def prompt(*texts: str) -> Prompt:
    """A prompt whose messages are by turns the user's and the agent's."""
    roles: tuple[Any, ...] = ("user", "assistant")
    return Prompt(messages=tuple(Message(role=roles[n % 2], text=text) for n, text in enumerate(texts)))


@dataclass
class World:
    """One run's wallet, a provider, and whatever the tools of an agent need."""

    provider: Provider
    egress: EgressClient
    folder: Path
    cap: str | None = "10"
    prices: dict[str, Price] = field(default_factory=lambda: dict(PRICES))
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    guard: Guard | None = None

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        cap = None if self.cap is None else Decimal(self.cap)
        self.store = MemoryRunStore("run-1", cap=cap, clock=self.clock, sinks=[self.journal])
        self.made: list[Agent[object, object]] = []
        self.turns = 0

    def spec(self, **fields: Any) -> dict[str, Any]:
        """An agent as a loop file has it."""
        return {"model": "openai:gpt-4o-mini", "base_url": self.provider.url("/v1"), "max_output_tokens": 100, **fields}

    def agent(self, **fields: Any) -> Agent[object, object]:
        spec = AgentSpec.model_validate(self.spec(**fields))
        return build_agent(spec, egress=self.egress, folder=self.folder, made=self.made)

    def runner(self, agent: AbstractAgent[Any, Any], **options: Any) -> AgentRunner:
        return AgentRunner(agent, prices=PriceBook(self.prices), toolsets=[loop_done_toolset()], **options)

    def context(self, **fields: Any) -> TurnContext:
        known: dict[str, Any] = {"run_id": "run-1", "attempt": 1, "number": 1, "store": self.store, "clock": self.clock}
        return TurnContext(**{**known, "guard": self.guard, **fields})

    async def take(
        self, agent: AbstractAgent[Any, Any], *replies: Reply, say: Prompt | None = None, **options: Any
    ) -> Turn:
        """Take the next turn of the run; the provider gives these replies, then its default."""
        self.provider.script = list(replies)
        self.turns += 1
        async with AsyncExitStack() as stack:
            for each in (agent, *(inner for inner in self.made if inner is not agent)):
                await stack.enter_async_context(each)
            return await self.runner(agent, **options).take_turn(say or prompt("go"), self.context(number=self.turns))

    @property
    def charges(self) -> list[Charge]:
        return [event.charge for event in self.journal.of(MoneySettled)]

    def messages(self, request: int = -1) -> list[dict[str, Any]]:
        """The messages of a request, the last one by default."""
        return self.provider.bodies[request]["messages"]

    def told(self, request: int = -1) -> list[str]:
        """What the tools' results in a request say."""
        return [str(message["content"]) for message in self.messages(request) if message["role"] == "tool"]

    def offered(self, request: int = 0) -> dict[str, dict[str, Any]]:
        """The tools that a request offers, by name."""
        return {tool["function"]["name"]: tool["function"] for tool in self.provider.bodies[request].get("tools", [])}


def call(name: str, /, **arguments: Any) -> Reply:
    """The model calls a tool."""
    return Reply(tools=((name, arguments),))


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


MakeWorld = Callable[..., World]
