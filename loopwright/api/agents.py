"""Routes of agents."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Response

from ..core.records import Agent, Page
from ..service import agents as service
from ..service.agents import AgentChange
from .bodies import AgentPatch, NewAgent
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/agents", tags=["agents"])


@router.get("", responses=problems())
async def list_agents(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Agent]:
    """The agents that you may use, newest first."""
    return await service.list_agents(rt, me, cursor=cursor, limit=limit)


@router.post("", status_code=201, responses=problems(409))
async def create_agent(rt: Rt, me: Me, once: OnceKey, body: NewAgent, response: Response) -> Agent:
    """Store an agent."""
    agent = await service.create_agent(rt, me, AgentChange(**dict(body)), once)
    tagged(response, agent)
    return agent


@router.get("/{agent_id}", responses=problems(404))
async def get_agent(rt: Rt, me: Me, agent_id: UUID, response: Response) -> Agent:
    """An agent."""
    agent = await service.get_agent(rt, me, agent_id)
    tagged(response, agent)
    return agent


@router.patch("/{agent_id}", responses=problems(404, 412, 428))
async def change_agent(rt: Rt, me: Me, agent_id: UUID, version: Version, body: AgentPatch, response: Response) -> Agent:
    """Change an agent. Runs that are under way keep the one that they started with."""
    agent = await service.change_agent(rt, me, agent_id, version, AgentChange(**dict(body)))
    tagged(response, agent)
    return agent


@router.delete("/{agent_id}", status_code=204, responses=problems(404, 409, 412))
async def delete_agent(rt: Rt, me: Me, agent_id: UUID, version: VersionOrAny) -> None:
    """Delete an agent that no loop uses."""
    await service.delete_agent(rt, me, agent_id, version)
