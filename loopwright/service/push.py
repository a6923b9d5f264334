"""Loop files and stored loops: a file is how a loop is kept in git."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound, Problem
from ..core.records import Agent, Loop, Tool
from ..core.spec import LoopSpec
from ..store import activity, agents, loops, tools
from ..store.database import Connection
from .checks import check_loop
from .loop_files import read_loop_file
from .runtime import Runtime
from .start import file_of

STORED = ("http", "mcp")
"""Kinds of tools that are stored by themselves, so that other agents can have them too."""


@dataclass(frozen=True)
class Pushed:
    """What came of a push."""

    loop: Loop
    new: bool
    """Whether there was none of its name."""


async def push_loop(runtime: Runtime, caller: Caller, path: Path, environ: Mapping[str, str]) -> Pushed:
    """Store a loop file with its agent and tools, in place of the caller's of the same names.

    Its commands and Python functions are found in the file's folder, so they run on this machine alone.

    Raises:
        InvalidInput: everything that is wrong with the file.
    """
    world = await runtime.world(caller.user_id, str(path.parent.resolve()))
    file = read_loop_file(path, environ={**environ, **world.environ})
    try:
        _, worst = await check_loop(file.spec.model_dump(mode="json", exclude_unset=True), world)
    except InvalidInput as error:
        raise file.located(error) from None
    async with runtime.database.as_user(caller.user_id) as connection:
        before = await loops.find_loop(connection, caller.user_id, file.spec.name)
        agent = await _put_agent(connection, caller, file.spec)
        loop = await _put_loop(connection, before, agent, file.spec, worst.total)
        if world.local_code:
            await loops.place_loop(connection, loop.id, str(path.parent.resolve()))
        await activity.note(connection, caller.door, "loop_pushed", f"loop:{loop.id}", name=loop.name)
        return Pushed(await loops.get_loop(connection, loop.id) or loop, before is None)


async def _put_loop(connection: Connection, before: Loop | None, agent: Agent, spec: LoopSpec, worst: Decimal) -> Loop:
    data = spec.model_dump(mode="json", exclude_unset=True, exclude={"name", "agent"})
    if before is None:
        row = await loops.insert_loop(
            connection, name=spec.name, agent_id=agent.id, spec=data, worst_case_usd=worst, visibility="private"
        )
    else:
        row = await loops.update_loop(
            connection,
            before,
            name=spec.name,
            agent_id=agent.id,
            spec=data,
            worst_case_usd=worst,
            visibility=before.visibility,
        )
    return _there(row)


async def _put_agent(connection: Connection, caller: Caller, spec: LoopSpec) -> Agent:
    """The agent of a loop file; it is called as the loop is."""
    data = spec.agent.model_dump(mode="json", exclude_unset=True)
    given = cast("list[dict[str, Any]]", data.pop("tools", []))
    own = [tool for tool in given if tool["kind"] not in STORED or tool.get("command")]
    stored = [await _put_tool(connection, caller, tool) for tool in given if tool not in own]
    if own:
        data["tools"] = own
    ids, before = [tool.id for tool in stored], await agents.find_agent(connection, caller.user_id, spec.name)
    if before is None:
        row = await agents.insert_agent(connection, name=spec.name, spec=data, tool_ids=ids, visibility="private")
    else:
        row = await agents.update_agent(
            connection, before, name=spec.name, spec=data, tool_ids=ids, visibility=before.visibility
        )
    return _there(row)


async def _put_tool(connection: Connection, caller: Caller, spec: dict[str, Any]) -> Tool:
    before = await tools.find_tool(connection, caller.user_id, spec["name"])
    if before is None:
        row = await tools.insert_tool(
            connection, name=spec["name"], kind=spec["kind"], spec=spec, active=True, visibility="private"
        )
    elif before.spec == spec:
        return before
    else:
        row = await tools.update_tool(
            connection, before, name=before.name, spec=spec, active=before.active, visibility=before.visibility
        )
    return _there(row)


def _there(row: Any) -> Any:
    if row is None:
        message = "somebody changed the stored loop at the same time; push again"
        raise InvalidInput(Problem(field="", message=message))
    return row


async def pull_loop(runtime: Runtime, caller: Caller, name: str) -> str:
    """A stored loop as the text of a loop file, by its name or id.

    Raises:
        NotFound: there is none that the caller may see.
        Conflict: its agent is not the caller's to use.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        loop = await loops.find_loop(connection, caller.user_id, name) or await _by_id(connection, name)
        if loop is None:
            raise NotFound(f"there is no loop called {name!r}; `loopwright loops list` shows them")
        data = await file_of(connection, loop)
    return _text(data)


async def _by_id(connection: Connection, name: str) -> Loop | None:
    try:
        return await loops.get_loop(connection, UUID(name))
    except ValueError:
        return None


def _text(data: dict[str, Any]) -> str:
    import yaml

    order = ("name", "goal", "agent", "evaluator", "holdout", "direction", "stop")
    sorted_data = {key: data[key] for key in (*order, *(key for key in data if key not in order)) if key in data}
    if not sorted_data["agent"].get("tools"):
        sorted_data["agent"].pop("tools", None)
    dump = yaml.dump(sorted_data, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110)  # pyright: ignore[reportUnknownMemberType]
    return str(dump)


def _dumper() -> type[Any]:
    """Writes texts of several lines as they are, behind a `|`."""
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)  # pyright: ignore[reportUnknownMemberType]

    Dumper.add_representer(str, text)
    return Dumper
