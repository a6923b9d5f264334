"""One agent turn by pydantic-ai, every model request of it on the run's wallet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

from pydantic import JsonValue
from pydantic_ai import RunUsage, UsageLimits
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.toolsets import AbstractToolset
from pydantic_core import to_json, to_jsonable_python

from ..core.errors import AgentFailed, UnmeteredRequests
from ..core.models import Candidate, Message, Prompt, ToolCall, Turn
from ..core.ports import Spender, TurnContext
from ..functions import DAEMON_THREADS
from .failures import our_error
from .live_text import LiveText
from .prices import PriceBook
from .wallet_model import Meter, Metered, metering

DONE_TOOL = "loop_done"

OUTPUT_TOOL = "final_result"
"""How pydantic-ai names the tools through which a model gives a structured output."""


class AgentRunner:
    """Takes turns with a pydantic-ai agent.

    Args:
        agent: the agent; its model requests are metered whatever capabilities it has of its own.
        prices: what its models cost.
        max_output_tokens: most tokens of one model request, where the agent's own settings name none.
        max_requests: most model requests of one turn.
        toolsets: tools that every turn gets beside the agent's own, e.g. the builtins.
        deps: what the agent's own tools and instructions find as `ctx.deps`.
    """

    def __init__(
        self,
        agent: AbstractAgent[Any, Any],
        *,
        prices: PriceBook,
        max_output_tokens: int = 4096,
        max_requests: int = 20,
        toolsets: Sequence[AbstractToolset[object]] = (),
        deps: object = None,
    ) -> None:
        self.agent = agent
        self._deps = deps
        self._prices = prices
        self._max_output_tokens = max_output_tokens
        self._max_requests = max_requests
        self._toolsets = list(toolsets)

    async def take_turn(self, prompt: Prompt, context: TurnContext) -> Turn:
        """See `core.ports.AgentPort.take_turn`."""
        meter = Meter(
            store=context.store,
            spender=Spender(role="agent", attempt=context.attempt, iteration=context.number),
            prices=self._prices,
            keep=context.keep,
            max_output_tokens=self._max_output_tokens,
            text=LiveText.of(context),
            guard=context.guard,
        )
        usage = RunUsage()
        try:
            turn = await self._run(prompt, meter, usage)
        except Exception as error:
            _refuse_unmetered(usage, meter)
            raise our_error(error, AgentFailed) from error
        _refuse_unmetered(usage, meter)
        return turn

    async def _run(self, prompt: Prompt, meter: Meter, usage: RunUsage) -> Turn:
        *earlier, last = prompt.messages
        # Sync tools run in threads that can be left alone, so that one that hangs can't hold up the run's end.
        with metering(meter), self.agent.using_thread_executor(DAEMON_THREADS):
            result = await self.agent.run(
                last.text,
                message_history=[_message(m) for m in earlier],
                deps=self._deps,
                toolsets=self._toolsets,
                capabilities=[Metered(meter)],
                usage=usage,
                usage_limits=UsageLimits(request_limit=self._max_requests),
            )
        messages = result.new_messages()
        calls = tuple(_tool_calls(messages))
        return Turn(candidate=_candidate(result.output), done_reason=_done_reason(messages), tool_calls=calls)


def _refuse_unmetered(usage: RunUsage, meter: Meter) -> None:
    """Find requests around the wallet: agents that a tool called with the turn's usage, but without its meter.

    Raises:
        UnmeteredRequests: there are some.
    """
    if (unseen := usage.requests - meter.counts.counted_in(usage)) > 0:
        raise UnmeteredRequests(
            f"{unseen} model request(s) of this turn went around the wallet; give agents that your tools call "
            "the capability `loopwright.Metered()`"
        )


def _message(message: Message) -> ModelMessage:
    if message.role == "user":
        return ModelRequest(parts=[UserPromptPart(message.text)])
    return ModelResponse(parts=[TextPart(message.text)])


def _candidate(output: object) -> Candidate:
    if isinstance(output, str):
        return Candidate(text=output)
    data = cast(JsonValue, to_jsonable_python(output))
    return Candidate(text=json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False), data=data)


def _tool_calls(messages: Sequence[ModelMessage]) -> Iterator[ToolCall]:
    for message, answer in zip(messages, (*messages[1:], ModelRequest(parts=[])), strict=True):
        # Only in the message that follows: some servers give every call the same id.
        returned = {p.tool_call_id: p.model_response_str() for p in answer.parts if isinstance(p, ToolReturnPart)}
        for part in message.parts:
            if isinstance(part, ToolCallPart) and not part.tool_name.startswith(OUTPUT_TOOL):
                arguments = part.args if isinstance(part.args, str) else to_json(part.args or {}).decode()
                yield ToolCall(name=part.tool_name, arguments=arguments, result=returned.get(part.tool_call_id, ""))


def _done_reason(messages: Sequence[ModelMessage]) -> str | None:
    """The reason the agent itself gave to `loop_done`; the calls of agents that it asked are in their own messages."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.tool_name == DONE_TOOL:
                # Arguments that are wrong, or no JSON at all, still say that it is done.
                return str(part.args_as_dict().get("reason", ""))
    return None
