"""Calls one tool once, just as an agent's turn would, without a model that costs anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pydantic import JsonValue
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ..core.errors import AgentFailed
from ..core.spec import AgentSpec, ToolSpec
from ..egress import EgressClient
from .failures import our_error
from .tools import build_toolsets


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A tool as an agent's model is told of it."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(kw_only=True)
class Tried:
    """What came of calling a tool."""

    offered: Sequence[Offered] = ()
    """The tools that there are."""
    answer: str | None = None
    """What the agent's model would be told; `None` where no tool was called."""
    failed: bool = False
    """Whether it would be told that the call failed."""


@dataclass
class _Caller:
    """Stands where the model would: calls the one tool, and keeps what comes back."""

    name: str
    arguments: dict[str, JsonValue]
    tried: Tried = field(default_factory=Tried)

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if self.tried.offered or not info.function_tools:
            self._keep(messages)
            return ModelResponse(parts=[TextPart("done")])
        self.tried.offered = [
            Offered(name=each.name, description=each.description or "", parameters=each.parameters_json_schema)
            for each in info.function_tools
        ]
        if not self.name:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(self.name, self.arguments)])

    def _keep(self, messages: list[ModelMessage]) -> None:
        for part in messages[-1].parts:
            if isinstance(part, ToolReturnPart):
                self.tried.answer, self.tried.failed = part.model_response_str(), part.outcome != "success"


async def call_once(
    tool: ToolSpec, name: str, arguments: dict[str, JsonValue], *, egress: EgressClient, folder: Path
) -> Tried:
    """Call a tool once; without a name only say which there are.

    Args:
        tool: the tool, or the server that has several.
        name: which of them.
        arguments: what it is given; they are checked as those of a model are.
        egress: carries its requests.
        folder: where an MCP server that is a command is started.

    Raises:
        AgentFailed: a server can't be reached.
        InvalidInput: the tool can't work here.
    """

    def no_agents(_: AgentSpec, __: str) -> NoReturn:
        raise AgentFailed("an agent among tools is tried with its agent")

    toolsets = build_toolsets([tool], egress=egress, folder=folder, build_agent=no_agents)
    caller = _Caller(name, arguments)
    agent: Agent[None, str] = Agent(FunctionModel(caller), toolsets=toolsets, retries=1)  # pyright: ignore[reportArgumentType]
    try:
        await agent.run("Call the tool.")
    except Exception as error:
        raise our_error(error, AgentFailed) from error
    return caller.tried
