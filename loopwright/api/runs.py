"""Routes of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query
from starlette.responses import StreamingResponse

from ..core.records import IterationRecord, Page, Run, RunStatus, RunSummary
from ..service import runs as service
from ..service.cancel import cancel_run
from ..service.extend import More, extend_run
from ..service.fork import fork_run
from ..service.start import Started, Wanted
from .bodies import ExtendRun, ForkRun
from .deps import Cursor, Limit, Me, OnceKey, Rt
from .docs import problems

router = APIRouter(prefix="/api/runs", tags=["runs"])

RunId = Annotated[str, Path(pattern=r"^run_[0-9a-f]{8,40}$", examples=["run_019ad5c1a2b3c4d5e6f70"])]


@router.get("", responses=problems())
async def list_runs(
    rt: Rt,
    me: Me,
    *,
    cursor: Cursor = None,
    limit: Limit = 50,
    loop_id: Annotated[UUID | None, Query(description="Only runs of this loop.")] = None,
    status: Annotated[RunStatus | None, Query(description="Only runs in this status.")] = None,
    mine: Annotated[bool, Query(description="Only your own runs.")] = False,
) -> Page[RunSummary]:
    """The runs that you may see, newest first."""
    return await service.list_runs(
        rt.database, me, cursor=cursor, limit=limit, loop_id=loop_id, status=status, mine=mine
    )


@router.get("/{run_id}", responses=problems(404))
async def get_run(rt: Rt, me: Me, run_id: RunId) -> Run:
    """A run with its best candidate so far."""
    return await service.get_run(rt.database, me, run_id)


@router.get("/{run_id}/iterations", responses=problems(404))
async def list_iterations(
    rt: Rt,
    me: Me,
    run_id: RunId,
    after: Annotated[int, Query(ge=0, le=1_000_000_000, description="The last `position` that you have.")] = 0,
    limit: Limit = 50,
) -> Sequence[IterationRecord]:
    """The finished iterations of a run, in the order in which they finished."""
    return await service.list_iterations(rt.database, me, run_id, after=after, limit=limit)


@router.post("/{run_id}/cancel", status_code=202, responses=problems(404))
async def cancel(rt: Rt, me: Me, run_id: RunId) -> Run:
    """Cancel a run: what is in flight stops within a second, and the best so far is kept. Doing it twice is doing it
    once, and nothing changes for a run that is over."""
    return await cancel_run(rt, me, run_id)


@router.post("/{run_id}/extend", status_code=202, responses=problems(404, 409))
async def extend(rt: Rt, me: Me, run_id: RunId, once: OnceKey, body: ExtendRun) -> Started:
    """Let a finished run go on with more budget, iterations or time; nothing is paid again. With an empty body a run
    that was cancelled or failed goes on with what it has left: to cancel is to pause, to extend is to go on."""
    return await extend_run(rt, me, run_id, More(**dict(body)), once)


@router.post("/{run_id}/fork", status_code=202, responses=problems(404, 409))
async def fork(rt: Rt, me: Me, run_id: RunId, once: OnceKey, body: ForkRun) -> Started:
    """Start a new run from the first iterations of another; they cost it nothing."""
    wanted = Wanted(**body.model_dump(exclude={"iteration"}))
    return await fork_run(rt, me, run_id, many=body.iteration, wanted=wanted, once=once)


_LINES = {
    200: {"description": "One event a line.", "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}
}


@router.get("/{run_id}/export", response_class=StreamingResponse, responses={**problems(404), **_LINES})
async def export(rt: Rt, me: Me, run_id: RunId) -> StreamingResponse:
    """The run's journal, as `loopwright replay` reads it."""
    lines = await service.export_run(rt.database, me, run_id)
    name = f'attachment; filename="{run_id}.jsonl"'
    return StreamingResponse(lines, media_type="application/x-ndjson", headers={"Content-Disposition": name})
