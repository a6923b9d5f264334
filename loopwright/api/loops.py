"""Routes of loops, and starting their runs."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Response

from ..core.records import Loop, Page
from ..service import loops as service
from ..service.loops import LoopChange
from ..service.start import Started, Wanted, start_run
from .bodies import LoopPatch, NewLoop, StartRun
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/loops", tags=["loops"])


@router.get("", responses=problems())
async def list_loops(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Loop]:
    """The loops that you may see, newest first."""
    return await service.list_loops(rt, me, cursor=cursor, limit=limit)


@router.post("", status_code=201, responses=problems(409))
async def create_loop(rt: Rt, me: Me, once: OnceKey, body: NewLoop, response: Response) -> Loop:
    """Store a loop."""
    loop = await service.create_loop(rt, me, LoopChange(**dict(body)), once)
    tagged(response, loop)
    return loop


@router.get("/{loop_id}", responses=problems(404))
async def get_loop(rt: Rt, me: Me, loop_id: UUID, response: Response) -> Loop:
    """A loop."""
    loop = await service.get_loop(rt, me, loop_id)
    tagged(response, loop)
    return loop


@router.patch("/{loop_id}", responses=problems(404, 409, 412, 428))
async def change_loop(rt: Rt, me: Me, loop_id: UUID, version: Version, body: LoopPatch, response: Response) -> Loop:
    """Change a loop. Runs that are under way keep the one that they started with."""
    loop = await service.change_loop(rt, me, loop_id, version, LoopChange(**dict(body)))
    tagged(response, loop)
    return loop


@router.delete("/{loop_id}", status_code=204, responses=problems(404, 412))
async def delete_loop(rt: Rt, me: Me, loop_id: UUID, version: VersionOrAny) -> None:
    """Delete a loop. Its runs stay, and those that are under way go on."""
    await service.delete_loop(rt, me, loop_id, version)


@router.post("/{loop_id}/runs", status_code=202, tags=["runs"], responses=problems(404, 409))
async def start(rt: Rt, me: Me, loop_id: UUID, once: OnceKey, body: StartRun | None = None) -> Started:
    """Start a run. It is yours: it spends from your month's budget and uses your secrets."""
    wanted = Wanted(**(body.model_dump(exclude={"triggered_by"}) if body else {}))
    return await start_run(rt, me, loop_id, wanted, once)
