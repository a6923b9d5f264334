"""What schedules and webhooks start: a loop, or an agent for one turn. A form has it as `loop:<id>` or `agent:<id>`."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..service.overview import agent_names, loop_names
from ..service.runtime import Runtime
from .forms import Fields, wrong_of
from .text import one_line

Names = Sequence[tuple[str, str]]
"""Values of a form's field with the words for each."""


async def targets_of(rt: Runtime, me: Caller) -> Names:
    """What the caller can have started: `loop:<id>` or `agent:<id>`, and its name."""
    loops = [(f"loop:{key}", f"loop {one_line(name, 80)}") for key, name in await loop_names(rt.database, me)]
    agents = [(f"agent:{key}", f"agent {one_line(name, 80)}") for key, name in await agent_names(rt.database, me)]
    return [*loops, *agents]


def target_key(loop_id: UUID | None, agent_id: UUID | None) -> str:
    """A loop or an agent as a form has it."""
    return f"loop:{loop_id}" if loop_id else f"agent:{agent_id}"


def target_of(form: Fields) -> tuple[UUID | None, UUID | None]:
    """The loop or the agent that was chosen."""
    kind, _, key = form.short("target").partition(":")
    try:
        chosen = UUID(key)
    except ValueError:
        form.problems.found.append(Problem(field="target", message="choose what it starts"))
        return None, None
    return (chosen, None) if kind == "loop" else (None, chosen)


def wrong_of_target(error: InvalidInput, fields: Sequence[str]) -> dict[str, str]:
    """What is wrong by the names of a form's fields; one field holds the loop or the agent."""
    names = {"loop_id": "target", "agent_id": "target"}
    named = [Problem(field=names.get(each.field, each.field), message=each.message) for each in error.problems]
    return wrong_of(InvalidInput(*named), fields)
