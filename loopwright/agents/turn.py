"""One agent turn by pydantic-ai, every model request of it on the run's wallet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import cast

from pydantic import JsonValue
from pydantic_ai import UsageLimits
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

from ..core.errors import AgentFailed, BudgetExceeded, LoopwrightError, UnmeteredRequests
from ..core.models import Candidate, Message, Prompt, ToolCall, Turn
from ..core.ports import Spender, TurnContext
from .prices import PriceBook
from .wallet_model import Meter, Metered, metering

DONE_TOOL = "loop_done"


class AgentRunner:
    """Takes turns with a pydantic-ai agent.

    Args:
        agent: the agent; its model requests are metered whatever capabilities it has of its own.
        prices: what its models cost.
        max_output_tokens: most tokens of one model request, where the agent's own settings name none.
        max_requests: most model requests of one turn.
        toolsets: tools that every turn gets beside the agent's own, e.g. the builtins.
    """

    def __init__(
        self,
        agent: AbstractAgent[object, object],
        *,
        prices: PriceBook,
        max_output_tokens: int = 4096,
        max_requests: int = 20,
        toolsets: Sequence[AbstractToolset[object]] = (),
    ) -> None:
        self.agent = agent
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
        )
        *earlier, last = prompt.messages
        try:
            with metering(meter):
                result = await self.agent.run(
                    last.text,
                    message_history=[_message(m) for m in earlier],
                    toolsets=self._toolsets,
                    capabilities=[Metered(meter)],
                    usage_limits=UsageLimits(request_limit=self._max_requests),
                )
        except Exception as error:
            # The boundary to everybody's code: models, providers, tools. Each failure becomes one of ours.
            raise our_error(error, AgentFailed) from error
        if result.usage.requests > meter.seen:
            unseen = result.usage.requests - meter.seen
            raise UnmeteredRequests(
                f"{unseen} model request(s) of this turn went around the wallet; give agents that your tools call "
                "the capability `loopwright.Metered()`"
            )
        messages = result.new_messages()
        calls = tuple(_tool_calls(messages))
        return Turn(candidate=_candidate(result.output), done_reason=_done_reason(messages), tool_calls=calls)


def _message(message: Message) -> ModelMessage:
    if message.role == "user":
        return ModelRequest(parts=[UserPromptPart(message.text)])
    return ModelResponse(parts=[TextPart(message.text)])


def _candidate(output: object) -> Candidate:
    if isinstance(output, str):
        return Candidate(text=output)
    data = cast(JsonValue, to_jsonable_python(output))
    return Candidate(text=json.dumps(data, ensure_ascii=False, indent=2), data=data)


def _tool_calls(messages: Sequence[ModelMessage]) -> Iterator[ToolCall]:
    returned = {
        part.tool_call_id: part.model_response_str()
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                arguments = part.args if isinstance(part.args, str) else to_json(part.args or {}).decode()
                yield ToolCall(name=part.tool_name, arguments=arguments, result=returned.get(part.tool_call_id, ""))


def _done_reason(messages: Sequence[ModelMessage]) -> str | None:
    """The reason the agent itself gave to `loop_done`; the calls of agents that it asked are in their own messages."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.tool_name == DONE_TOOL:
                try:
                    return str(part.args_as_dict().get("reason", ""))
                except ValueError:  # arguments that aren't JSON: it still said that it is done
                    return ""
    return None


def our_error(error: Exception, otherwise: Callable[[str], LoopwrightError]) -> LoopwrightError:
    """The error of ours inside an error of somebody else's, the budget's first; `otherwise` makes one of its text."""
    inside = [e for e in _chain(error) if isinstance(e, LoopwrightError)]
    for found in (*(e for e in inside if isinstance(e, BudgetExceeded)), *inside):
        return found
    return otherwise(f"{type(error).__name__}: {error}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    yield error
    if isinstance(error, BaseExceptionGroup):
        for inner in cast(BaseExceptionGroup[BaseException], error).exceptions:
            yield from _chain(inner)
    if error.__cause__ is not None:
        yield from _chain(error.__cause__)
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _chain(error.__context__)
