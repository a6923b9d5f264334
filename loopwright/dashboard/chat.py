"""Conversations with agents: the list of them, and one with its messages. Forms do all of it; a script adds that an
answer is seen while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotAllowed, Problem
from ..core.records import Thread, WholeThread
from ..service import threads as service
from ..service.once import Once
from ..service.overview import agent_names
from ..service.runtime import Runtime
from .deps import Cursor, Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .run import Meter
from .text import one_line

router = APIRouter(prefix="/chat", route_class=PageRoute)

FIELDS = ("agent_id", "text", "title", "cap_usd")

SHOWN = 30
"""Messages on a page."""


# --- all of them ---


@dataclass(frozen=True, kw_only=True)
class ChatContext(Context):
    """The list of conversations, and the form of a new one."""

    threads: Sequence[Thread]
    next_cursor: str | None
    archived: bool
    """Whether it lists those that were put away."""
    agents: Sequence[tuple[str, str]]
    values: Fields
    key: str
    wrong: Wrong = field(default_factory=dict[str, str])


async def _list(
    request: Request,
    rt: Runtime,
    me: Caller,
    *,
    cursor: str | None = None,
    archived: bool = False,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    found = await service.list_threads(rt, me, cursor=cursor, limit=50, archived=archived)
    context = ChatContext(
        title="Chat",
        nav="/chat",
        threads=found.items,
        next_cursor=found.next_cursor,
        archived=archived,
        agents=await agent_names(rt.database, me),
        values=values or Fields({"cap_usd": [f"{service.DEFAULT_CAP:f}"]}),
        key=new_key(),
        wrong=wrong or {},
    )
    return page(request, "chat.html", context, 422 if wrong else 200)


@router.get("")
async def show_all(
    request: Request,
    rt: Rt,
    me: Me,
    *,
    cursor: Cursor = None,
    archived: bool = False,
) -> Response:
    """The caller's conversations."""
    return await _list(request, rt, me, cursor=cursor, archived=archived)


@router.post("")
async def begin(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Begin a conversation with its first message."""
    try:
        thread = await _begun(rt, me, form)
    except InvalidInput as error:
        return await _list(request, rt, me, values=form, wrong=wrong_of(error, FIELDS))
    return await _say(request, rt, me, thread.id, form, _second(once(form)))


async def _begun(rt: Runtime, me: Caller, form: Fields) -> Thread:
    agent, cap = _id(form.short("agent_id")), form.money("cap_usd") or service.DEFAULT_CAP
    if agent is None:
        form.problems.found.append(Problem(field="agent_id", message="is missing; choose who answers"))
    if not form.short("text"):
        form.problems.found.append(Problem(field="text", message="is empty; write a message"))
    form.refuse()
    return await service.create_thread(rt, me, agent or UUID(int=0), cap_usd=cap, once=once(form))


def _id(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _second(first: Once | None) -> Once | None:
    """The key of the second thing that one form does."""
    return None if first is None else Once(key=f"{first.key}-2", sha256=first.sha256)


# --- one of them ---


@dataclass(frozen=True, kw_only=True)
class ThreadContext(Context):
    """A conversation; the parts of it that change are rendered from the same."""

    thread: WholeThread
    cost: Meter
    full: bool
    """Whether its cap is reached, so that no message is taken."""
    running: bool
    """Whether runs that it started go on."""
    agent: str
    typed: Fields
    key: str
    wrong: Wrong = field(default_factory=dict[str, str])


async def _context(
    rt: Runtime,
    me: Caller,
    thread_id: UUID,
    *,
    before: int = service.LAST,
    typed: Fields | None = None,
    wrong: Wrong | None = None,
) -> ThreadContext:
    thread = await service.get_thread(rt, me, thread_id, before=before, limit=SHOWN)
    names = dict(await agent_names(rt.database, me))
    return ThreadContext(
        title=one_line(thread.title or "Conversation", 60),
        nav="/chat",
        thread=thread,
        cost=Meter.of_money(thread.spent_usd, thread.cap_usd),
        full=thread.spent_usd >= thread.cap_usd,
        running=any(run.status != "finished" for message in thread.items for run in message.runs),
        agent=names.get(str(thread.agent_id), ""),
        typed=typed or Fields({"title": [thread.title], "cap_usd": [f"{thread.cap_usd:f}"]}),
        key=new_key(),
        wrong=wrong or {},
    )


Before = Annotated[int, Query(ge=2, le=service.LAST)]


@router.get("/{thread_id}")
async def show(request: Request, rt: Rt, me: Me, thread_id: UUID, before: Before = service.LAST) -> Response:
    """A conversation."""
    return page(request, "thread.html", await _context(rt, me, thread_id, before=before))


@router.get("/{thread_id}/live")
async def live(request: Request, rt: Rt, me: Me, thread_id: UUID) -> Response:
    """The parts of the page that change."""
    return page(request, "thread_live.html", await _context(rt, me, thread_id))


@router.post("/{thread_id}/messages")
async def say(request: Request, rt: Rt, me: Me, thread_id: UUID, form: Form) -> Response:
    """Send a message."""
    return await _say(request, rt, me, thread_id, form, once(form))


async def _say(request: Request, rt: Runtime, me: Caller, thread_id: UUID, form: Fields, key: Once | None) -> Response:
    try:
        await service.post_message(rt, me, thread_id, form.text("text"), key)
    except InvalidInput as error:
        return await _again(request, rt, me, thread_id, form, wrong_of(error, FIELDS), 422)
    except Conflict as error:
        return await _again(request, rt, me, thread_id, form, {"text": str(error)}, 409)
    except NotAllowed as error:
        return await _again(request, rt, me, thread_id, form, {"text": str(error)}, 403)
    return RedirectResponse(f"/chat/{thread_id}#say", 303)


async def _again(
    request: Request, rt: Runtime, me: Caller, thread_id: UUID, form: Fields, wrong: Wrong, status: int
) -> Response:
    """The page once more, with what was typed and what is wrong with it."""
    shown = await _context(rt, me, thread_id)
    typed = Fields({**shown.typed.values, **form.values})
    return page(request, "thread.html", await _context(rt, me, thread_id, typed=typed, wrong=wrong), status)


@router.post("/{thread_id}/stop")
async def stop(rt: Rt, me: Me, thread_id: UUID) -> Response:
    """Stop the answer that is being given."""
    await service.stop_answer(rt, me, thread_id)
    return RedirectResponse(f"/chat/{thread_id}#say", 303)


@router.post("/{thread_id}/change")
async def change(request: Request, rt: Rt, me: Me, thread_id: UUID, form: Form) -> Response:
    """Rename it, or give it another cap."""
    try:
        title, cap = form.short("title"), form.money("cap_usd")
        form.refuse()
        await service.change_thread(rt, me, thread_id, title=title[:200], cap_usd=cap)
    except InvalidInput as error:
        return await _again(request, rt, me, thread_id, form, wrong_of(error, FIELDS), 422)
    return RedirectResponse(f"/chat/{thread_id}?note=saved", 303)


@router.post("/{thread_id}/archive")
async def archive(rt: Rt, me: Me, thread_id: UUID, form: Form) -> Response:
    """Put it away, or bring it back."""
    away = form.short("archived") == "yes"
    await service.change_thread(rt, me, thread_id, archived=away)
    return RedirectResponse("/chat?note=archived" if away else f"/chat/{thread_id}", 303)
