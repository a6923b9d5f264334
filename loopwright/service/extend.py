"""Giving a finished run more: it goes on from where it stood, and nothing is paid again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, cast

from psycopg import errors

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotAllowed, NotFound, Problem
from ..core.money import usd
from ..core.records import IterationRecord, Run
from ..core.spec import LoopSpec
from ..core.state import Past, RunState
from ..core.stop import StopReason, budget_of
from ..core.wallet import Wallet
from ..store import activity, run_queries
from ..store.database import Connection
from ..store.runs import Submission
from .guardrails import clear_extension
from .once import Once, do_once, replayed
from .runtime import Runtime
from .start import Started


@dataclass(frozen=True, kw_only=True)
class More:
    """What a run is given beside what it had."""

    budget_usd: Decimal | None = None
    iterations: int | None = None
    seconds: float | None = None


UNFINISHED = frozenset({"cancelled", "error"})
"""Reasons that stopped a run before it came to an end of its own: it may go on as it was."""

STILL_GOING = "the run is not finished yet; extend it when it is, or cancel it first"


async def extend_run(runtime: Runtime, caller: Caller, run_id: str, more: More, once: Once | None = None) -> Started:
    """Let a finished run go on with more budget, iterations or time; one that was cancelled or failed, also with what
    it has left.

    Raises:
        NotFound: there is no such run that the caller may see.
        NotAllowed: it is somebody else's.
        Conflict: it is not finished, was extended at the same time, or is a conversation.
        InvalidInput: nothing is given to a run that came to its end, it has no such limit, or it would stop again at
            once.
        GuardrailRefused: a guardrail refuses it, by now.
    """
    if answer := await replayed(runtime.database, caller, once, Started):
        return answer
    async with runtime.database.as_user(caller.user_id) as connection:
        run = await run_queries.get_run(connection, run_id)
        if run is None:
            raise NotFound
        if run.thread_id is not None:
            raise Conflict("this run is a conversation; it goes on with its next message")
        if run.status != "finished":
            raise Conflict(STILL_GOING)
        iterations = await run_queries.list_iterations(connection, run_id, 0, run.iterations)
    goes_on = more == More() and run.stop_reason in UNFINISHED
    stop = run.spec["stop"] if goes_on else with_more(run.spec["stop"], more)
    spec = LoopSpec.model_validate({**run.spec, "stop": stop})
    cap = budget_of(spec.stop_condition)
    if reason := would_stop(spec, iterations, Wallet(cap=cap, spent=run.spent_usd), _clock(run)):
        message = f"with this the run would stop again at once ({reason}); give it more of what it stopped for"
        raise InvalidInput(Problem(field="", message=f"{message}, or start another one"))

    more_of_it = run_queries.Extension(run_id=run_id, stop=spec.stop, cap_usd=cap)
    cleared = await clear_extension(runtime.database, caller, more_of_it, spec, run.goal)

    async def extend(connection: Connection) -> Started:
        number = await run_queries.extend_run(connection, cleared)
        if number is None:
            raise Conflict(STILL_GOING)
        given = {name: str(value) for name, value in vars(more).items() if value is not None}
        detail = {**given, "submission": number}
        await activity.note(connection, caller.door, "run_extended", f"run:{run_id}", **detail)
        submissions.append(number)
        return Started(run_id=run_id, events_url=f"/api/runs/{run_id}/events")

    submissions: list[int] = []
    try:
        started, now = await do_once(runtime.database, caller, once, Started, extend)
    except errors.InsufficientPrivilege:
        raise NotAllowed("this run is shown to you; only its owner or an admin extends it") from None
    if now:
        await runtime.submit(Submission(run_id, run.owner_id, submissions[-1]))
    return started


def with_more(stop: dict[str, Any], more: More) -> dict[str, Any]:
    """The stop condition with more in each limit that is given more.

    Raises:
        InvalidInput: nothing is given, or there is no such limit.
    """
    wanted: dict[str, tuple[str, Decimal | int | float | None]] = {
        "budget_usd": ("budget_usd", more.budget_usd),
        "max_iterations": ("iterations", more.iterations),
        "max_seconds": ("seconds", more.seconds),
    }
    given = {name: (field, value) for name, (field, value) in wanted.items() if value}
    if not given:
        message = "give `budget_usd`, `iterations` or `seconds`: how much more the run gets"
        raise InvalidInput(Problem(field="", message=message))
    found: set[str] = set()
    changed = _raised(stop, {name: value for name, (_, value) in given.items()}, found)
    if absent := [(field, name) for name, (field, _) in given.items() if name not in found]:
        raise InvalidInput(*(Problem(field=f, message=f"the run has no {name} to add to") for f, name in absent))
    return changed


def _raised(stop: dict[str, Any], given: dict[str, Any], found: set[str]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for key, value in stop.items():
        if key in ("any", "all"):
            changed[key] = [_raised(cast("dict[str, Any]", part), given, found) for part in value]
        elif key in given:
            found.add(key)
            changed[key] = f"{usd(value) + given[key]:f}" if key == "budget_usd" else value + given[key]
        else:
            changed[key] = value
    return changed


def would_stop(
    spec: LoopSpec, iterations: Sequence[IterationRecord], wallet: Wallet, clock: timedelta
) -> StopReason | None:
    """Why a run with this past would stop before it did anything, or `None`."""
    now = datetime.now(UTC)
    past = Past(
        started_at=now - clock,
        iterations=tuple(each.data for each in iterations),
        elapsed=tuple(each.elapsed_seconds for each in iterations),
        resume_after=len(iterations),
    )
    reasons: list[StopReason] = []
    for attempt in range(1, spec.attempts + 1):
        start = RunState(
            started_at=past.started_at,
            attempt=attempt,
            direction=spec.direction,
            has_evaluator=spec.evaluator is not None,
            wallet=wallet,
        )
        reason = start.replay(past, wallet).stop_reason(spec.stop_condition, now)
        if reason is None:
            return None
        reasons.append(reason)
    return reasons[0] if reasons else None


def _clock(run: Run) -> timedelta:
    return run.finished_at - run.started_at if run.finished_at and run.started_at else timedelta(0)
