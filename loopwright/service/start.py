"""Starting a run: from a stored loop to a row in the queue, and then to the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotFound, Problem, Problems
from ..core.records import Agent, Loop
from ..core.spec import LoopSpec
from ..core.stop import budget_of
from ..runner.library import new_run_id
from ..store import activity, agents, loops, run_queries, tools
from ..store.database import Connection
from ..store.run_queries import NewRun
from ..store.runs import Submission
from .caps import refuse_above_caps
from .checks import check_loop
from .guardrails import clear
from .loop_files import Overrides, override
from .once import Once, do_once, replayed
from .runtime import Runtime
from .world import World


class Started(BaseModel):
    """A run that was put into the queue."""

    run_id: str
    events_url: str
    """Where its events can be watched."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a caller wants otherwise than the loop says."""

    goal: str | None = None
    budget_usd: Decimal | None = None
    max_iterations: int | None = None
    max_seconds: float | None = None
    attempts: int | None = None
    model: str | None = None

    def stored(self) -> dict[str, Any]:
        """The same as JSON, without what is as the loop says."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        amount = None if self.budget_usd is None else f"{self.budget_usd:f}"
        return {name: value for name, value in {**given, "budget_usd": amount}.items() if value is not None}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Wanted:
        """What was stored."""
        values: dict[str, Any] = dict(stored)
        if "budget_usd" in values:
            values["budget_usd"] = Decimal(values["budget_usd"])
        return cls(**values)

    def overrides(self) -> Overrides:
        """The same for a loop file."""
        return Overrides(
            goal=self.goal,
            budget=None if self.budget_usd is None else f"{self.budget_usd:f}",
            max_iterations=self.max_iterations,
            max_seconds=self.max_seconds,
            attempts=self.attempts,
            model=self.model,
        )


async def start_run(
    runtime: Runtime,
    caller: Caller,
    loop_id: UUID,
    wanted: Wanted,
    once: Once | None = None,
    *,
    within_caps: bool = False,
) -> Started:
    """Start a run of a loop that the caller may see; the run is the caller's, and so are the secrets that it uses.

    With `within_caps`, what is wanted may lower the loop's limits and not raise them.

    Raises:
        NotFound: there is no such loop that the caller may see.
        Conflict: the loop's agent is not the caller's to use.
        InvalidInput: what is wanted can't work, or the loop can't run any more.
    """
    if answer := await replayed(runtime.database, caller, once, Started):
        return answer
    run = await prepare_loop(runtime, caller, loop_id, wanted, within_caps=within_caps)
    return await begin(runtime, caller, run, once)


async def begin(
    runtime: Runtime,
    caller: Caller,
    run: NewRun,
    once: Once | None = None,
    *,
    also: Callable[[Connection], Awaitable[None]] | None = None,
) -> Started:
    """Put a prepared run into the queue, and have it executed; `also` is done in the same transaction.

    Raises:
        InvalidInput: the key was used for another request.
        NotFound: its loop or agent was deleted meanwhile.
        GuardrailRefused: a guardrail refuses it.
    """
    cleared = await clear(runtime.database, caller, run)
    subject = f"run:{run.id}"
    loop_id = None if run.loop_id is None else str(run.loop_id)

    async def insert(connection: Connection) -> Started:
        await run_queries.insert_run(connection, cleared)
        await activity.note(connection, caller.door, "run_started", subject, loop=loop_id)
        if also is not None:
            await also(connection)
        return Started(run_id=run.id, events_url=f"/api/runs/{run.id}/events")

    started, now = await do_once(runtime.database, caller, once, Started, insert)
    if now:
        await runtime.submit(Submission(started.run_id, UUID(caller.user_id), 0))
    return started


async def prepare(
    runtime: Runtime,
    caller: Caller,
    loop_id: UUID | None,
    agent_id: UUID | None,
    wanted: Wanted,
    *,
    with_tools: bool = True,
) -> NewRun:
    """A run of what a schedule or a webhook starts, checked and not yet started: of a loop, or one turn of an agent.

    Raises:
        NotFound: it is gone, or is not the caller's to see.
        Conflict: it needs what is not the caller's to use.
        InvalidInput: what is wanted can't work.
    """
    if loop_id is not None:
        return await prepare_loop(runtime, caller, loop_id, wanted, with_tools=with_tools)
    if agent_id is not None:
        return await prepare_agent(runtime, caller, agent_id, wanted, with_tools=with_tools)
    raise NotFound


async def prepare_loop(
    runtime: Runtime,
    caller: Caller,
    loop_id: UUID,
    wanted: Wanted,
    *,
    within_caps: bool = False,
    with_tools: bool = True,
) -> NewRun:
    """A run of a loop, checked and not yet started.

    Raises:
        NotFound: there is no such loop that the caller may see.
        Conflict: the loop's agent is not the caller's to use.
        InvalidInput: what is wanted can't work, or the loop can't run any more.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        loop = await loops.get_loop(connection, loop_id)
        if loop is None:
            raise NotFound
        data = await file_of(connection, loop)
        folder = await loops.folder_of(connection, loop_id)
    if not with_tools:
        data["agent"] = without_tools(data["agent"])
    stored = LoopSpec.model_validate(data)
    if within_caps:
        refuse_above_caps(stored, wanted)
    spec = wanted_spec(stored, wanted)
    world = await runtime.world(caller.user_id, folder if str(loop.owner_id) == caller.user_id else None)
    return await _new_run(
        caller,
        spec,
        world,
        name=loop.name,
        loop_id=loop.id,
        agent_id=loop.agent_id,
        folder=folder,
        with_builtins=with_tools,
    )


async def prepare_agent(
    runtime: Runtime, caller: Caller, agent_id: UUID, wanted: Wanted, *, with_tools: bool = True
) -> NewRun:
    """A run of one turn of an agent, checked and not yet started.

    Raises:
        NotFound: there is no such agent that the caller may use.
        Conflict: one of its tools is not the caller's to use.
        InvalidInput: what is wanted can't work.
    """
    problems = Problems()
    for name, value in (("goal", wanted.goal), ("budget_usd", wanted.budget_usd)):
        if value is None:
            problems.found.append(Problem(field=name, message="is missing; an agent without a loop needs one"))
    problems.refuse()
    async with runtime.database.as_user(caller.user_id) as connection:
        agent = await agents.get_agent(connection, agent_id)
        if agent is None:
            raise NotFound
        file = await agent_file(connection, agent)
    data = {
        "name": agent.name,
        "goal": wanted.goal,
        "agent": file if with_tools else without_tools(file),
        "stop": {"max_iterations": 1, "budget_usd": f"{wanted.budget_usd:f}"},
    }
    spec = wanted_spec(LoopSpec.model_validate(data), replace(wanted, max_iterations=1))
    world = await runtime.world(caller.user_id, None)
    return await _new_run(
        caller, spec, world, name=agent.name, loop_id=None, agent_id=agent.id, folder=None, with_builtins=with_tools
    )


async def _new_run(
    caller: Caller,
    spec: LoopSpec,
    world: World,
    *,
    name: str,
    loop_id: UUID | None,
    agent_id: UUID,
    folder: str | None,
    with_builtins: bool,
) -> NewRun:
    written = spec.model_dump(mode="json", exclude_unset=True)
    await check_loop(written, world)
    return NewRun(
        id=new_run_id(),
        loop_id=loop_id,
        loop_name=name,
        agent_id=agent_id,
        door=caller.door,
        spec=written,
        goal=spec.goal,
        cap_usd=budget_of(spec.stop_condition),
        folder=folder,
        with_builtins=with_builtins,
    )


def without_tools(agent: dict[str, Any]) -> dict[str, Any]:
    """An agent as a loop file has it, with nothing that it may call."""
    return {**agent, "tools": []}


async def file_of(connection: Connection, loop: Loop) -> dict[str, Any]:
    """A stored loop as a loop file has it, with its agent and the agent's tools.

    Raises:
        Conflict: the agent or one of its tools is not the caller's to use.
    """
    agent = await agents.get_agent(connection, loop.agent_id)
    if agent is None:
        raise Conflict("the loop's agent is private to its owner; ask for it to be shared with the workspace")
    return {"name": loop.name, **loop.spec, "agent": await agent_file(connection, agent)}


async def agent_file(connection: Connection, agent: Agent) -> dict[str, Any]:
    """A stored agent as a loop file has it, with its tools; those that aren't active are left out.

    Raises:
        Conflict: one of its tools is not the caller's to use.
    """
    found = await tools.get_tools(connection, agent.tool_ids)
    if len(found) < len(set(agent.tool_ids)):
        raise Conflict(f"a tool of the agent {agent.name!r} is private to its owner, or gone; choose its tools again")
    stored = [tool.spec for tool in found if tool.active and not tool.is_builtin]
    return {**agent.spec, "tools": [*agent.spec.get("tools", []), *stored]}


def wanted_spec(spec: LoopSpec, wanted: Wanted) -> LoopSpec:
    """The spec with what the caller wants otherwise.

    Raises:
        InvalidInput: it can't be had, by the fields of the request.
    """
    try:
        return override(spec, wanted.overrides())
    except InvalidInput as error:
        names = {"--budget": "budget_usd"}
        raise InvalidInput(
            *(
                Problem(field=names.get(p.field, p.field.removeprefix("--").replace("-", "_")), message=p.message)
                for p in error.problems
            )
        ) from None
