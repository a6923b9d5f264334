"""One iteration of a run, whole: what the agent was shown, what it did, and what that cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ..core.caller import Caller
from ..core.errors import NotFound
from ..core.models import Prompt
from ..core.records import IterationRecord, Run
from ..core.spec import LoopSpec
from ..core.state import Past, RunState
from ..core.views import CostPart
from ..core.wallet import Wallet
from ..runner.history import show
from ..runner.plan import Plan
from ..store import run_queries, views
from ..store.database import Database

MOST_REPLAYED = 500
"""After more iterations than this the prompt isn't rebuilt: all of them would have to be read for it."""


@dataclass(frozen=True)
class Told:
    """An iteration with what surrounds it."""

    run: Run
    record: IterationRecord
    before: IterationRecord | None
    """The best of its attempt before it."""
    prompt: Prompt | None
    """What the agent was shown, rebuilt from the iterations before; `None` late in a long run, and in a
    conversation."""
    costs: Sequence[CostPart]


async def tell(database: Database, caller: Caller, run_id: str, position: int) -> Told:
    """An iteration of a run by its place.

    Raises:
        NotFound: there is none that the caller may see.
    """
    async with database.as_user(caller.user_id) as connection:
        run = await run_queries.get_run(connection, run_id)
        record = await views.iteration_at(connection, run_id, position) if run else None
        if run is None or record is None:
            raise NotFound
        data = record.data
        before = await views.best_before(connection, run_id, data.attempt, position)
        costs = await views.cost_parts(connection, run_id, data.attempt, data.number)
        earlier = (
            await run_queries.list_iterations(connection, run_id, 0, position - 1)
            if position <= MOST_REPLAYED and run.thread_id is None
            else None
        )
    prompt = None if earlier is None else _prompt(run, earlier, data.attempt)
    return Told(run, record, before, prompt, costs)


async def costs(database: Database, caller: Caller, run_id: str) -> Sequence[CostPart]:
    """What a run cost so far, by role and model."""
    async with database.as_user(caller.user_id) as connection:
        return await views.cost_parts(connection, run_id, None, None)


def _prompt(run: Run, earlier: Sequence[IterationRecord], attempt: int) -> Prompt:
    spec = LoopSpec.model_validate({**run.spec, "goal": run.goal})
    plan = Plan(
        run_id=run.id,
        name=run.loop_name,
        goal=run.goal,
        stop=spec.stop_condition,
        direction=spec.direction,
        attempts=spec.attempts,
        history=spec.history,
        has_schema=spec.agent.output_schema is not None,
        model=spec.agent.model,
    )
    past = Past(
        started_at=run.started_at or datetime.now(UTC),
        iterations=tuple(each.data for each in earlier),
        elapsed=tuple(each.elapsed_seconds for each in earlier),
    )
    start = RunState(
        started_at=past.started_at,
        attempt=attempt,
        direction=spec.direction,
        has_evaluator=spec.evaluator is not None,
        keep=None if spec.history.policy == "full" else spec.history.recent,
    )
    return show(plan, start.replay(past, Wallet(cap=run.cap_usd)))
