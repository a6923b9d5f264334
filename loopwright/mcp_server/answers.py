"""What tools answer: typed for programs, and the same as JSON text for clients that know no types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ..core.models import StopReason
from ..core.records import Loop, Run, RunStatus, RunSummary
from ..core.stop import budget_of, parse_stop

SHOWN = 4_000
"""Characters of a candidate that a report shows; `get_best` gives all."""

Usd = Annotated[str, Field(description="US dollars.", examples=["0.50"])]


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class LoopInfo(Answer):
    """A loop that may be run."""

    id: str
    name: str
    goal: str
    budget_usd: Usd | None
    """The most that a run of it can cost."""
    worst_case_usd: Usd
    """What one iteration can cost at worst."""
    visibility: str

    @classmethod
    def of(cls, loop: Loop) -> LoopInfo:
        """A stored loop."""
        budget = budget_of(parse_stop(loop.spec.get("stop")))
        return cls(
            id=str(loop.id),
            name=loop.name,
            goal=str(loop.spec.get("goal", ""))[:SHOWN],
            budget_usd=None if budget is None else f"{budget:f}",
            worst_case_usd=f"{loop.worst_case_usd:f}",
            visibility=loop.visibility,
        )


class LoopList(Answer):
    """Loops, newest first."""

    loops: Sequence[LoopInfo]
    next_cursor: str | None
    """Pass it as `cursor` for what comes after; null at the end."""


class RunInfo(Answer):
    """A run in a list."""

    run_id: str
    loop: str
    status: RunStatus
    stop_reason: StopReason | None
    best_score: float | None
    spent_usd: Usd
    created_at: str

    @classmethod
    def of(cls, run: RunSummary) -> RunInfo:
        """A stored run."""
        return cls(
            run_id=run.id,
            loop=run.loop_name,
            status=run.status,
            stop_reason=run.stop_reason,
            best_score=run.best_score,
            spent_usd=f"{run.spent_usd:f}",
            created_at=run.created_at.isoformat(),
        )


class RunList(Answer):
    """Runs, newest first."""

    runs: Sequence[RunInfo]
    next_cursor: str | None
    """Pass it as `cursor` for what comes after; null at the end."""


class RunReport(Answer):
    """How a run stands."""

    run_id: str
    loop: str
    status: RunStatus
    stop_reason: StopReason | None
    """Why it is over; null while it goes on."""
    sentence: str
    """The same in words."""
    iterations: int
    """How many iterations have finished."""
    best_iteration: int | None
    best_score: float | None
    best_text: str | None
    """The best candidate so far, or its beginning."""
    spent_usd: Usd
    budget_usd: Usd | None
    """The most that the run can cost; null for no limit."""
    next: str
    """What to do now."""

    @classmethod
    def of(cls, run: Run) -> RunReport:
        """A stored run."""
        best = run.best.text if run.best else None
        return cls(
            run_id=run.id,
            loop=run.loop_name,
            status=run.status,
            stop_reason=run.stop_reason,
            sentence=run.sentence,
            iterations=run.iterations,
            best_iteration=run.best_iteration,
            best_score=run.best_score,
            best_text=best if best is None or len(best) <= SHOWN else f"{best[:SHOWN]} [cut; get_best gives all]",
            spent_usd=f"{run.spent_usd:f}",
            budget_usd=None if run.cap_usd is None else f"{run.cap_usd:f}",
            next=_next(run),
        )


def _next(run: Run) -> str:
    if run.status == "finished":
        return "The run is over; get_best gives its best candidate whole." if run.best else "The run is over."
    return f"The run goes on by itself; ask check_run for {run.id} again, or cancel_run to stop it."


class Best(Answer):
    """The best candidate of a run, whole."""

    run_id: str
    status: RunStatus
    iteration: int
    score: float | None
    detail: str
    """What the evaluator said of it."""
    text: str
    """The candidate."""
