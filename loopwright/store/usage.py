"""What was paid: sums of usage records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, LiteralString

from psycopg.rows import class_row

from ..core.records import Usage
from .database import Connection

GroupBy = Literal["context", "loop", "model", "user", "day"]

_GROUPS: Mapping[GroupBy, tuple[LiteralString, LiteralString]] = {
    "context": ("u.context", "null::text"),
    "loop": ("u.loop_id::text", "max(coalesce(l.name, r.loop_name))"),
    "model": ("u.model", "null::text"),
    "user": ("u.owner_id::text", "max(p.display_name)"),
    "day": ("to_char(u.at at time zone 'utc', 'YYYY-MM-DD')", "null::text"),
}
"""What each grouping goes by, and where the group's name comes from."""


async def sum_usage(
    connection: Connection, group_by: GroupBy, since: datetime | None, until: datetime | None
) -> list[Usage]:
    """What the caller may see of what was paid in [since, until), by groups: days in order, others dearest first."""
    key, label = _GROUPS[group_by]
    order: LiteralString = '"group"' if group_by == "day" else 'cost_usd desc, "group"'
    cursor = connection.cursor(row_factory=class_row(Usage))
    await cursor.execute(
        f"""
        select {key} as "group", {label} as label, sum(u.cost_usd) as cost_usd,
          count(*) filter (where u.role <> 'evaluator') as requests,
          sum(u.input_tokens)::bigint as input_tokens, sum(u.output_tokens)::bigint as output_tokens,
          sum(u.cached_tokens)::bigint as cached_tokens
        from public.usage_records u
        left join public.loops l on l.id = u.loop_id
        left join public.loop_runs r on r.id = u.run_id
        left join public.profiles p on p.id = u.owner_id
        where u.at >= %s::timestamptz and u.at < %s::timestamptz
        group by {key} order by {order} limit 1000
        """,
        (since or "-infinity", until or "infinity"),
    )
    return await cursor.fetchall()
