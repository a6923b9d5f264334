"""What is checked before an agent, a tool or a loop is stored, and again before a run of it begins.

The words and the rules are those of loop files, plus what holds for people who aren't the operator: no commands, no
Python functions, no addresses that aren't public.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..core.errors import EgressRefused, InvalidInput, Problem, Problems
from ..core.spec import AgentSpec, LoopSpec
from .file_checks import Facts
from .loop_files import checked_spec
from .world import World
from .yaml_source import Document

if TYPE_CHECKING:
    from ..egress import EgressClient
    from .assemble import WorstCase

LOCAL_ONLY = (
    "runs code of the operator's own and comes from loop files only; push the file with `loopwright loops push` on the "
    "machine that serves, or use `http` or `judge`"
)

ALLOWING = "hosts are allowed by an admin (PATCH /api/settings) or by LOOPWRIGHT_EGRESS_ALLOW"

RESOLVE_SECONDS = 3.0
"""How long finding a host's addresses may take while something is saved."""

STAND_IN: Mapping[str, Any] = {"name": "check", "goal": "check", "stop": {"max_iterations": 1}}
"""A loop around an agent that is checked by itself."""


async def check_loop(data: Mapping[str, Any], world: World) -> tuple[LoopSpec, WorstCase]:
    """Check a loop's data; returns its spec, and what one iteration can cost at worst.

    Raises:
        InvalidInput: everything that is wrong with it. Nothing was sent and nothing was spent.
    """
    from .assemble import assemble, worst_case

    refuse_local_code(data, world)
    if data.get("allow_hosts") and not world.trusts_writer:
        message = f"is for loop files; {ALLOWING}"
        raise InvalidInput(Problem(field="allow_hosts", message=message))
    facts = Facts(data=data, folder=world.folder, environ=world.environ, missing=_missing(world))
    spec = checked_spec(Document(dict(data)), facts)
    await refuse_private_hosts(spec, world)
    await asyncio.to_thread(assemble, spec, folder=world.folder, world=world)
    return spec, worst_case(spec, world)


async def check_agent(spec: Mapping[str, Any], world: World) -> AgentSpec:
    """Check an agent's data.

    Raises:
        InvalidInput: everything that is wrong with it, by fields of `spec`.
    """
    try:
        return (await check_loop({**STAND_IN, "agent": dict(spec)}, world))[0].agent
    except InvalidInput as error:
        raise within(error, "agent", "spec") from None


async def check_tool(spec: Mapping[str, Any], world: World) -> None:
    """Check a tool's data.

    Raises:
        InvalidInput: everything that is wrong with it, by fields of `spec`.
    """
    try:
        await check_loop({**STAND_IN, "agent": {"model": "practice", "tools": [dict(spec)]}}, world)
    except InvalidInput as error:
        raise within(error, "agent.tools.0", "spec") from None


def within(error: InvalidInput, old: str, new: str) -> InvalidInput:
    """The same problems where fields below `old` are called `new`."""
    return InvalidInput(*(_renamed(problem, old, new) for problem in error.problems))


def _renamed(problem: Problem, old: str, new: str) -> Problem:
    if problem.field != old and not problem.field.startswith(f"{old}."):
        return problem
    return Problem(field=new + problem.field.removeprefix(old), message=problem.message, line=problem.line)


def _missing(world: World) -> str:
    local = " (or as environment variable of the server)" if world.trusts_loopback else ""
    return f"no secret {{name}} is stored; store it with PUT /api/secrets/{{name}}{local}"


# --- code of the operator's own ---


def refuse_local_code(data: Mapping[str, Any], world: World) -> None:
    """Refuse commands and Python functions where they aren't the operator's.

    Raises:
        InvalidInput: names each.
    """
    if not world.local_code and (found := list(local_code(data))):
        raise InvalidInput(*(Problem(field=place, message=LOCAL_ONLY) for place, _ in found))


def local_code(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Whatever in a loop's data runs code on this machine, each with its place."""
    for name in ("evaluator", "holdout"):
        yield from _code_in_evaluator(data.get(name), name)
    yield from _code_in_agent(data.get("agent"), "agent")


def _code_in_evaluator(value: object, place: str) -> Iterator[tuple[str, Any]]:
    match value:
        case {"kind": "command" | "python"}:
            yield place, value
        case {"parts": list()}:
            for number, part in enumerate(cast("dict[str, list[object]]", value)["parts"]):
                if isinstance(part, dict):
                    inner = cast("dict[str, Any]", part).get("evaluator")
                    yield from _code_in_evaluator(inner, f"{place}.parts.{number}.evaluator")
        case _:
            pass


def _code_in_agent(value: object, place: str) -> Iterator[tuple[str, Any]]:
    tools = cast("dict[str, Any]", value).get("tools") if isinstance(value, dict) else None
    for number, tool in enumerate(cast("list[Any]", tools) if isinstance(tools, list) else ()):
        match tool:
            case {"kind": "python"}:
                yield f"{place}.tools.{number}", tool
            case {"kind": "mcp", "command": object() as command} if command is not None:
                yield f"{place}.tools.{number}.command", tool
            case {"kind": "agent", "agent": object() as agent}:
                yield from _code_in_agent(agent, f"{place}.tools.{number}.agent")
            case _:
                pass


# --- addresses ---


async def refuse_private_hosts(spec: LoopSpec, world: World) -> None:
    """Refuse addresses that aren't public, as far as can be said now. Each request is checked again when it is sent.

    Raises:
        InvalidInput: names each, and the way out.
    """
    from ..egress import EgressClient, EgressPolicy  # heavy, and not needed to answer
    from .assemble import allowed_hosts

    async with EgressClient(EgressPolicy(allow_hosts=allowed_hosts(spec, world))) as egress:
        places = list(addresses(spec))
        answers = await asyncio.gather(*(_refusal(egress, url) for _, url in places))
    problems = Problems()
    for (place, _), refusal in zip(places, answers, strict=True):
        if refusal:
            way_out = refusal.replace(
                "`allow_hosts`",
                "the workspace's `allow_hosts` (PATCH /api/settings, for admins) or LOOPWRIGHT_EGRESS_ALLOW",
            )
            problems.found.append(Problem(field=place, message=way_out))
    problems.refuse()


async def _refusal(egress: EgressClient, url: str) -> str | None:
    from ..egress import EgressFailed

    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            await egress.check(url)
    except EgressRefused as error:
        return str(error)
    except (EgressFailed, TimeoutError):
        return None  # the host may come up later; it is checked again when a request is sent
    return None


def addresses(spec: LoopSpec) -> Iterator[tuple[str, str]]:
    """Every address in a loop, of its tools, its evaluators and its models, with its place."""
    data: dict[str, Any] = spec.model_dump(mode="json")
    for name in ("evaluator", "holdout", "agent"):
        yield from _urls(data.get(name), name)


def _urls(value: object, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in cast("dict[str, object]", value).items():
            if key in ("url", "base_url") and isinstance(inner, str):
                yield f"{place}.{key}", inner
            elif key in ("tools", "parts", "evaluator", "agent"):
                yield from _urls(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[object]", value)):
            yield from _urls(inner, f"{place}.{number}")
