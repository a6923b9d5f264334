"""The scores of runs, for charts and for comparing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.caller import Caller
from ..core.errors import NotFound
from ..core.records import Run
from ..core.views import Point
from ..store import run_queries, views
from ..store.database import Database

__all__ = ["Point", "Scored", "compare", "scores"]


@dataclass(frozen=True)
class Scored:
    """A run with the scores of its iterations."""

    run: Run
    points: Sequence[Point]


async def scores(database: Database, caller: Caller, run_id: str) -> Scored:
    """A run with its best candidate and all its scores.

    Raises:
        NotFound: there is no such run that the caller may see.
    """
    async with database.as_user(caller.user_id) as connection:
        run = await run_queries.get_run(connection, run_id)
        if run is None:
            raise NotFound
        return Scored(run, await views.points(connection, run_id))


async def compare(database: Database, caller: Caller, run_ids: Sequence[str]) -> Sequence[Scored]:
    """Several runs side by side.

    Raises:
        NotFound: one of them is not there for the caller.
    """
    return [await scores(database, caller, run_id) for run_id in run_ids]
