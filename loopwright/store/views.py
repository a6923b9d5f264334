"""What pages show at a glance: a few columns of many rows, in one query each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Literal, LiteralString

from psycopg.rows import class_row

from ..core.records import IterationRecord, Usage
from ..core.views import CostPart, LoopCard, Point
from .database import Connection

LoopOrder = Literal["recent", "name", "spend", "score"]

_ORDERS: Mapping[LoopOrder, LiteralString] = {
    "recent": "coalesce(r.created_at, l.created_at) desc, l.id",
    "name": "lower(l.name), l.id",
    "spend": "month_usd desc, l.id",
    "score": "r.best_score desc nulls last, l.id",
}


async def loop_cards(
    connection: Connection, *, search: str, status: str, order: LoopOrder, limit: int, offset: int
) -> list[LoopCard]:
    """The loops that the caller may see, each with its last run; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(LoopCard))
    await cursor.execute(
        f"""
        select l.id, l.name, l.visibility, l.owner_id, l.spec ->> 'goal' as goal, l.worst_case_usd,
          a.name as agent_name, a.spec ->> 'model' as model, l.spec -> 'evaluator' ->> 'kind' as evaluator,
          r.id as run_id, r.status, r.stop_reason, r.best_score, r.created_at as run_at, r.cap_usd, r.spent_usd,
          coalesce((select sum(u.cost_usd) from public.usage_records u
            where u.loop_id = l.id and u.at >= date_trunc('month', now() at time zone 'utc') at time zone 'utc'), 0)
            as month_usd,
          (select count(*) from public.loop_runs x where x.loop_id = l.id) as runs,
          array(select x.best_score from (
            select b.best_score, b.created_at from public.loop_runs b
            where b.loop_id = l.id order by b.created_at desc limit 16) x order by x.created_at) as scores,
          (select min(s.next_due_at) from public.schedules s where s.loop_id = l.id and s.status = 'active')
            as next_due_at
        from public.loops l
        left join public.agents a on a.id = l.agent_id
        left join lateral (
          select * from public.loop_runs y where y.loop_id = l.id order by y.created_at desc, y.id desc limit 1) r
          on true
        where (%(search)s = '' or l.name ilike %(like)s or l.spec ->> 'goal' ilike %(like)s)
          and (%(status)s = '' or (%(status)s = 'never' and r.id is null)
            or (%(status)s = 'live' and r.status in ('queued', 'running')) or r.stop_reason = %(status)s)
        order by {_ORDERS[order]} limit %(limit)s offset %(offset)s
        """,
        {
            "search": search,
            "like": f"%{_escaped(search)}%",
            "status": status,
            "limit": limit + 1,
            "offset": offset,
        },
    )
    return await cursor.fetchall()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def points(connection: Connection, run_id: str) -> list[Point]:
    """The scores of a run's iterations, in the order in which they finished."""
    cursor = connection.cursor(row_factory=class_row(Point))
    await cursor.execute(
        "select position, attempt, score from public.loop_iterations where run_id = %s order by position", (run_id,)
    )
    return await cursor.fetchall()


async def iteration_at(connection: Connection, run_id: str, position: int) -> IterationRecord | None:
    """An iteration by its place in the run."""
    cursor = connection.cursor(row_factory=class_row(IterationRecord))
    await cursor.execute(
        "select position, is_best, elapsed_seconds, data from public.loop_iterations "
        "where run_id = %s and position = %s",
        (run_id, position),
    )
    return await cursor.fetchone()


async def best_before(connection: Connection, run_id: str, attempt: int, position: int) -> IterationRecord | None:
    """The best iteration of an attempt before a place."""
    cursor = connection.cursor(row_factory=class_row(IterationRecord))
    await cursor.execute(
        "select position, is_best, elapsed_seconds, data from public.loop_iterations "
        "where run_id = %s and attempt = %s and position < %s and is_best order by position desc limit 1",
        (run_id, attempt, position),
    )
    return await cursor.fetchone()


async def cost_parts(connection: Connection, run_id: str, attempt: int | None, number: int | None) -> list[CostPart]:
    """What a run, or one of its iterations, cost by role and model."""
    cursor = connection.cursor(row_factory=class_row(CostPart))
    await cursor.execute(
        """
        select role, model, sum(cost_usd) as cost_usd, count(*) as requests, sum(input_tokens)::bigint as input_tokens,
          sum(output_tokens)::bigint as output_tokens, sum(cached_tokens)::bigint as cached_tokens
        from public.usage_records
        where run_id = %s and (%s::integer is null or attempt = %s) and (%s::integer is null or iteration = %s)
        group by role, model order by cost_usd desc, role, model
        """,
        (run_id, attempt, attempt, number, number),
    )
    return await cursor.fetchall()


async def usage_by_role(connection: Connection, since: datetime | None, until: datetime | None) -> list[Usage]:
    """What the caller may see of what was paid in [since, until), by the role that spent it."""
    cursor = connection.cursor(row_factory=class_row(Usage))
    await cursor.execute(
        """
        select role as "group", null::text as label, sum(cost_usd) as cost_usd,
          count(*) filter (where role <> 'evaluator') as requests, sum(input_tokens)::bigint as input_tokens,
          sum(output_tokens)::bigint as output_tokens, sum(cached_tokens)::bigint as cached_tokens
        from public.usage_records
        where at >= %s::timestamptz and at < %s::timestamptz
        group by role order by cost_usd desc, role
        """,
        (since or "-infinity", until or "infinity"),
    )
    return await cursor.fetchall()


async def names(connection: Connection, kind: Literal["agents", "loops"]) -> Sequence[tuple[str, str]]:
    """Ids and names of what the caller may see, by name."""
    table: LiteralString = "public.agents" if kind == "agents" else "public.loops"
    rows = await connection.execute(f"select id::text, name from {table} order by lower(name), id limit 500")
    return [(str(row[0]), str(row[1])) for row in await rows.fetchall()]


async def month_total(connection: Connection) -> Decimal:
    """What the caller may see of what was paid this month (UTC)."""
    rows = await connection.execute(
        "select coalesce(sum(cost_usd), 0) from public.usage_records "
        "where at >= date_trunc('month', now() at time zone 'utc') at time zone 'utc'"
    )
    row = await rows.fetchone()
    return row[0] if row else Decimal(0)
