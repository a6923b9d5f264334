"""Routes of conversations."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Header, Query, Request
from sse_starlette import EventSourceResponse
from starlette.responses import Response, StreamingResponse

from ..core.records import Page, Thread, WholeThread
from ..service import threads as service
from ..service.once import Once
from .bodies import NewMessage, NewThread, ThreadPatch
from .deps import Cursor, Limit, Me, OnceKey, Rt
from .docs import problems
from .events import HEARTBEAT_SECONDS, SEND_SECONDS, STREAM

router = APIRouter(prefix="/api/threads", tags=["threads"])

Before = Annotated[int, Query(ge=2, le=service.LAST, description="The lowest `position` that you have.")]
After = Annotated[int, Query(ge=0, le=2**53, description="The last `id` that you have seen.")]
LastId = Annotated[str | None, Header(pattern=r"^[0-9]{0,16}$", description="The last `id` that you have seen.")]
Archived = Annotated[bool, Query(description="Those that were put away, instead of the others.")]


@router.get("", responses=problems())
async def list_threads(
    rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50, archived: Archived = False
) -> Page[Thread]:
    """Your conversations, the one that was last written to first."""
    return await service.list_threads(rt, me, cursor=cursor, limit=limit, archived=archived)


@router.post("", status_code=201, responses=problems(409))
async def create_thread(rt: Rt, me: Me, once: OnceKey, body: NewThread) -> Thread:
    """Begin a conversation with one of your agents. Nothing is asked of it yet."""
    return await service.create_thread(rt, me, **dict(body), once=once)


@router.get("/{thread_id}", responses=problems(404))
async def get_thread(rt: Rt, me: Me, thread_id: UUID, before: Before = service.LAST, limit: Limit = 50) -> WholeThread:
    """A conversation with its last messages."""
    return await service.get_thread(rt, me, thread_id, before=before, limit=limit)


@router.patch("/{thread_id}", responses=problems(404))
async def change_thread(rt: Rt, me: Me, thread_id: UUID, body: ThreadPatch) -> Thread:
    """Rename a conversation, give it another cap, put it away or bring it back."""
    return await service.change_thread(rt, me, thread_id, **dict(body))


@router.delete("/{thread_id}", status_code=204, responses=problems(404))
async def archive_thread(rt: Rt, me: Me, thread_id: UUID) -> None:
    """Put a conversation away. What it cost stays on record; an answer that is being given is stopped, and runs that
    it started go on."""
    await service.change_thread(rt, me, thread_id, archived=True)


@router.post("/{thread_id}/stop", status_code=202, responses=problems(404))
async def stop(rt: Rt, me: Me, thread_id: UUID) -> Thread:
    """Stop the answer that is being given. Runs that it started go on."""
    return await service.stop_answer(rt, me, thread_id)


@router.post("/{thread_id}/messages", response_class=EventSourceResponse, responses={**problems(404, 409), **STREAM})
async def post_message(
    rt: Rt, me: Me, thread_id: UUID, once: OnceKey, body: NewMessage, last_event_id: LastId = None
) -> Response:
    """Send a message and watch its answer. Leaving doesn't stop it: send the same again with its `Idempotency-Key` and
    `Last-Event-ID` to see the rest. While one is being answered, another one is refused with 409."""
    posted = await service.post_message(rt, me, thread_id, body.text, once)
    after = int(last_event_id or 0)
    return _streamed(await service.watch(rt, me, thread_id, position=posted.position, after=after))


@router.get("/{thread_id}/events", response_class=EventSourceResponse, responses={**problems(404), **STREAM})
async def watch(rt: Rt, me: Me, thread_id: UUID, after: After = 0, last_event_id: LastId = None) -> Response:
    """Watch the answer to the last message."""
    return _streamed(await service.watch(rt, me, thread_id, after=int(last_event_id or after)))


def _streamed(events: AsyncGenerator[bytes] | None) -> Response:
    if events is None:
        return Response(status_code=204)
    return EventSourceResponse(events, ping=HEARTBEAT_SECONDS, send_timeout=SEND_SECONDS, sep="\n")


_UI_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer as a UI message stream of the AI SDK.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}

_FROM_UI = {
    "id": "chat-1",
    "trigger": "submit-message",
    "messages": [{"id": "m-1", "role": "user", "parts": [{"type": "text", "text": "Which loops are there?"}]}],
}


@router.post("/{thread_id}/vercel", response_class=StreamingResponse, responses={**problems(404, 409), **_UI_STREAM})
async def vercel(
    rt: Rt,
    me: Me,
    thread_id: UUID,
    request: Request,
    once: OnceKey,
    body: Annotated[dict[str, Any], Body(description="What `useChat` of the AI SDK sends.", examples=[_FROM_UI])],
) -> Response:
    """Send a message from a chat front end that speaks the Vercel AI SDK's protocol, version 5 and up. Its last user
    message is taken; what was said before is known here."""
    from .vercel import Asked, streamed

    asked = Asked.of(await request.body())
    posted = await service.post_message(rt, me, thread_id, asked.text, once or _by_id(thread_id, asked.id, asked.text))
    return streamed(await service.watch(rt, me, thread_id, position=posted.position))


def _by_id(thread_id: UUID, message_id: str, text: str) -> Once:
    """A message has an id of its own there, so that one that is sent again is answered once."""
    digest = hashlib.sha256(repr((str(thread_id), message_id, text)).encode())
    return Once(key=f"vercel-{digest.hexdigest()}", sha256=digest.digest())
