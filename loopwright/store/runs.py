"""Runs as the engine sees them. What callers see of runs, under their own rights, is in `run_queries`."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row

from .database import Connection


@dataclass(frozen=True)
class Submission:
    """A run that is to be given to the engine."""

    id: str
    owner_id: UUID
    submissions: int

    @property
    def workflow_id(self) -> str:
        """The id of its workflow: a new one for each submission, so that one that ended is never taken for another."""
        return f"{self.id}:{self.submissions}"


async def requeue_orphans(connection: Connection) -> list[Submission]:
    """Put runs back into the queue whose worker is not on the list any more."""
    cursor = connection.cursor(row_factory=class_row(Submission))
    await cursor.execute(
        """
        update public.loop_runs r
        set status = 'queued', executor = null, submissions = r.submissions + 1, queued_at = now()
        where r.id in (
          select o.id from public.loop_runs o
          where o.status = 'running' and not exists (select from public.workers w where w.executor = o.executor)
          for update skip locked)
        returning r.id, r.owner_id, r.submissions
        """
    )
    return await cursor.fetchall()


async def waiting(connection: Connection, seconds: float) -> list[Submission]:
    """Runs that have been in the queue for so many seconds: perhaps their process died before it told the engine."""
    cursor = connection.cursor(row_factory=class_row(Submission))
    await cursor.execute(
        """
        update public.loop_runs r set queued_at = now()
        where r.id in (
          select q.id from public.loop_runs q
          where q.status = 'queued' and q.queued_at < now() - make_interval(secs => %s) for update skip locked)
        returning r.id, r.owner_id, r.submissions
        """,
        (seconds,),
    )
    return await cursor.fetchall()


async def cancelled(connection: Connection, executor: str) -> list[str]:
    """Runs of a worker that somebody asked to cancel."""
    rows = await connection.execute(
        "select id from public.loop_runs "
        "where status = 'running' and executor = %s and cancel_requested_at is not null",
        (executor,),
    )
    return [str(row[0]) for row in await rows.fetchall()]


async def fail(connection: Connection, run_id: str, epoch: int, error: str) -> None:
    """End a run that can't go on, without an event, since events may be what can't be recorded."""
    await connection.execute(
        "select private.finish_run(%s, %s, null, false, 'error', %s, %s, '[]')",
        (run_id, epoch, f"Stopped by an error: {error}", error),
    )
