"""Stored loops: looking at them and editing them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotFound, Problem
from ..core.records import Loop, Page, Visibility
from ..store import activity, agents
from ..store import loops as store
from ..store.database import Connection
from ..store.paging import page, read_cursor
from .changes import editable, written
from .checks import check_loop, local_code
from .once import Once, do_once, replayed
from .runtime import Runtime
from .start import agent_file
from .world import World


@dataclass(frozen=True, kw_only=True)
class LoopChange:
    """A loop as it is to be; `None` leaves a part as it is."""

    name: str | None = None
    agent_id: UUID | None = None
    spec: dict[str, Any] | None = None
    visibility: Visibility | None = None


async def list_loops(runtime: Runtime, caller: Caller, *, cursor: str | None, limit: int) -> Page[Loop]:
    """The loops that the caller may see, newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        return page(await store.list_loops(connection, read_cursor(cursor), limit), limit)


async def get_loop(runtime: Runtime, caller: Caller, loop_id: UUID) -> Loop:
    """A loop.

    Raises:
        NotFound: there is none that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if loop := await store.get_loop(connection, loop_id):
            return loop
    raise NotFound


async def find_loop(runtime: Runtime, caller: Caller, name_or_id: str) -> Loop:
    """A loop by its name or id; of several with a name the caller's own newest one.

    Raises:
        NotFound: there is none that the caller may see; says which there are.
        Conflict: others share several of this name.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        with suppress(ValueError):
            if loop := await store.get_loop(connection, UUID(name_or_id)):
                return loop
        found = await store.loops_named(connection, name_or_id, caller.user_id)
        if found and (len(found) == 1 or str(found[0].owner_id) == caller.user_id):
            return found[0]
        if found:
            ids = ", ".join(str(loop.id) for loop in found)
            raise Conflict(f"several loops are called {name_or_id!r}; name one by its id: {ids}")
        there_are = await store.list_loops(connection, read_cursor(None), 10)
    names = ", ".join(repr(loop.name) for loop in there_are) or "none; make one first"
    raise NotFound(f"there is no loop {name_or_id!r:.200} that you may see; there are: {names}")


async def create_loop(runtime: Runtime, caller: Caller, wanted: LoopChange, once: Once | None = None) -> Loop:
    """Store a loop.

    Raises:
        InvalidInput: everything that is wrong with it, unknown prices and addresses that aren't public included.
        Conflict: its agent can't be used.
    """
    if answer := await replayed(runtime.database, caller, once, Loop):
        return answer
    if wanted.agent_id is None:
        raise InvalidInput(Problem(field="agent_id", message="is missing; name the agent that does the work"))
    name, agent_id, visibility = wanted.name or "", wanted.agent_id, wanted.visibility or "private"
    world = await runtime.world(caller.user_id, None)
    spec, worst = await _checked(
        runtime,
        caller,
        world=world,
        name=name,
        agent_id=agent_id,
        spec=wanted.spec or {},
        visibility=visibility,
    )

    async def insert(connection: Connection) -> Loop:
        row = await store.insert_loop(
            connection, name=name, agent_id=agent_id, spec=spec, worst_case_usd=worst, visibility=visibility
        )
        loop = written(row)
        await activity.note(connection, caller.door, "loop_created", f"loop:{loop.id}", name=loop.name)
        return loop

    return (await do_once(runtime.database, caller, once, Loop, insert))[0]


async def change_loop(runtime: Runtime, caller: Caller, loop_id: UUID, version: int, wanted: LoopChange) -> Loop:
    """Change a loop. Runs that are under way keep the loop that they started with.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
        InvalidInput: everything that is wrong with the change.
        Conflict: its agent can't be used.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        loop = editable(await store.get_loop(connection, loop_id), caller, version)
        folder = await store.folder_of(connection, loop_id)
    name, agent_id = loop.name if wanted.name is None else wanted.name, wanted.agent_id or loop.agent_id
    visibility, data = wanted.visibility or loop.visibility, loop.spec if wanted.spec is None else wanted.spec
    world = await runtime.world(caller.user_id, folder)
    if world.local_code and list(local_code(data)) != list(local_code(loop.spec)):
        world = replace(world, local_code=False)  # what a pushed file brought may stay; nothing may be added
    spec, worst = await _checked(
        runtime, caller, world=world, name=name, agent_id=agent_id, spec=data, visibility=visibility
    )
    async with runtime.database.as_user(caller.user_id) as connection:
        changed = await store.update_loop(
            connection, loop, name=name, agent_id=agent_id, spec=spec, worst_case_usd=worst, visibility=visibility
        )
        await activity.note(connection, caller.door, "loop_changed", f"loop:{loop_id}")
        return written(changed)


async def delete_loop(runtime: Runtime, caller: Caller, loop_id: UUID, version: int) -> None:
    """Delete a loop. Its runs stay, and those that are under way go on: each has its own copy of what it was.

    Raises:
        NotFound: there is none that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        loop = editable(await store.get_loop(connection, loop_id), caller, version)
        if not await store.delete_loop(connection, loop):
            written(None)
        await activity.note(connection, caller.door, "loop_deleted", f"loop:{loop_id}", name=loop.name)


async def _checked(
    runtime: Runtime,
    caller: Caller,
    *,
    world: World,
    name: str,
    agent_id: UUID,
    spec: dict[str, Any],
    visibility: Visibility,
) -> tuple[dict[str, Any], Decimal]:
    """The spec as it is stored, and what an iteration costs at worst."""
    if own := sorted({"name", "agent"} & spec.keys()):
        raise InvalidInput(*(Problem(field=f"spec.{key}", message="stands beside `spec`, not in it") for key in own))
    async with runtime.database.as_user(caller.user_id) as connection:
        agent = await agents.get_agent(connection, agent_id)
        if agent is None:
            message = "there is no agent with this id that you may use"
            raise InvalidInput(Problem(field="agent_id", message=message))
        if visibility == "workspace" and agent.visibility == "private":
            message = f"{agent.name!r} is private, so others can't run a loop with it; share the agent first"
            raise InvalidInput(Problem(field="agent_id", message=message))
        file = await agent_file(connection, agent)
    try:
        _, worst = await check_loop({**spec, "name": name, "agent": file}, world)
    except InvalidInput as error:
        raise InvalidInput(*(_placed(problem) for problem in error.problems)) from None
    return spec, worst.total


def _placed(problem: Problem) -> Problem:
    """A problem by the fields of the request."""
    top = problem.field.partition(".")[0]
    if top == "name":
        return problem
    if top == "agent":
        return Problem(field="agent_id", message=f"the agent can't be used: {problem.field}: {problem.message}")
    return Problem(field=f"spec.{problem.field}" if problem.field else "spec", message=problem.message)
