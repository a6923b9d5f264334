"""Starting a run: from a stored loop to a row in the queue, and then to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotFound, Problem
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
from .loop_files import Overrides, override
from .once import Once, do_once, replayed
from .runtime import Runtime


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
    async with runtime.database.as_user(caller.user_id) as connection:
        loop = await loops.get_loop(connection, loop_id)
        if loop is None:
            raise NotFound
        data = await file_of(connection, loop)
        folder = await loops.folder_of(connection, loop_id)
    stored = LoopSpec.model_validate(data)
    if within_caps:
        refuse_above_caps(stored, wanted)
    spec = wanted_spec(stored, wanted)
    world = await runtime.world(caller.user_id, folder if str(loop.owner_id) == caller.user_id else None)
    await check_loop(spec.model_dump(mode="json", exclude_unset=True), world)
    run = NewRun(
        id=new_run_id(),
        loop_id=loop.id,
        loop_name=loop.name,
        agent_id=loop.agent_id,
        door=caller.door,
        spec=spec.model_dump(mode="json", exclude_unset=True),
        goal=spec.goal,
        cap_usd=budget_of(spec.stop_condition),
        folder=folder,
    )

    async def insert(connection: Connection) -> Started:
        await run_queries.insert_run(connection, run)
        await activity.note(connection, caller.door, "run_started", f"run:{run.id}", loop=str(loop_id))
        return Started(run_id=run.id, events_url=f"/api/runs/{run.id}/events")

    started, now = await do_once(runtime.database, caller, once, Started, insert)
    if now:
        await runtime.submit(Submission(started.run_id, UUID(caller.user_id), 0))
    return started


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
