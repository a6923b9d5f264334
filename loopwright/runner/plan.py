"""What the loop is given: a plan, and the ports through which it reaches the world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal

from ..core.models import Conversation, Direction
from ..core.ports import AgentPort, Clock, EvaluatorContext, Guard, RunStore, Viewers
from ..core.spec import HistorySpec
from ..core.stop import Stop, StopReason
from .scoring import Scorer


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to do; it doesn't change while the run goes on."""

    run_id: str
    name: str
    goal: str
    stop: Stop
    direction: Direction = "maximize"
    attempts: int = 1
    history: HistorySpec = field(default_factory=HistorySpec)
    has_schema: bool = False
    """Whether candidates are JSON."""
    may_end: bool = True
    """Whether the agent can end the run by `loop_done`."""
    model: str = ""
    """The agent's model, for people."""
    conversation: Conversation | None = None
    """What was said, where the run is a conversation: then each of its iterations answers a message."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The world as the loop sees it."""

    agent: AgentPort
    scorer: Scorer | None
    store: RunStore
    clock: Clock
    evaluation: EvaluatorContext
    last_lap_usd: Decimal = Decimal(0)
    """What scoring one candidate may cost before any was scored: kept free from the first turn on."""
    viewers: Viewers | None = None
    """Who gets the agent's text as it comes."""
    guard: Guard | None = None
    """Judges what the run is asked to do, and tool calls."""
    lifespan: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    """Entered for the length of the run: holds connections and tool servers open."""


class Halt:
    """Asks the attempts of a run to stop now: what is in flight is cancelled, what is paid for is kept."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.reason: StopReason | None = None

    def __call__(self, reason: StopReason) -> None:
        """Stop with this reason; the first one stays."""
        if self.reason is None:
            self.reason = reason
        self._event.set()

    async def wait(self) -> None:
        """Return when somebody asked to stop."""
        await self._event.wait()
