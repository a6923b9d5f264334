"""Routes of tools."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Response

from ..core.records import Page, Tool
from ..service import tools as service
from ..service.tools import ToolChange
from .bodies import NewTool, ToolPatch
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/tools", tags=["tools"])


@router.get("", responses=problems())
async def list_tools(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Tool]:
    """The tools that you may use, newest first."""
    return await service.list_tools(rt, me, cursor=cursor, limit=limit)


@router.post("", status_code=201, responses=problems(409))
async def create_tool(rt: Rt, me: Me, once: OnceKey, body: NewTool, response: Response) -> Tool:
    """Store a tool."""
    tool = await service.create_tool(rt, me, ToolChange(**dict(body)), once)
    tagged(response, tool)
    return tool


@router.get("/{tool_id}", responses=problems(404))
async def get_tool(rt: Rt, me: Me, tool_id: UUID, response: Response) -> Tool:
    """A tool."""
    tool = await service.get_tool(rt, me, tool_id)
    tagged(response, tool)
    return tool


@router.patch("/{tool_id}", responses=problems(404, 412, 428))
async def change_tool(rt: Rt, me: Me, tool_id: UUID, version: Version, body: ToolPatch, response: Response) -> Tool:
    """Change a tool. Runs that are under way keep the one that they started with."""
    tool = await service.change_tool(rt, me, tool_id, version, ToolChange(**dict(body)))
    tagged(response, tool)
    return tool


@router.delete("/{tool_id}", status_code=204, responses=problems(404, 409, 412))
async def delete_tool(rt: Rt, me: Me, tool_id: UUID, version: VersionOrAny) -> None:
    """Delete a tool that no agent uses."""
    await service.delete_tool(rt, me, tool_id, version)
