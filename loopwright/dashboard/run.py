"""The page of a run: how it goes, what it has cost, why it stopped, and what happened in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import PlainTextResponse, RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound
from ..core.models import Iteration
from ..core.records import IterationRecord, Run
from ..core.views import CostPart
from ..service import transcript
from ..service.cancel import cancel_run
from ..service.extend import More, extend_run
from ..service.fork import fork_run
from ..service.runs import get_run, list_iterations
from ..service.runtime import Runtime
from ..service.scores import Scored, scores
from ..service.start import Wanted
from .chart import Chart, Series, draw
from .deps import Form, Me, Rt, RunId, new_key, once
from .describe import Limits, evaluator_words, limits_of, stops
from .diff import Part, diff
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .text import one_line, plain, score, words

router = APIRouter(prefix="/runs/{run_id}", route_class=PageRoute)

ROWS = 25
"""Iterations on a page."""

SHOWN = 20_000
"""Characters of a text that a page shows; the whole can be downloaded."""

Tone = Literal["live", "good", "warn", "bad", "idle"]

TONES: dict[str, Tone] = {
    "target_reached": "good",
    "converged": "good",
    "budget": "warn",
    "time": "warn",
    "max_iterations": "idle",
    "no_improvement": "idle",
    "cancelled": "idle",
    "error": "bad",
}
MARKS: dict[Tone, str] = {"live": "●", "good": "✓", "warn": "▲", "bad": "✕", "idle": "■"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """An iteration in the list."""

    position: int
    label: str
    score: float | None
    is_best: bool
    failure: str
    preview: str
    cost: Decimal
    seconds: float

    @classmethod
    def of(cls, record: IterationRecord, *, several: bool) -> Row:
        """A finished iteration."""
        data = record.data
        return cls(
            position=record.position,
            label=f"{data.attempt}·{data.number}" if several else str(data.number),
            score=data.score,
            is_best=record.is_best,
            failure=one_line(data.failure or ""),
            preview=one_line(data.text),
            cost=data.cost_usd,
            seconds=data.seconds,
        )


@dataclass(frozen=True, kw_only=True)
class Meter:
    """How much of something is used up."""

    percent: float
    tone: Literal["", "warn", "bad"]

    @classmethod
    def of_money(cls, spent: Decimal, cap: Decimal | None) -> Meter:
        """What is used up of a cap: yellow at 80 %, red at 95 %."""
        used = 100 * float(spent / cap) if cap else 0.0
        tone: Literal["", "warn", "bad"] = "bad" if used >= 95 else "warn" if used >= 80 else ""
        return cls(percent=min(100.0, round(used, 1)), tone=tone)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a run stands: what the four cards show."""

    run: Run
    limits: Limits
    tone: Tone
    label: str
    elapsed: float
    left: float | None
    most: int | None
    """How many iterations there can be, of all attempts."""
    cost: Meter
    done: Meter

    @property
    def live(self) -> bool:
        """Whether it goes on."""
        return self.run.status != "finished"


def standing(run: Run, now: datetime) -> Standing:
    """Where a run stands."""
    limits = limits_of(run.spec.get("stop", {}))
    attempts = int(run.spec.get("attempts", 1))
    most = limits.iterations * attempts if limits.iterations else None
    elapsed = ((run.finished_at or now) - run.started_at).total_seconds() if run.started_at else 0.0
    label = run.status if run.stop_reason is None else words(run.stop_reason)
    if run.cancel_requested_at and run.status != "finished":
        label = "stopping"
    return Standing(
        run=run,
        limits=limits,
        tone="live" if run.stop_reason is None else TONES[run.stop_reason],
        label=label,
        elapsed=max(0.0, elapsed),
        left=max(0.0, limits.seconds - elapsed) if limits.seconds and run.status != "finished" else None,
        most=most,
        cost=Meter.of_money(run.spent_usd, run.cap_usd),
        done=Meter(percent=min(100.0, round(100 * run.iterations / most, 1)) if most else 0.0, tone=""),
    )


def tab_title(at: Standing) -> str:
    """What the browser's tab says: `● 7/20 0.83 – Tagline`."""
    run = at.run
    many = f"{run.iterations}/{at.most}" if at.most else str(run.iterations)
    parts = [MARKS[at.tone], many, *([score(run.best_score)] if run.best_score is not None else [])]
    return f"{' '.join(parts)} – {one_line(run.loop_name, 60)}"


@dataclass(frozen=True, kw_only=True)
class RunContext(Context):
    """The page of a run; its live parts are rendered from the same."""

    run: Run
    at: Standing
    chart: Chart | None
    rows: Sequence[Row]
    first: int
    """The lowest position among the rows."""
    newest: bool
    """Whether the page shows the newest iterations."""
    reset: bool
    """Whether the rows take the place of those that the viewer has."""
    costs: Sequence[CostPart]
    best: str
    best_cut: bool
    summary: str
    evaluator: str
    goal: str
    can_steer: bool
    key: str
    """Makes a form do its work once."""
    typed: Fields = field(default_factory=Fields)
    """What was typed into a form that was wrong."""
    wrong: Wrong = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Window:
    """Which iterations are shown."""

    after: int = 0
    """Only those after this place: what the viewer has already."""
    before: int | None = None
    """Only those before this place: an older page."""

    def of(self, many: int) -> tuple[int, int]:
        """The places between which they lie."""
        top = many if self.before is None else min(self.before - 1, many)
        return max(self.after, top - ROWS), top


async def _context(
    rt: Runtime, me: Caller, run_id: str, window: Window, wrong: Wrong | None = None, typed: Fields | None = None
) -> RunContext:
    scored = await scores(rt.database, me, run_id)
    run, at = scored.run, standing(scored.run, datetime.now(UTC))
    begin, top = window.of(run.iterations)
    found = await list_iterations(rt.database, me, run_id, after=begin, limit=top - begin) if top > begin else []
    several = int(run.spec.get("attempts", 1)) > 1
    return RunContext(
        title=tab_title(at),
        nav="/runs",
        run=run,
        at=at,
        chart=_chart(scored, at),
        rows=[Row.of(record, several=several) for record in reversed(found)],
        first=begin + 1,
        newest=window.before is None or window.before > run.iterations,
        reset=begin > window.after,
        costs=await transcript.costs(rt.database, me, run_id),
        best=plain(run.best.text[:SHOWN]) if run.best else "",
        best_cut=bool(run.best and len(run.best.text) > SHOWN),
        summary=f"{run.spec.get('agent', {}).get('model', '?')}, {stops(run.spec.get('stop', {}))}",
        evaluator=evaluator_words(run.spec.get("evaluator")),
        goal=plain(run.goal[:SHOWN]),
        can_steer=me.is_admin or str(run.owner_id) == me.user_id,
        key=new_key(),
        typed=typed or Fields(),
        wrong=wrong or {},
    )


def _chart(scored: Scored, at: Standing) -> Chart | None:
    direction = "minimize" if scored.run.spec.get("direction") == "minimize" else "maximize"
    series = [Series(one_line(scored.run.loop_name, 60), scored.points)]
    return draw(series, direction=direction, target=at.limits.target, most=at.most)


@router.get("")
async def show(
    request: Request, rt: Rt, me: Me, run_id: RunId, before: Annotated[int | None, Query(ge=2, le=10**9)] = None
) -> Response:
    """The page."""
    context = await _context(rt, me, run_id, Window(before=before))
    if context.run.thread_id is not None:
        return RedirectResponse(f"/chat/{context.run.thread_id}", 303)
    return page(request, "run.html", context)


@router.get("/live")
async def live(
    request: Request, rt: Rt, me: Me, run_id: RunId, after: Annotated[int, Query(ge=0, le=10**9)] = 0
) -> Response:
    """The parts of the page that change, with the iterations after the last one that the viewer has."""
    return page(request, "run_live.html", await _context(rt, me, run_id, Window(after=after)))


@router.get("/best")
async def best(rt: Rt, me: Me, run_id: RunId) -> Response:
    """The best candidate as a file."""
    run = await get_run(rt.database, me, run_id)
    if run.best is None or run.best.candidate is None:
        raise NotFound
    return _file(run.best.text, f"{run_id}-best.{_kind(run.best)}")


# --- one iteration ---


@dataclass(frozen=True, kw_only=True)
class IterationContext(Context):
    """One iteration, whole."""

    run: Run
    position: int
    data: Iteration
    is_best: bool
    text: str
    cut: bool
    changes: Sequence[Part]
    before: int | None
    """The number of the iteration that it is compared with."""
    prompt: Sequence[tuple[str, str]]
    costs: Sequence[CostPart]
    can_fork: bool
    key: str
    typed: Fields = field(default_factory=Fields)
    wrong: Wrong = field(default_factory=dict[str, str])


def _told(told: transcript.Told) -> IterationContext:
    data, run = told.record.data, told.run
    old = told.before.data if told.before else None
    return IterationContext(
        title=f"Iteration {data.number} – {one_line(run.loop_name, 60)}",
        nav="/runs",
        run=run,
        position=told.record.position,
        data=data,
        is_best=told.record.is_best,
        text=plain(data.text[:SHOWN]),
        cut=len(data.text) > SHOWN,
        changes=diff(plain(old.text[:SHOWN]), plain(data.text[:SHOWN])) if old and data.candidate else (),
        before=old.number if old else None,
        prompt=[(each.role, plain(each.text[:SHOWN])) for each in told.prompt.messages] if told.prompt else (),
        costs=told.costs,
        can_fork=run.thread_id is None and (told.record.position < run.iterations or run.status == "finished"),
        key=new_key(),
    )


Place = Annotated[int, Query(ge=1, le=10**9)]


@router.get("/iterations/{position}")
async def iteration(request: Request, rt: Rt, me: Me, run_id: RunId, position: int, part: bool = False) -> Response:
    """An iteration, as a page or as the part that the run's page opens."""
    told = await transcript.tell(rt.database, me, run_id, min(max(position, 0), 10**9))
    return page(request, "_iteration.html" if part else "iteration.html", _told(told))


@router.get("/iterations/{position}/candidate")
async def candidate(rt: Rt, me: Me, run_id: RunId, position: int) -> Response:
    """An iteration's candidate as a file."""
    told = await transcript.tell(rt.database, me, run_id, min(max(position, 0), 10**9))
    return _file(told.record.data.text, f"{run_id}-{position}.{_kind(told.record.data)}")


def _kind(data: Iteration) -> str:
    return "json" if data.candidate and data.candidate.data is not None else "txt"


def _file(text: str, name: str) -> Response:
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return PlainTextResponse(text, headers=headers)


# --- steering ---


@router.post("/stop")
async def stop(rt: Rt, me: Me, run_id: RunId) -> Response:
    """Cancel the run; the best so far is kept."""
    await cancel_run(rt, me, run_id)
    return RedirectResponse(f"/runs/{run_id}?note=stopping", 303)


EXTEND_FIELDS = ("budget_usd", "iterations", "seconds")


@router.post("/extend")
async def extend(request: Request, rt: Rt, me: Me, run_id: RunId, form: Form) -> Response:
    """Let a finished run go on."""
    try:
        more = More(
            budget_usd=form.money("budget_usd"), iterations=form.whole("iterations"), seconds=form.number("seconds")
        )
        form.refuse()
        await extend_run(rt, me, run_id, more, once(form))
    except InvalidInput as error:
        context = await _context(rt, me, run_id, Window(), wrong_of(error, EXTEND_FIELDS), form)
        return page(request, "run.html", context, 422)
    return RedirectResponse(f"/runs/{run_id}?note=extended", 303)


FORK_FIELDS = ("budget_usd", "max_iterations")


@router.post("/fork")
async def fork(request: Request, rt: Rt, me: Me, run_id: RunId, form: Form) -> Response:
    """Start a new run from one of the iterations."""
    many = form.whole("iteration") or 0
    try:
        wanted = Wanted(budget_usd=form.money("budget_usd"), max_iterations=form.whole("max_iterations"))
        form.refuse()
        started = await fork_run(rt, me, run_id, many=many, wanted=wanted, once=once(form))
    except InvalidInput as error:
        told = await transcript.tell(rt.database, me, run_id, min(max(many, 1), 10**9))
        context = replace(_told(told), typed=form, wrong=wrong_of(error, FORK_FIELDS))
        return page(request, "iteration.html", context, 422)
    return RedirectResponse(f"/runs/{started.run_id}", 303)
