"""Forking a run: a new one that begins after the first iterations of another."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotFound, Problem
from ..core.events import ForkedFrom, RunStarted
from ..core.records import IterationRecord, Run
from ..core.spec import LoopSpec
from ..core.state import RunState
from ..core.stop import budget_of
from ..core.wallet import Wallet
from ..runner.library import new_run_id
from ..store import activity, run_queries
from ..store.database import Connection
from ..store.run_queries import NewRun
from ..store.runs import Submission
from .checks import check_loop
from .extend import would_stop
from .guardrails import clear
from .once import Once, do_once, replayed
from .runtime import Runtime
from .start import Started, Wanted, wanted_spec


async def fork_run(
    runtime: Runtime, caller: Caller, run_id: str, *, many: int, wanted: Wanted, once: Once | None = None
) -> Started:
    """Start a new run of the caller's from the first `many` finished iterations of another, in the order in which they
    finished. They cost nothing in the new run, which has a wallet and a clock of its own.

    Raises:
        NotFound: there is no such run that the caller may see.
        Conflict: it is a conversation.
        InvalidInput: it has no so many iterations, the new run would stop at once, or can't work.
        GuardrailRefused: a guardrail refuses it.
    """
    if answer := await replayed(runtime.database, caller, once, Started):
        return answer
    run, spec, kept = await _prepare(runtime, caller, run_id, many, wanted)
    cleared = await clear(runtime.database, caller, run)

    async def insert(connection: Connection) -> Started:
        await run_queries.insert_run(connection, cleared)
        await run_queries.copy_iterations(
            connection, run_id, run.id, many, _opening(run, spec, ForkedFrom(run_id=run_id, iteration=many))
        )
        await run_queries.set_best(connection, run.id, many, _best(spec, kept))
        await activity.note(connection, caller.door, "run_forked", f"run:{run.id}", parent=run_id, iteration=many)
        return Started(run_id=run.id, events_url=f"/api/runs/{run.id}/events")

    started, now = await do_once(runtime.database, caller, once, Started, insert)
    if now:
        await runtime.submit(Submission(started.run_id, UUID(caller.user_id), 0))
    return started


async def _prepare(
    runtime: Runtime, caller: Caller, run_id: str, many: int, wanted: Wanted
) -> tuple[NewRun, LoopSpec, list[IterationRecord]]:
    """The new run, its loop, and the iterations that it begins with: checked, and not yet in the queue."""
    async with runtime.database.as_user(caller.user_id) as connection:
        source = await run_queries.get_run(connection, run_id)
        if source is None:
            raise NotFound
        if source.thread_id is not None:
            raise Conflict("this run is a conversation, which is not forked; begin another one")
        kept = await run_queries.list_iterations(connection, run_id, 0, many)
    if len(kept) < many:
        message = f"the run has {source.iterations} finished iterations, so not {many} to begin from"
        raise InvalidInput(Problem(field="iteration", message=message))
    spec = wanted_spec(LoopSpec.model_validate({**source.spec, "goal": source.goal}), wanted)
    cap = budget_of(spec.stop_condition)
    if reason := would_stop(spec, kept, Wallet(cap=cap), timedelta(0)):
        message = f"a run from here would stop at once ({reason}); take an earlier iteration or another limit"
        raise InvalidInput(Problem(field="iteration", message=message))
    folder = await _check(runtime, caller, source, spec)
    async with runtime.database.service_session() as connection:
        # What a stranger's message started without tools has none in its forks either.
        granted = await run_queries.builtins_of(connection, run_id) - {"loop_done"}
    run = NewRun(
        id=new_run_id(),
        loop_id=source.loop_id,
        loop_name=source.loop_name,
        agent_id=source.agent_id,
        door=caller.door,
        spec=spec.model_dump(mode="json", exclude_unset=True),
        goal=spec.goal,
        cap_usd=cap,
        folder=folder,
        parent_run_id=run_id,
        forked_from_iteration=many,
        with_builtins=bool(granted),
    )
    return run, spec, kept


async def _check(runtime: Runtime, caller: Caller, source: Run, spec: LoopSpec) -> str | None:
    """Check that the new run can work here and now; returns where its files lie."""
    folder = None
    if str(source.owner_id) == caller.user_id:
        async with runtime.database.service_session() as connection:
            folder = await run_queries.run_folder(connection, source.id)
    await check_loop(spec.model_dump(mode="json", exclude_unset=True), await runtime.world(caller.user_id, folder))
    return folder


def _opening(run: NewRun, spec: LoopSpec, source: ForkedFrom) -> dict[str, Any]:
    event = RunStarted(
        loop=run.loop_name,
        goal=run.goal,
        stop=spec.stop_condition.to_json(),
        direction=spec.direction,
        attempts=spec.attempts,
        model=spec.agent.model,
        evaluator=spec.evaluator.kind if spec.evaluator else None,
        version=version("loopwright"),
        forked_from=source,
    )
    return event.model_dump(mode="json")


def _best(spec: LoopSpec, kept: list[IterationRecord]) -> IterationRecord | None:
    """The best of the kept iterations, over all attempts."""
    best: IterationRecord | None = None
    for each in kept:
        state = RunState(started_at=each.data.started_at, direction=spec.direction, best=best.data if best else None)
        best = each if state.improves(each.data) else best
    return best
