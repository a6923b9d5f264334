"""Trying things out: an agent with one message, an evaluator with one candidate.

An agent is tried as a run of one iteration: it spends from a wallet, counts towards the month's cap and is kept like
any other run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import EvaluatorFailed, InvalidInput, NotFound, Problem
from ..core.models import Candidate, EvaluationRequest, Feedback
from ..core.ports import EvaluatorContext
from ..core.spec import LoopSpec
from ..core.text import clean
from ..core.wallet import ZERO
from ..egress import EgressClient, EgressPolicy, naming
from ..feedback.registry import build_evaluator
from ..runner.clock import SteadyClock
from ..runner.library import new_run_id
from ..store import activity, agents, run_queries
from ..store.database import Connection
from ..store.memory import MemoryRunStore
from ..store.run_queries import NewRun
from ..store.runs import Submission
from .checks import STAND_IN, check_loop
from .once import Once, do_once, replayed
from .runtime import Runtime
from .start import Started, agent_file

TRIAL_BUDGET = "0.10"
"""US dollars that trying an agent may cost at most."""


async def try_agent(
    runtime: Runtime, caller: Caller, agent_id: UUID, message: str, once: Once | None = None
) -> Started:
    """Start a run of one iteration with a message as its goal.

    Raises:
        NotFound: there is no such agent that the caller may see.
        Conflict: one of its tools is not the caller's to use.
        InvalidInput: the message is empty, or the agent can't work here and now.
    """
    if answer := await replayed(runtime.database, caller, once, Started):
        return answer
    if not message.strip():
        raise InvalidInput(Problem(field="message", message="is empty; write what the agent should do"))
    async with runtime.database.as_user(caller.user_id) as connection:
        agent = await agents.get_agent(connection, agent_id)
        if agent is None:
            raise NotFound
        file = await agent_file(connection, agent)
    stop = {"max_iterations": 1, "budget_usd": TRIAL_BUDGET}
    data = {"name": f"Trial of {agent.name}"[:200], "goal": message, "agent": file, "stop": stop}
    spec, _ = await check_loop(data, await runtime.world(caller.user_id, None))
    run = NewRun(
        id=new_run_id(), loop_id=None, loop_name=spec.name, agent_id=agent_id, door=caller.door,
        spec=spec.model_dump(mode="json", exclude_unset=True), goal=message, cap_usd=Decimal(TRIAL_BUDGET),
    )  # fmt: skip

    async def insert(connection: Connection) -> Started:
        await run_queries.insert_run(connection, run)
        await activity.note(connection, caller.door, "agent_tried", f"agent:{agent_id}", run=run.id)
        return Started(run_id=run.id, events_url=f"/api/runs/{run.id}/events")

    started, now = await do_once(runtime.database, caller, once, Started, insert)
    if now:
        await runtime.submit(Submission(started.run_id, UUID(caller.user_id), 0))
    return started


@dataclass(frozen=True)
class Verdict:
    """What an evaluator said of a candidate, or why its answer is refused."""

    feedback: Feedback | None
    refused: str


async def try_endpoint(
    runtime: Runtime, caller: Caller, evaluator: dict[str, Any], *, goal: str, candidate: str
) -> Verdict:
    """Ask an HTTP evaluator once, as a run would.

    Raises:
        InvalidInput: it is none that may be reached from here, or one that costs money.
    """
    if evaluator.get("kind") != "http":
        message = "only an `http` evaluator is tried here; a judge costs money, so try it with a run of one iteration"
        raise InvalidInput(Problem(field="evaluator.kind", message=message))
    if evaluator.get("max_cost_usd") not in (None, 0, "0"):
        message = "it may cost money, and there is no budget here; try it with a run of one iteration"
        raise InvalidInput(Problem(field="evaluator.max_cost_usd", message=message))
    world = await runtime.world(caller.user_id, None)
    data = {**STAND_IN, "goal": goal.strip() or "Try the evaluator.", "agent": {"model": "practice"}}
    spec, _ = await check_loop({**data, "evaluator": evaluator}, world)
    from .assemble import allowed_hosts

    with naming(world.environ):
        async with EgressClient(EgressPolicy(allow_hosts=allowed_hosts(spec, world))) as egress:
            return await _ask(spec, egress, runtime, candidate)


async def _ask(spec: LoopSpec, egress: EgressClient, runtime: Runtime, candidate: str) -> Verdict:
    clock, run_id = SteadyClock(), f"trial-{int(datetime.now(UTC).timestamp())}"
    assert spec.evaluator is not None  # noqa: S101 - checked with it
    evaluator = build_evaluator(spec.evaluator, egress=egress, folder=runtime.settings.data_folder, where="evaluator")
    request = EvaluationRequest(
        goal=spec.goal, candidate=Candidate(text=clean(candidate)), run_id=run_id, attempt=1, iteration=1
    )
    store = MemoryRunStore(run_id, cap=ZERO, clock=clock, sinks=())
    try:
        return Verdict(await evaluator.evaluate(request, EvaluatorContext(store=store, clock=clock)), "")
    except EvaluatorFailed as failure:
        return Verdict(None, str(failure))


def evaluator_in(spec: dict[str, Any]) -> dict[str, Any]:
    """A loop's evaluator; empty where it has none."""
    found = spec.get("evaluator")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
