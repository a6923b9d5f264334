"""Stored conversations and their messages."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.models import Conversation, Exchange, StartedRun
from ..core.records import Thread, ThreadMessage
from .database import Connection
from .paging import Place

_THREAD: LiteralString = """
t.id, t.agent_id, t.run_id, t.title, case when r.status = 'finished' then 'waiting' else 'answering' end as status,
t.messages, r.cap_usd, r.spent_usd, r.reserved_usd, t.archived_at, t.created_at, t.updated_at
"""

LAST_EXCHANGES = 200
"""How much of a conversation is read to answer its next message; less of it fits into a prompt."""

LAST_RUNS = 10
"""How many of the runs that were started in a conversation its agent is told of."""


async def list_threads(connection: Connection, place: Place, limit: int, *, archived: bool) -> list[Thread]:
    """The caller's conversations, the one that was last written to first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Thread))
    await cursor.execute(
        f"select {_THREAD} from public.assistant_threads t join public.loop_runs r on r.id = t.run_id "
        "where (t.updated_at, t.id) < (%s::timestamptz, %s::uuid) and (t.archived_at is not null) = %s "
        "order by t.updated_at desc, t.id desc limit %s",
        (place.at, place.id, archived, limit + 1),
    )
    return await cursor.fetchall()


async def get_thread(connection: Connection, thread_id: UUID) -> Thread | None:
    """A conversation, if it is the caller's."""
    cursor = connection.cursor(row_factory=class_row(Thread))
    await cursor.execute(
        f"select {_THREAD} from public.assistant_threads t join public.loop_runs r on r.id = t.run_id where t.id = %s",
        (thread_id,),
    )
    return await cursor.fetchone()


_MESSAGES: LiteralString = """
select m.position, m.text, m.status, m.answer, m.notice, m.iteration, m.cost_usd, m.after_seq, m.created_at,
  m.answered_at,
  coalesce((
    select json_agg(json_build_object(
      'run_id', r.id, 'loop_name', r.loop_name, 'status', r.status, 'stop_reason', r.stop_reason,
      'cap_usd', r.cap_usd::text, 'spent_usd', r.spent_usd::text, 'best_score', r.best_score) order by r.created_at)
    from public.loop_runs r where r.id = any(m.runs)), '[]') as runs
from public.assistant_messages m
"""


async def last_messages(connection: Connection, thread_id: UUID, before: int, limit: int) -> list[ThreadMessage]:
    """Messages of a conversation before a place, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(ThreadMessage))
    await cursor.execute(
        f"{_MESSAGES} where m.thread_id = %s and m.position < %s order by m.position desc limit %s",
        (thread_id, before, limit + 1),
    )
    return await cursor.fetchall()


async def open_thread(
    connection: Connection, thread_id: UUID, *, run_id: str, agent_id: UUID, agent: str, title: str, cap_usd: Decimal
) -> None:
    """Make a conversation of the caller's."""
    await connection.execute(
        "select private.open_thread(%s, %s, %s, %s, %s, %s)", (thread_id, run_id, agent_id, agent, title, cap_usd)
    )


@dataclass(frozen=True)
class Taken:
    """What came of a message."""

    outcome: Literal["ok", "gone", "archived", "busy", "spent"]
    place: int
    seq: int
    submission: int


async def post_message(
    connection: Connection, thread_id: UUID, *, text: str, spec: dict[str, Any], title: str
) -> Taken:
    """Take a message and put the conversation's run into the queue, or say why not."""
    cursor = connection.cursor(row_factory=class_row(Taken))
    await cursor.execute(
        "select outcome, place, seq, submission from private.post_message(%s, %s, %s, %s)",
        (thread_id, text, Jsonb(spec), title),
    )
    taken = await cursor.fetchone()
    if taken is None:  # a function gives a row
        raise LookupError("post_message gave nothing")
    return taken


async def change_thread(
    connection: Connection, thread_id: UUID, *, title: str | None, cap_usd: Decimal | None, archived: bool | None
) -> Literal["ok", "gone", "low"]:
    """Change a conversation; `None` leaves a part as it is."""
    rows = await connection.execute(
        "select private.change_thread(%s, %s, %s, %s)", (thread_id, title, cap_usd, archived)
    )
    row = await rows.fetchone()
    return row[0] if row else "gone"


@dataclass(frozen=True)
class Span:
    """Between which events of a conversation's run a message was answered."""

    after_seq: int
    end_seq: int | None
    """`None` while it is being answered."""


async def span_of(connection: Connection, thread_id: UUID, position: int) -> Span | None:
    """Where the events of a message are."""
    cursor = connection.cursor(row_factory=class_row(Span))
    await cursor.execute(
        "select after_seq, end_seq from public.assistant_messages where thread_id = %s and position = %s",
        (thread_id, position),
    )
    return await cursor.fetchone()


# --- for the service itself ---


@dataclass(frozen=True)
class _Said:
    position: int
    text: str
    answer: str | None


async def conversation_of(connection: Connection, run_id: str) -> Conversation | None:
    """What was said in the conversation that a run is, up to the message that is to be answered; `None` for a run that
    answers none. What a guardrail refused was not said: no later answer is to go by it. For the service itself."""
    cursor = connection.cursor(row_factory=class_row(_Said))
    await cursor.execute(
        "select m.position, m.text, m.answer from public.assistant_messages m "
        "join public.assistant_threads t on t.id = m.thread_id where t.run_id = %s and not exists ("
        "  select from public.run_events e where e.run_id = t.run_id and e.type = 'guardrail_refused' "
        "  and e.seq > m.after_seq and e.seq <= m.end_seq and e.data ->> 'what' = 'message') "
        "order by m.position desc limit %s",
        (run_id, LAST_EXCHANGES + 1),
    )
    said = await cursor.fetchall()
    if not said:
        return None
    now, *earlier = said
    return Conversation(
        message=now.text,
        earlier=tuple(Exchange(message=each.text, answer=each.answer) for each in reversed(earlier)),
        left_out=said[-1].position - 1,
        runs=await _started(connection, run_id, now.position),
    )


async def _started(connection: Connection, run_id: str, position: int) -> tuple[StartedRun, ...]:
    """The last runs that were started for earlier messages. Those of this one are left out, so that the prompt of an
    answer that is taken up again is the one that it had."""
    cursor = connection.cursor(row_factory=class_row(StartedRun))
    await cursor.execute(
        "select r.id as run_id, r.loop_name as loop from public.assistant_threads t "
        "join public.assistant_messages m on m.thread_id = t.id and m.position < %s "
        "join public.loop_runs r on r.id = any(m.runs) and r.paid_by = t.run_id "
        "where t.run_id = %s order by m.position desc, r.created_at desc limit %s",
        (position, run_id, LAST_RUNS),
    )
    return tuple(reversed(await cursor.fetchall()))
