"""`loop_done`: the agent says that further iterations are unlikely to help."""

from __future__ import annotations

from pydantic_ai import FunctionToolset

NAME = "loop_done"


def loop_done(reason: str) -> str:
    """Say that further iterations are unlikely to give a better candidate; the run ends when this one is scored.

    Args:
        reason: why, in one sentence.
    """
    return f"Noted ({reason}). Now give your final candidate; the run ends when it is scored."


def loop_done_toolset() -> FunctionToolset[object]:
    """The builtin as a toolset. It does nothing by itself: the runner sees the call in the turn's messages."""
    return FunctionToolset([loop_done], id="loopwright_builtins")
