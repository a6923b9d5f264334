"""Figures of the whole installation: what all processes did, by the records that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from psycopg.rows import class_row

from .database import Connection


@dataclass(frozen=True)
class RunFigures:
    """Runs of one status and stop reason."""

    status: str
    stop_reason: str | None
    runs: int
    iterations: int
    overrun_usd: Decimal


@dataclass(frozen=True)
class ModelFigures:
    """Paid requests of this month (UTC) to one model."""

    model: str
    requests: int
    cost_usd: Decimal
    input_tokens: int
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class Totals:
    """Single figures."""

    spent_usd: Decimal
    reserved_usd: Decimal
    workers: int
    evaluation_retries: int
    overruns: int


async def runs(connection: Connection) -> Sequence[RunFigures]:
    """All runs by status and stop reason; of conversations only what went over."""
    cursor = connection.cursor(row_factory=class_row(RunFigures))
    await cursor.execute(
        "select status, stop_reason, count(*) filter (where not is_thread) as runs, "
        "coalesce(sum(iterations) filter (where not is_thread), 0)::bigint as iterations, "
        "coalesce(sum(overrun_usd), 0) as overrun_usd from public.loop_runs group by status, stop_reason"
    )
    return await cursor.fetchall()


async def models(connection: Connection) -> Sequence[ModelFigures]:
    """This month's paid requests by model."""
    cursor = connection.cursor(row_factory=class_row(ModelFigures))
    await cursor.execute(
        "select model, count(*) as requests, sum(cost_usd) as cost_usd, sum(input_tokens)::bigint as input_tokens, "
        "sum(output_tokens)::bigint as output_tokens, sum(cached_tokens)::bigint as cached_tokens "
        "from public.usage_records where role <> 'evaluator' "
        "and at >= date_trunc('month', now() at time zone 'utc') at time zone 'utc' group by model"
    )
    return await cursor.fetchall()


async def totals(connection: Connection) -> Totals:
    """What was spent and is reserved by all users, the workers, and what went wrong."""
    cursor = connection.cursor(row_factory=class_row(Totals))
    await cursor.execute(
        """
        select coalesce(sum(m.spent_usd), 0) as spent_usd, coalesce(sum(m.reserved_usd), 0) as reserved_usd,
          (select count(*) from public.workers) as workers,
          (select count(*) from public.run_events where type = 'evaluation_retried') as evaluation_retries,
          (select count(*) from public.run_events where type = 'bound_overrun') as overruns
        from public.monthly_spend m
        """
    )
    row = await cursor.fetchone()
    assert row is not None  # noqa: S101 - an aggregate has one row
    return row
