"""Loops that are still being written: what is wrong with one, and what it could cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound, Problem
from ..core.records import Loop, Visibility
from ..store import agents
from .agents import AgentChange, create_agent
from .checks import check_loop
from .loops import LoopChange, create_loop
from .once import Once
from .runtime import Runtime
from .start import agent_file

if TYPE_CHECKING:
    from .assemble import WorstCase

PROVIDERS = (
    (("OPENAI_API_KEY",), "openai:gpt-4o-mini"),
    (("ANTHROPIC_API_KEY",), "anthropic:claude-haiku-4-5"),
    (("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google:gemini-2.5-flash"),
)
"""Models that are suggested where one of their keys is known."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A loop as it was typed, with an agent that is stored or one that is to be made with it."""

    name: str
    spec: dict[str, Any]
    agent_id: UUID | None = None
    agent_spec: dict[str, Any] | None = None
    visibility: Visibility = "private"


async def check_draft(runtime: Runtime, caller: Caller, draft: Draft) -> WorstCase:
    """Check a draft; returns what one iteration can cost at worst.

    Raises:
        InvalidInput: everything that is wrong with it. Nothing was sent and nothing was stored.
    """
    file = draft.agent_spec or {}
    if draft.agent_id is not None:
        async with runtime.database.as_user(caller.user_id) as connection:
            agent = await agents.get_agent(connection, draft.agent_id)
            if agent is None:
                message = "there is no agent with this id that you may use; choose another one"
                raise InvalidInput(Problem(field="agent_id", message=message))
            file = await agent_file(connection, agent)
    data = {**draft.spec, "name": draft.name, "agent": file}
    return (await check_loop(data, await runtime.world(caller.user_id, None)))[1]


async def create_draft(runtime: Runtime, caller: Caller, draft: Draft, once: Once | None) -> Loop:
    """Store a draft as a loop, and before it the agent that is to be made with it.

    Raises:
        InvalidInput: everything that is wrong with it; then nothing was stored.
    """
    agent_id = draft.agent_id
    if agent_id is None:
        await check_draft(runtime, caller, draft)
        made = AgentChange(name=f"{draft.name} agent"[:200], spec=draft.agent_spec, visibility=draft.visibility)
        key = Once(key=f"{once.key}-agent", sha256=once.sha256) if once else None
        agent_id = (await create_agent(runtime, caller, made, key)).id
    change = LoopChange(name=draft.name, agent_id=agent_id, spec=draft.spec, visibility=draft.visibility)
    return await create_loop(runtime, caller, change, once)


async def suggested_model(runtime: Runtime, caller: Caller) -> str | None:
    """A model whose key is known here; `None` if none is."""
    environ = (await runtime.world(caller.user_id, None)).environ
    return next((model for keys, model in PROVIDERS if any(environ.get(key) for key in keys)), None)


async def tools_of(runtime: Runtime, caller: Caller, agent_id: UUID) -> dict[str, Any]:
    """A stored agent as a loop file has it.

    Raises:
        NotFound: there is none that the caller may see.
        Conflict: one of its tools is not the caller's to use.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        agent = await agents.get_agent(connection, agent_id)
        if agent is None:
            raise NotFound
        return await agent_file(connection, agent)
