"""A run: its attempts side by side on one wallet, its first and last event, its result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

from ..core.errors import DatabaseAway, GuardrailRefused, LoopwrightError, StaleEpoch, StoreUnavailable
from ..core.events import RunFinished, RunResumed, RunStarted
from ..core.models import Iteration
from ..core.result import RunResult, holdout_report, pause_sentence, stop_sentence
from ..core.state import Past, RunState
from ..core.stop import StopReason, Target, first_reason, seconds_of
from ..tracing import span
from .loop import LEAVE_SECONDS, Attempt, first_state
from .plan import Halt, Plan, Ports


@dataclass(frozen=True)
class Outcome:
    """How the attempts of a run ended, before it is put into words."""

    reason: StopReason
    best: Iteration | None
    detail: str | None


async def run_loop(plan: Plan, ports: Ports, halt: Halt, past: Past | None = None) -> RunResult:
    """Run a plan to its end, from its beginning or from what earlier executions left.

    Cancelling the caller's task stops the run cleanly before the cancellation is raised.
    """
    driving = asyncio.ensure_future(_traced(plan, ports, halt, past))
    try:
        return await asyncio.shield(driving)
    except asyncio.CancelledError:
        halt("cancelled")
        await driving
        raise


async def _traced(plan: Plan, ports: Ports, halt: Halt, past: Past | None) -> RunResult:
    with span("run", run=plan.run_id, loop=plan.name) as current:
        result = await _drive(plan, ports, halt, past)
        ended = {"loopwright.stop_reason": result.stop_reason, "loopwright.iterations": len(result.iterations)}
        current.set_attributes({**ended, "loopwright.cost_usd": str(result.cost.total)})
        return result


async def _drive(plan: Plan, ports: Ports, halt: Halt, past: Past | None) -> RunResult:
    started = past.started_at if past else ports.clock.now()
    attempts = await _attempts(plan, ports, halt, past or Past(started_at=started, iterations=(), elapsed=()))
    finished = attempts[0].finished
    recorded, ended, failure = True, False, None
    try:
        await ports.store.append(_opening(plan, ports, past))
        async with ports.lifespan():
            failure = await _refused(plan, ports, halt, started) or await _side_by_side(attempts)
            ended = True
    except (StaleEpoch, DatabaseAway):
        raise  # the run goes on elsewhere, or later: it has no end here
    except StoreUnavailable as error:
        recorded, failure = False, error
    except Exception as error:  # noqa: BLE001 - whatever happens, a run ends with a reason, and with the best so far
        failure = failure if ended else error  # once all is done, trouble with closing changes nothing
    outcome = _outcome(attempts, plan, ports.clock.now())
    if failure is not None:
        outcome = Outcome("error", outcome.best, _in_words(failure))
    return await _finish(plan, ports, outcome, finished, started, recorded=recorded)


async def _refused(plan: Plan, ports: Ports, halt: Halt, started: datetime) -> GuardrailRefused | None:
    """Have the guardrails judge what the run is asked to do, and give back why they refuse. Where it is halted or out
    of time meanwhile, nothing else of it begins.

    Raises:
        StaleEpoch, StoreUnavailable: as all that records.
    """
    if ports.guard is None:
        return None
    limit = seconds_of(plan.stop)
    left = None if limit is None else max(0.0, limit - (ports.clock.now() - started).total_seconds())
    said = plan.conversation
    judge = ports.guard.judge("message", said.message) if said else ports.guard.judge("goal", plan.goal)
    judging, halted = asyncio.ensure_future(judge), asyncio.ensure_future(halt.wait())
    await asyncio.wait({judging, halted}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    halted.cancel()
    if not judging.done():
        halt("time")  # where somebody halted it, that reason stays
        judging.cancel()
        await asyncio.wait({judging}, timeout=LEAVE_SECONDS)
        return None
    try:
        judging.result()
    except GuardrailRefused as refused:
        return refused
    return None


async def _attempts(plan: Plan, ports: Ports, halt: Halt, past: Past) -> list[Attempt]:
    wallet = await ports.store.wallet()
    finished = list(past.iterations)  # one list for all, in the order in which iterations finish
    states = [first_state(plan, ports, n, past.started_at, wallet) for n in range(1, plan.attempts + 1)]
    last = {each.attempt: each.failure for each in finished}  # why the last iteration of each attempt failed, if it did
    return [
        Attempt(plan, ports, state.replay(past, wallet), halt, finished, last.get(state.attempt)) for state in states
    ]


async def _side_by_side(attempts: list[Attempt]) -> Exception | None:
    """Run all attempts to their end. One that breaks stops the others; gives back what broke it.

    Raises:
        StoreUnavailable: the run can't be recorded any more.
        StaleEpoch: another worker has the run.
    """
    ended = await asyncio.gather(*(_run(attempt) for attempt in attempts), return_exceptions=True)
    errors = [error for error in ended if isinstance(error, Exception)]
    for error in errors:
        if isinstance(error, StoreUnavailable | StaleEpoch):
            raise error
    return errors[0] if errors else None


async def _run(attempt: Attempt) -> None:
    try:
        state = await attempt.run()
    except (StaleEpoch, DatabaseAway):
        raise  # the others find out when they write; until then what they wait for is paid and may be recorded
    except BaseException:
        attempt.halt("error")
        raise
    if state.stop_reason(attempt.plan.stop, attempt.ports.clock.now()) == "target_reached":
        attempt.halt("target_reached")


def _in_words(error: Exception) -> str:
    return str(error) if isinstance(error, LoopwrightError) else f"{type(error).__name__}: {error}"


def _outcome(attempts: list[Attempt], plan: Plan, now: datetime) -> Outcome:
    reasons: dict[StopReason, Attempt] = {a.state.stop_reason(plan.stop, now) or "error": a for a in attempts}
    # One attempt that fails is no failure of a run whose other attempts went well.
    reason = first_reason(r for r in reasons if r != "error") or "error"
    finished = attempts[0].finished
    if plan.conversation and reason == "max_iterations" and finished[-1].failure:  # each message is for itself
        return Outcome("error", _best_state(attempts).best, finished[-1].failure)
    if reason in ("max_iterations", "no_improvement") and finished and all(each.failure for each in finished):
        return Outcome("error", _best_state(attempts).best, f"every iteration failed; the last: {finished[-1].failure}")
    best = _best_state(attempts).best
    detail = best.done_reason if reason == "converged" and best else reasons[reason].error
    return Outcome(reason, best, detail if reason in ("error", "budget", "converged") else None)


def _best_state(attempts: list[Attempt]) -> RunState:
    """The state of the attempt with the best candidate; on a tie the first one."""
    top = attempts[0].state
    for attempt in attempts[1:]:
        best = attempt.state.best
        if best and (top.best is None or top.improves(best)):
            top = attempt.state
    return top


def _opening(plan: Plan, ports: Ports, past: Past | None) -> RunStarted | RunResumed:
    if past is not None:
        extended = 0 < past.resume_after == len(past.iterations)
        return RunResumed(why="extended" if extended else "recovered")
    return RunStarted(
        loop=plan.name,
        goal=plan.goal,
        stop=plan.stop.to_json(),
        direction=plan.direction,
        attempts=plan.attempts,
        model=plan.model,
        evaluator=ports.scorer.evaluator.name if ports.scorer else None,
        version=version("loopwright"),
    )


async def _finish(
    plan: Plan, ports: Ports, outcome: Outcome, finished: list[Iteration], started: datetime, *, recorded: bool
) -> RunResult:
    wallet, cost = await ports.store.wallet(), await ports.store.cost()
    seconds = max(0.0, (ports.clock.now() - started).total_seconds())
    if plan.conversation:
        sentence = pause_sentence(outcome.reason, wallet=wallet, detail=outcome.detail)
    else:
        sentence = stop_sentence(
            outcome.reason,
            best=outcome.best,
            iterations=len(finished),
            wallet=wallet,
            seconds=seconds,
            target=next((p for p in plan.stop.parts() if isinstance(p, Target)), None),
            detail=outcome.detail,
        )
    error = outcome.detail if outcome.reason == "error" else None
    has_holdout = ports.scorer is not None and ports.scorer.holdout is not None
    if recorded:
        await ports.store.append(
            RunFinished(
                stop_reason=outcome.reason,
                sentence=sentence,
                best=outcome.best,
                cost=cost,
                iterations=len(finished),
                seconds=seconds,
                error=error,
            )
        )
    return RunResult(
        run_id=plan.run_id,
        best=outcome.best,
        stop_reason=outcome.reason,
        sentence=sentence,
        iterations=tuple(finished),
        cost=cost,
        seconds=seconds,
        holdout=holdout_report(finished, outcome.best, plan.direction) if has_holdout else None,
        error=error,
        recorded=recorded,
    )
