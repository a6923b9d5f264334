"""Where agents have loops started: on behalf of the owner of their run, and on that run's wallet."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pydantic import JsonValue

from ..cancellation import whatever_happens
from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotAllowed, NotFound, Problem
from ..core.money import show_usd
from ..core.ports import LoopOrder, Operation, RunStore
from ..core.stop import budget_of, parse_stop
from ..store import run_queries
from ..store.run_queries import Cleared, NewRun
from ..store.run_store import ChildStart, PgRunStore
from ..store.runs import Submission
from .follow import follow
from .guardrails import clear
from .loops import find_loop, list_loops
from .start import Wanted, prepare_loop

if TYPE_CHECKING:
    from .runtime import Runtime

MAX_DEPTH: Final = 1
"""How many runs may stand one below the other on one wallet: a run that an agent started starts none itself."""

MAX_STARTS: Final = 3
"""How many runs an agent may start in one turn."""

LISTED: Final = 50

SHOWN: Final = 8_000
"""Characters of a candidate that `check_loop` gives."""


@dataclass(frozen=True)
class RunDesk:
    """Implements `core.ports.LoopDesk`."""

    runtime: Runtime
    owner: Caller
    """As whom loops are found and started: never with more than a member's rights, as the runtime's database holds."""

    async def list_loops(self) -> dict[str, JsonValue]:
        """See `core.ports.LoopDesk.list_loops`."""
        page = await list_loops(self.runtime, self.owner, cursor=None, limit=LISTED)
        return {
            "loops": [
                {
                    "name": loop.name,
                    "id": str(loop.id),
                    "goal": str(loop.spec.get("goal", ""))[:400],
                    "costs_at_most_usd": None if budget is None else f"{budget:f}",
                }
                for loop in page.items
                for budget in (budget_of(parse_stop(loop.spec["stop"])),)
            ]
        }

    async def start_loop(
        self, order: LoopOrder, payer: RunStore, operation: Operation, *, keep: Decimal
    ) -> dict[str, JsonValue]:
        """See `core.ports.LoopDesk.start_loop`."""
        store = _durable(payer)
        loop = await find_loop(self.runtime, self.owner, order.loop)
        wanted = Wanted(goal=order.goal, budget_usd=order.budget_usd, max_iterations=order.max_iterations)
        run = await prepare_loop(self.runtime, self.owner, loop.id, wanted, within_caps=True)
        if run.cap_usd is None:
            message = "this loop has no budget of its own; say how much of yours its run may take"
            raise InvalidInput(Problem(field="budget_usd", message=message))
        cleared = await clear(self.runtime.database, self.owner, run)
        # Once it is in the database it is given to the engine, though the turn be cancelled in between.
        run_id = await whatever_happens(self._start(cleared, run.cap_usd, store, operation, keep))
        return {
            "run_id": run_id,
            "loop": loop.name,
            "costs_at_most_usd": f"{run.cap_usd:f}",
            "next": f"it runs on its own and may cost up to {show_usd(run.cap_usd)}, which you say to whoever asked "
            "for it; check_loop waits for it and gives its best candidate",
        }

    async def _start(
        self, run: Cleared[NewRun], cap: Decimal, store: PgRunStore, operation: Operation, keep: Decimal
    ) -> str:
        start = await store.start_child(run, operation, keep=keep, max_depth=MAX_DEPTH, max_starts=MAX_STARTS)
        if start.run_id is None:
            raise _why_not(start, cap)
        await self.runtime.submit(Submission(start.run_id, UUID(self.owner.user_id), 0))
        return start.run_id

    async def check_loop(self, run_id: str, payer: RunStore, *, wait_seconds: float) -> dict[str, JsonValue]:
        """See `core.ports.LoopDesk.check_loop`."""
        store = _durable(payer)
        async with self.runtime.database.service_session() as connection:
            if await run_queries.paid_by(connection, run_id) != store.run_id:
                raise NotFound(f"you have started no run {run_id[:60]!r}; start_loop gives the id")
        run = await follow(self.runtime, self.owner, run_id, seconds=wait_seconds)
        await store.look_at_children()
        best = run.best.text if run.best else None
        return {
            "run_id": run.id,
            "status": run.status,
            "stop_reason": run.stop_reason,
            "sentence": run.sentence,
            "iterations": run.iterations,
            "best_score": run.best_score,
            "best": best if best is None or len(best) <= SHOWN else f"{best[:SHOWN]} [cut]",
            "spent_usd": f"{run.spent_usd:f}",
        }


def _durable(payer: RunStore) -> PgRunStore:
    if not isinstance(payer, PgRunStore):
        raise NotAllowed("this run is not one of the service's, so it can't pay for another one")
    return payer


def _why_not(start: ChildStart, cap: Decimal) -> Exception:
    match start.outcome:
        case "off":
            return NotAllowed("an admin has switched start_loop off")
        case "deep":
            return NotAllowed("this run was itself started by an agent, and such runs start none; do the work yourself")
        case "many":
            return NotAllowed(f"you have started {MAX_STARTS} runs in this turn, and more are not allowed")
        case _:
            free = show_usd(max(start.free or Decimal(0), Decimal(0)))
            message = f"the run may cost {show_usd(cap)}, and {free} of your budget is free; give a smaller budget_usd"
            return Conflict(message)
