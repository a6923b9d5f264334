"""Runs as the engine sees them. What callers see of runs, under their own rights, is in `run_queries`."""

from __future__ import annotations

from collections.abc import Sequence
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


async def requeue_orphans(connection: Connection, format_number: int = 1) -> list[Submission]:
    """Put runs back into the queue whose worker is not on the list any more.

    A run that was begun by code of another format waits for a worker of that format, or for `end_stranded`.
    """
    cursor = connection.cursor(row_factory=class_row(Submission))
    await cursor.execute(
        """
        update public.loop_runs r
        set status = 'queued', executor = null, submissions = r.submissions + 1, queued_at = now()
        where r.id in (
          select o.id from public.loop_runs o
          where o.status = 'running' and (o.format = %s or o.event_seq = 0)
            and not exists (select from public.workers w where w.executor = o.executor)
          for update skip locked)
        returning r.id, r.owner_id, r.submissions
        """,
        (format_number,),
    )
    return await cursor.fetchall()


async def release(connection: Connection, executor: str, refused: Sequence[str]) -> None:
    """Put a worker's runs back into the queue, and those that it was given but did not take; tell others to look."""
    await connection.execute(
        "update public.loop_runs set status = 'queued', executor = null, submissions = submissions + 1, "
        "queued_at = '-infinity' where (status = 'running' and executor = %s) or (status = 'queued' and id = any(%s))",
        (executor, list(refused)),
    )
    await connection.execute("select pg_notify('loopwright_queue', '')")


async def waiting(connection: Connection, seconds: float, format_number: int = 1) -> list[Submission]:
    """Runs that have been in the queue for so many seconds: perhaps their process died before it told the engine.

    Each is given to one asker only, until it has waited for so long again.
    """
    cursor = connection.cursor(row_factory=class_row(Submission))
    await cursor.execute(
        """
        update public.loop_runs r set queued_at = now()
        where r.id in (
          select q.id from public.loop_runs q
          where q.status = 'queued' and q.queued_at < now() - make_interval(secs => %s)
            and (q.format = %s or q.event_seq = 0)
          order by q.queued_at limit 1000 for update skip locked)
        returning r.id, r.owner_id, r.submissions
        """,
        (seconds, format_number),
    )
    return await cursor.fetchall()


async def resubmit(connection: Connection, lost: Sequence[Submission]) -> list[Submission]:
    """New submissions for queued runs whose old one came to nothing, where they still have the old one."""
    cursor = connection.cursor(row_factory=class_row(Submission))
    await cursor.execute(
        """
        update public.loop_runs r set submissions = r.submissions + 1
        from unnest(%s::text[], %s::integer[]) as old (id, submissions)
        where r.id = old.id and r.submissions = old.submissions and r.status = 'queued'
        returning r.id, r.owner_id, r.submissions
        """,
        ([run.id for run in lost], [run.submissions for run in lost]),
    )
    return await cursor.fetchall()


async def end_stranded(connection: Connection, format_number: int) -> list[str]:
    """End the runs that code of an older format began and that no living worker's code can go on with.

    What they were in the middle of is charged whole, and the best so far is kept.
    """
    rows = await connection.execute(
        """
        update public.loop_runs r set epoch = r.epoch + 1, status = 'running', executor = 'stranded'
        where r.id in (
          select o.id from public.loop_runs o
          where o.status <> 'finished' and o.format < %s and o.event_seq > 0
            and not exists (select from public.workers w where w.format = o.format)
            and not exists (select from public.workers w where w.executor = o.executor)
          for update skip locked)
        returning r.id, r.epoch, r.format
        """,
        (format_number,),
    )
    ended = [(str(run), int(epoch), int(number)) for run, epoch, number in await rows.fetchall()]
    for run, epoch, number in ended:
        error = (
            f"the run was begun by a version of Loopwright with workflow format {number}, and no worker of such a "
            f"version is left to go on with it; this one has format {format_number}"
        )
        await fail(connection, run, epoch, error)
    return [run for run, _, _ in ended]


async def cancelled(connection: Connection, executor: str) -> list[str]:
    """Runs of a worker that somebody asked to cancel."""
    rows = await connection.execute(
        "select id from public.loop_runs "
        "where status = 'running' and executor = %s and cancel_requested_at is not null",
        (executor,),
    )
    return [str(row[0]) for row in await rows.fetchall()]


async def active(connection: Connection) -> int:
    """How many runs go on or wait, in all processes."""
    rows = await connection.execute("select count(*) from public.loop_runs where status <> 'finished'")
    row = await rows.fetchone()
    return int(row[0]) if row else 0


async def fail(connection: Connection, run_id: str, epoch: int, error: str) -> None:
    """End a run that can't go on, without an event, since events may be what can't be recorded."""
    await connection.execute(
        "select private.finish_run(%s, %s, null, false, 'error', %s, %s, '[]')",
        (run_id, epoch, f"Stopped by an error: {error}", error),
    )
