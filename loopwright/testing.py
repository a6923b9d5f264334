"""For the tests of people who build on Loopwright: a scripted model, a fake clock, an in-memory journal.

Nothing here reaches the network, and nothing costs money.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from .core.events import RunEvent
from .core.spec import Price

if TYPE_CHECKING:
    from pydantic_ai import RunContext

__all__ = ["SCRIPTED_PRICES", "FakeClock", "MemoryJournal", "ScriptedModel"]

E = TypeVar("E", bound=RunEvent)

Reply: TypeAlias = "str | ModelResponse | Exception | Callable[[str], str | ModelResponse]"
"""What a scripted model answers: a text, a whole response, an error to raise, or a function of the last prompt."""

SCRIPTED_PRICES = {"scripted:scripted": Price.model_validate({"input": 1, "output": 10})}
"""Prices for a `ScriptedModel`, USD per million tokens: pass them as `Loop(prices=SCRIPTED_PRICES, …)`."""


class ScriptedModel(Model):
    """A model that answers from a script, and says what it was asked.

    Args:
        replies: one for each request, in order; the last one is repeated. A single function answers every request.
        usage: the usage that each response reports, where the reply doesn't carry its own.
        name: the model's name; its system is `scripted`, so its price goes under `scripted:<name>`.
    """

    def __init__(
        self,
        replies: Iterable[Reply] | Callable[[str], str | ModelResponse],
        *,
        usage: RequestUsage | None = None,
        name: str = "scripted",
    ) -> None:
        super().__init__()
        self._replies: list[Reply] = [replies] if callable(replies) else list(replies)
        if not self._replies:
            raise ValueError("a ScriptedModel needs at least one reply")
        self._usage = usage or RequestUsage(input_tokens=100, output_tokens=10)
        self._name = name
        self.prompts: list[str] = []
        """The last user prompt of each request so far."""
        self.settings_seen: list[ModelSettings] = []
        """The model settings of each request so far."""

    @property
    def requests(self) -> int:
        """How many requests reached the model."""
        return len(self.prompts)

    @property
    def model_name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def system(self) -> str:
        """`scripted`."""
        return "scripted"

    @property
    def provider(self) -> None:
        """None: there is no provider."""
        return

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Give the next reply of the script."""
        prompt = _last_prompt(messages)
        reply = self._replies[min(len(self.prompts), len(self._replies) - 1)]
        self.prompts.append(prompt)
        self.settings_seen.append(model_settings or ModelSettings())
        answer = reply(prompt) if callable(reply) else reply
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            answer = ModelResponse(parts=[TextPart(answer)])
        response = copy.deepcopy(answer)  # the script's own stays as it was, however often it is given
        if not response.usage.has_values() and not response.usage.unmeasured_requests:
            response.usage = copy.copy(self._usage)
        response.model_name = self._name
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[object] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Give the next reply as a stream."""
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)


def _last_prompt(messages: list[ModelMessage]) -> str:
    texts = [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str)
    ]
    return texts[-1] if texts else ""


class FakeClock:
    """A clock that moves only when it is told to.

    Args:
        start: the time it shows first.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.time = start or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """The time it shows."""
        return self.time

    def advance(self, seconds: float) -> None:
        """Move it; a negative number sets it back."""
        self.time += timedelta(seconds=seconds)


@dataclass
class MemoryJournal:
    """A journal in a list: pass it as a sink, or fill it from `Loop.stream`."""

    events: list[RunEvent] = field(default_factory=list[RunEvent])

    def __call__(self, event: RunEvent) -> None:
        """Keep an event."""
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]
