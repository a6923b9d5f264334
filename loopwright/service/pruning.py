"""Forgetting what nobody asks for any more: the engine's records of work that is over, old answers, ended sign-ins,
what endpoints were told long ago.

What became of a run, what it said and what it cost stands in our own tables, so nothing of it goes with these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dbos import DBOS

from ..cancellation import end_all
from ..core.errors import DatabaseAway
from ..store import endpoints, idempotency, sign_ins, workers
from ..store.database import Database

FIRST_SECONDS = 60.0
"""How long after its start a process forgets for the first time: it has other things to do until then."""

EVERY_SECONDS = 3600.0

BATCH = 500
"""How many of the engine's records are deleted at once."""

OVER = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Pruning:
    """Forgets in this process, now and then. Open it with `async with`, while the engine is open.

    Args:
        database: where the records are.
        engine_days: for how many days the engine's records of what is over are kept.
    """

    database: Database
    engine_days: float
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def __aenter__(self) -> Pruning:
        self._tasks = [asyncio.create_task(self._go_on())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_all(self._tasks)

    async def _go_on(self) -> None:
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            try:
                await self.prune()
            except DatabaseAway as error:
                _log.debug("not in touch with the database: %s", error)
            except Exception:  # noqa: BLE001 - logged; this must never end
                _log.exception("forgetting old records failed; it is tried again")
            await asyncio.sleep(EVERY_SECONDS)

    async def prune(self) -> int:
        """Forget now; returns how many of the engine's records went. Several processes may do it at once."""
        async with self.database.service_session() as connection:
            await idempotency.forget_old(connection)
            await sign_ins.forget_ended(connection)
            await endpoints.forget_old(connection)
            living = await workers.living(connection)
        before = (datetime.now(UTC) - timedelta(days=self.engine_days)).isoformat()
        gone = 0
        while over := await _over(before):
            await DBOS.delete_workflows_async(over)
            gone += len(over)
        if left := await _left(before, living):
            await DBOS.delete_workflows_async(left)
        return gone + len(left)


async def _over(before: str) -> list[str]:
    """Some of the records of what was over before a time."""
    found = await DBOS.list_workflows_async(
        status=OVER, completed_before=before, limit=BATCH, load_input=False, load_output=False
    )
    return [each.workflow_id for each in found]


async def _left(before: str, living: Container[str]) -> list[str]:
    """Records of what a worker had begun before a time and will not end, since it is dead: what others went on with
    has records of its own."""
    found = await DBOS.list_workflows_async(status="PENDING", end_time=before, load_input=False, load_output=False)
    return [each.workflow_id for each in found if each.executor_id is None or each.executor_id not in living]
