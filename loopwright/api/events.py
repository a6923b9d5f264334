"""The live events of a run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from sse_starlette import EventSourceResponse
from starlette.responses import Response

from .deps import Me, Rt
from .docs import Responses, problems
from .runs import RunId

router = APIRouter(prefix="/api/runs", tags=["runs"])

HEARTBEAT_SECONDS = 15

SEND_SECONDS = 30.0
"""A viewer that takes nothing for so long is cut off; it resumes when it comes back."""

STREAM: Responses = {
    200: {
        "description": "Server-sent events. `id` is the event's sequence number; the stream ends after the run does.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The run is over and you have seen all its events. EventSource stops reconnecting."},
}
"""How a route of live events is documented."""


@router.get("/{run_id}/events", response_class=EventSourceResponse, responses={**problems(404), **STREAM})
async def watch(
    rt: Rt,
    me: Me,
    run_id: RunId,
    after: Annotated[int, Query(ge=0, le=2**53, description="The last `id` that you have seen.")] = 0,
    last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{0,16}$", description="The same; goes first.")] = None,
) -> Response:
    """Watch a run: what happened after a sequence number, and what happens from now on. Leaving doesn't stop it."""
    events = await rt.hub.open(me, run_id, int(last_event_id or after), text=True)
    if events is None:
        return Response(status_code=204)
    return EventSourceResponse(events, ping=HEARTBEAT_SECONDS, send_timeout=SEND_SECONDS, sep="\n")
