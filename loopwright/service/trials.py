"""Trying things out: an agent with one message, an evaluator with one candidate, a tool with its arguments.

What can cost money is tried as a run of one iteration: it spends from a wallet, counts towards the month's cap and is
kept like any other run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from pydantic import JsonValue

from ..core.caller import Caller
from ..core.errors import AgentFailed, EvaluatorFailed, InvalidInput, NotFound, Problem
from ..core.models import Candidate, EvaluationRequest, Feedback
from ..core.money import show_usd
from ..core.ports import EvaluatorContext
from ..core.records import Loop
from ..core.spec import HttpEvaluator, LoopSpec
from ..core.text import clean
from ..core.wallet import ZERO
from ..runner.clock import SteadyClock
from ..runner.library import new_run_id
from ..store import activity, agents, loops, run_queries, tools
from ..store.database import Connection
from ..store.memory import MemoryRunStore
from ..store.run_queries import NewRun
from ..store.runs import Submission
from .checks import STAND_IN, check_loop
from .guardrails import check_start, check_trial, clear
from .once import Once, do_once, replayed
from .runtime import Runtime
from .start import Started, agent_file

if TYPE_CHECKING:
    from ..agents.try_tool import Tried
    from ..egress import EgressClient

PRACTICE = "practice"

TRIAL_BUDGET = "0.10"
"""US dollars that trying something may cost at most."""

TOOL_SECONDS = 60.0
"""How long a tool that is tried may take."""


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
    data = {"name": f"Trial of {agent.name}"[:200], "goal": message, "agent": file, "stop": ONE_ITERATION}
    spec, _ = await check_loop(data, await runtime.world(caller.user_id, None))
    return await _start(runtime, caller, spec, once, agent_id=agent_id, what=("agent_tried", f"agent:{agent_id}"))


ONE_ITERATION = {"max_iterations": 1, "budget_usd": TRIAL_BUDGET}


async def _start(
    runtime: Runtime,
    caller: Caller,
    spec: LoopSpec,
    once: Once | None,
    *,
    what: tuple[str, str],
    agent_id: UUID | None = None,
    folder: str | None = None,
) -> Started:
    """Start a trial; `what` is what the activity log says, and of what."""
    run = NewRun(
        id=new_run_id(), loop_id=None, loop_name=spec.name, agent_id=agent_id, door=caller.door,
        spec=spec.model_dump(mode="json", exclude_unset=True), goal=spec.goal, cap_usd=Decimal(TRIAL_BUDGET),
        folder=folder,
    )  # fmt: skip
    cleared = await clear(runtime.database, caller, run)

    async def insert(connection: Connection) -> Started:
        await run_queries.insert_run(connection, cleared)
        await activity.note(connection, caller.door, *what, run=run.id)
        return Started(run_id=run.id, events_url=f"/api/runs/{run.id}/events")

    started, now = await do_once(runtime.database, caller, once, Started, insert)
    if now:
        await runtime.submit(Submission(started.run_id, UUID(caller.user_id), 0))
    return started


# --- evaluators ---


@dataclass(frozen=True, kw_only=True)
class Quote:
    """What trying a loop's evaluator costs, said before it is tried."""

    loop: Loop
    worst_usd: Decimal
    """What asking it once costs at worst, for a candidate of usual length."""
    models: Sequence[str]
    """The models that it asks."""
    at_once: bool
    """Whether it is free and answers at once; else it is tried as a run."""


async def quote_evaluator(runtime: Runtime, caller: Caller, loop_id: UUID) -> Quote:
    """What trying a loop's evaluator would cost.

    Raises:
        NotFound: there is no such loop that the caller may see, or it has no evaluator.
        InvalidInput: the evaluator can't work here and now, and why.
    """
    loop, folder = await _loop_with_evaluator(runtime, caller, loop_id)
    spec, worst = await check_loop(_trial_of(loop, "x"), await runtime.world(caller.user_id, folder))
    at_once = isinstance(spec.evaluator, HttpEvaluator) and not worst.evaluator
    models = [name for name in worst.models if name != PRACTICE]
    return Quote(loop=loop, worst_usd=worst.evaluator, models=models, at_once=at_once)


async def try_evaluator(
    runtime: Runtime, caller: Caller, loop_id: UUID, candidate: str, once: Once | None = None
) -> Started:
    """Start a run of one iteration whose candidate is given, so that a loop's evaluator scores it.

    Raises:
        NotFound: there is no such loop that the caller may see, or it has no evaluator.
        InvalidInput: the candidate is empty, or the evaluator can't work here and now, or not for so little.
    """
    if answer := await replayed(runtime.database, caller, once, Started):
        return answer
    if not candidate.strip():
        raise InvalidInput(Problem(field="candidate", message="is empty; write what is to be scored"))
    loop, folder = await _loop_with_evaluator(runtime, caller, loop_id)
    spec, worst = await check_loop(_trial_of(loop, candidate), await runtime.world(caller.user_id, folder))
    if worst.evaluator > Decimal(TRIAL_BUDGET):
        message = (
            f"asking this evaluator once can cost {show_usd(worst.evaluator)}, and a trial ${TRIAL_BUDGET} at most; "
            "lower its max_output_tokens or max_cost_usd, or run the loop for one iteration"
        )
        raise InvalidInput(Problem(field="candidate", message=message))
    return await _start(runtime, caller, spec, once, folder=folder, what=("evaluator_tried", f"loop:{loop_id}"))


async def _loop_with_evaluator(runtime: Runtime, caller: Caller, loop_id: UUID) -> tuple[Loop, str | None]:
    async with runtime.database.as_user(caller.user_id) as connection:
        loop = await loops.get_loop(connection, loop_id)
        if loop is None or not evaluator_in(loop.spec):
            raise NotFound
        folder = await loops.folder_of(connection, loop_id)
    return loop, folder if str(loop.owner_id) == caller.user_id else None


def _trial_of(loop: Loop, candidate: str) -> dict[str, Any]:
    """A loop whose agent answers with the candidate, free of charge, whatever it is asked."""
    settings = {"practice_answer": clean(candidate), "practice_pace": 0}
    return {
        "name": f"Trial of the evaluator of {loop.name}"[:200],
        "goal": loop.spec["goal"],
        "agent": {"model": PRACTICE, "settings": settings, "loop_done": False},
        "evaluator": loop.spec["evaluator"],
        "direction": loop.spec.get("direction", "maximize"),
        "prices": {**loop.spec.get("prices", {}), PRACTICE: {"input": "0", "output": "0"}},
        "stop": ONE_ITERATION,
    }


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
        GuardrailRefused: a guardrail refuses it.
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
    await check_start(runtime.database, caller, spec)
    from ..egress import EgressClient, EgressPolicy, naming  # heavy, and not needed to answer
    from .assemble import allowed_hosts

    with naming(world.environ):
        async with EgressClient(EgressPolicy(allow_hosts=allowed_hosts(spec, world))) as egress:
            return await _ask(spec, egress, runtime, candidate)


async def _ask(spec: LoopSpec, egress: EgressClient, runtime: Runtime, candidate: str) -> Verdict:
    from ..feedback.registry import build_evaluator

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


# --- tools ---


async def try_tool(
    runtime: Runtime, caller: Caller, tool_id: UUID, name: str, arguments: dict[str, JsonValue]
) -> Tried:
    """Call a stored tool once, with the caller's own secrets; without a name only say which tools there are.

    Nothing is paid for it from here: what the other side takes for a call, it takes.

    Raises:
        NotFound: there is no such tool that the caller may see, or it is a builtin.
        InvalidInput: it can't work here and now, or its server can't be reached.
        GuardrailRefused: a guardrail refuses the call.
    """
    from ..agents.try_tool import call_once
    from ..egress import EgressClient, EgressPolicy, naming
    from .assemble import allowed_hosts

    async with runtime.database.as_user(caller.user_id) as connection:
        tool = await tools.get_tool(connection, tool_id)
    if tool is None or tool.is_builtin:
        raise NotFound
    world = await runtime.world(caller.user_id, None)
    spec, _ = await check_loop({**STAND_IN, "agent": {"model": PRACTICE, "tools": [tool.spec]}}, world)
    await check_trial(runtime.database, caller, spec, name, arguments)
    try:
        with naming(world.environ):
            async with EgressClient(EgressPolicy(allow_hosts=allowed_hosts(spec, world))) as egress:
                async with asyncio.timeout(TOOL_SECONDS):
                    (stored,) = spec.agent.tools
                    tried = await call_once(stored, name, arguments, egress=egress, folder=world.folder)
    except TimeoutError:
        raise InvalidInput(Problem(field="arguments", message=f"took longer than {TOOL_SECONDS:g} seconds")) from None
    except AgentFailed as error:
        raise InvalidInput(Problem(field="arguments", message=str(error))) from None
    async with runtime.database.as_user(caller.user_id) as connection:
        await activity.note(connection, caller.door, "tool_tried", f"tool:{tool_id}", name=name)
    return tried
