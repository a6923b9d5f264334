"""The loops at a glance: how the last run of each went, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.caller import Caller
from ..core.views import LoopCard
from ..store import views
from ..store.database import Database
from ..store.views import LoopOrder

__all__ = ["LoopCard", "LoopOrder", "agent_names", "loop_cards", "loop_names"]


async def loop_cards(
    database: Database, caller: Caller, *, search: str, status: str, order: LoopOrder, limit: int, page: int
) -> tuple[Sequence[LoopCard], bool]:
    """A page of the loops that the caller may see, and whether there are more."""
    async with database.as_user(caller.user_id) as connection:
        found = await views.loop_cards(
            connection, search=search, status=status, order=order, limit=limit, offset=(page - 1) * limit
        )
    return found[:limit], len(found) > limit


async def agent_names(database: Database, caller: Caller) -> Sequence[tuple[str, str]]:
    """Ids and names of the agents that the caller may use."""
    async with database.as_user(caller.user_id) as connection:
        return await views.names(connection, "agents")


async def loop_names(database: Database, caller: Caller) -> Sequence[tuple[str, str]]:
    """Ids and names of the loops that the caller may see."""
    async with database.as_user(caller.user_id) as connection:
        return await views.names(connection, "loops")
