"""`start_loop`, `check_loop` and `list_loops`: an agent has loops run, on its own run's budget."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue
from pydantic_ai import FunctionToolset, Tool
from pydantic_ai.exceptions import ToolFailed

from ..agents.journal import current_call
from ..agents.tools import ToolErrors
from ..agents.wallet_model import current_meter
from ..core.errors import InvalidInput, Refused, UnknownPrice, UnmeteredRequests
from ..core.money import usd
from ..core.ports import LoopDesk, LoopOrder, Operation

if TYPE_CHECKING:
    from collections.abc import Generator

    from pydantic_ai.toolsets import AbstractToolset

    from ..agents.wallet_model import Meter

NAMES: Final = frozenset({"start_loop", "check_loop", "list_loops"})

MOST_WAIT_SECONDS: Final = 300.0
"""How long one `check_loop` may wait; the agent asks again."""


def loops_toolset(names: Collection[str], desk: LoopDesk) -> AbstractToolset[object]:
    """The builtins of these names.

    Args:
        names: which of them the agent is granted.
        desk: starts the runs.
    """

    async def list_loops() -> dict[str, JsonValue]:
        """List the loops that start_loop can start, with the most that a run of each can cost."""
        with _told():
            return await desk.list_loops()

    async def start_loop(
        loop: str, goal: str | None = None, budget_usd: str | None = None, max_iterations: int | None = None
    ) -> dict[str, JsonValue]:
        """Start a run of a stored loop. It costs money: its whole budget is set aside from your own, and what it does
        not spend comes back when it is over. It runs on its own; follow it with check_loop.

        Args:
            loop: the loop's name or id, as list_loops gives it.
            goal: another goal than the loop's.
            budget_usd: a smaller budget than the loop's, in US dollars.
            max_iterations: fewer iterations than the loop's.
        """
        meter, operation = _here()
        with _told():
            order = LoopOrder(loop=loop, goal=goal, budget_usd=_dollars(budget_usd), max_iterations=max_iterations)
            return await desk.start_loop(order, meter.store, operation, keep=meter.keep)

    async def check_loop(run_id: str, wait_seconds: float = 60.0) -> dict[str, JsonValue]:
        """Say how a run stands that you started, with its best candidate so far.

        Args:
            run_id: as start_loop gave it.
            wait_seconds: how long to wait for its end; 0 answers at once.
        """
        meter, _ = _here()
        with _told():
            return await desk.check_loop(run_id, meter.store, wait_seconds=min(max(wait_seconds, 0), MOST_WAIT_SECONDS))

    every: list[Tool[object]] = [Tool(list_loops), Tool(start_loop), Tool(check_loop)]
    tools = [tool for tool in every if tool.name in names]
    return ToolErrors(FunctionToolset(tools, id="loopwright_loops"))


def _dollars(text: str | None) -> Decimal | None:
    try:
        return None if text is None else usd(text)
    except ValueError as error:
        raise ToolFailed(f"budget_usd: {error}") from None


def _here() -> tuple[Meter, Operation]:
    """Whose money it is, and which call asks for it."""
    meter, operation = current_meter.get(), current_call.get()
    if meter is None or operation is None:
        raise UnmeteredRequests("start_loop was called outside a run, so there is no wallet to pay from")
    return meter, operation


@contextmanager
def _told() -> Generator[None]:
    """What is refused is an answer that the agent can act on; its turn goes on."""
    try:
        yield
    except (Refused, InvalidInput, UnknownPrice) as error:
        raise ToolFailed(str(error)) from None
