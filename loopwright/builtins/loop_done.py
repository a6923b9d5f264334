"""`loop_done`: the agent says that further iterations are unlikely to help."""

from __future__ import annotations

from pydantic_ai import FunctionToolset, RunContext, Tool, ToolDefinition
from pydantic_ai.messages import ToolCallPart

NAME = "loop_done"


def loop_done(reason: str) -> str:
    """Say that further iterations are unlikely to give a better candidate; the run ends when this one is scored.

    Args:
        reason: why, in one sentence.
    """
    return f"Noted ({reason}). Now give your final candidate; the run ends when it is scored."


async def _once(ctx: RunContext[object], definition: ToolDefinition) -> ToolDefinition | None:
    """Offer the tool until it was called: small models call it again and again, and pay for each time."""
    called = (part.tool_name for message in ctx.messages for part in message.parts if isinstance(part, ToolCallPart))
    return None if NAME in called else definition


def loop_done_toolset() -> FunctionToolset[object]:
    """The builtin as a toolset. It does nothing by itself: the runner sees the call in the turn's messages."""
    return FunctionToolset([Tool(loop_done, prepare=_once)], id="loopwright_builtins")
