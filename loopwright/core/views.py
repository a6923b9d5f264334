"""What pages show of the stored nouns at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from pydantic import ConfigDict

from .described import Described
from .models import StopReason
from .records import RunStatus, Visibility


class View(Described):
    """Base of the views."""

    model_config = ConfigDict(frozen=True)


class LoopCard(View):
    """A loop with its last run, as the list of loops shows it."""

    id: UUID
    name: str
    visibility: Visibility
    owner_id: UUID
    goal: str
    worst_case_usd: Decimal
    agent_name: str | None
    """Null where the agent is private to somebody else."""
    model: str | None
    evaluator: str | None
    run_id: str | None
    status: RunStatus | None
    stop_reason: StopReason | None
    best_score: float | None
    run_at: datetime | None
    cap_usd: Decimal | None
    spent_usd: Decimal | None
    month_usd: Decimal
    runs: int
    scores: Sequence[float | None]
    """The best scores of its last runs, oldest first."""
    next_due_at: datetime | None = None
    """When one of the schedules that the viewer may see starts it next."""


class Point(View):
    """An iteration's score."""

    position: int
    attempt: int
    score: float | None


class CostPart(View):
    """What one role spent on one model."""

    role: str
    model: str
    cost_usd: Decimal
    requests: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
