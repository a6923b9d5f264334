"""What a run gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .models import Cost, Direction, Iteration
from .money import show_usd
from .stop import StopReason, Target
from .wallet import Wallet


@dataclass(frozen=True, kw_only=True)
class HoldoutReport:
    """How the visible score and the holdout score of the best candidates compare."""

    score: float | None
    """Holdout score of the best candidate."""
    best_iteration: int | None
    """Iteration whose candidate the holdout likes most."""
    parted_at: int | None
    """First iteration that became the visible best while its holdout score fell; `None` if the two agree."""

    @property
    def sentence(self) -> str:
        """The report for people."""
        if self.score is None:
            return "The holdout evaluator gave no score."
        if self.parted_at is None:
            return f"The holdout evaluator agrees: {self.score:.4g}."
        return (
            f"Visible and holdout scores part ways from iteration {self.parted_at} on: the best candidate has a "
            f"holdout score of {self.score:.4g}, and the holdout likes iteration {self.best_iteration} better."
        )


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The outcome of a run: the best candidate, why it stopped, what it cost."""

    run_id: str
    best: Iteration | None
    """The iteration with the best candidate; without an evaluator the last one. `None` if there is no candidate."""
    stop_reason: StopReason
    sentence: str
    """The stop reason in a sentence."""
    iterations: tuple[Iteration, ...]
    """All finished iterations of all attempts, failed ones included, in the order in which they finished."""
    cost: Cost
    seconds: float
    holdout: HoldoutReport | None = None
    error: str | None = None
    """What went wrong, where the stop reason is `error`."""
    recorded: bool = True
    """Whether the end of the run could be recorded."""


def holdout_report(iterations: Sequence[Iteration], best: Iteration | None, direction: Direction) -> HoldoutReport:
    """Compare visible and holdout scores over the iterations that became the best of their attempt."""
    sign = 1 if direction == "maximize" else -1
    top: Iteration | None = None
    parted: int | None = None
    for it in iterations:
        if it.holdout is None or (best is not None and it.attempt != best.attempt):
            continue
        if top is None or top.holdout is None or sign * it.holdout.score >= sign * top.holdout.score:
            top, parted = it, None
        elif parted is None:
            parted = it.number
    score = best.holdout.score if best and best.holdout else None
    return HoldoutReport(score=score, best_iteration=top.number if top else None, parted_at=parted)


def pause_sentence(reason: StopReason, *, wallet: Wallet, detail: str | None = None) -> str:
    """Say how a conversation stands after a message, and the way out where it was not answered."""
    because = f" ({detail.rstrip('.')})" if detail else ""
    match reason:
        case "budget":
            cap = "" if wallet.cap is None else f": {show_usd(wallet.spent)} of {show_usd(wallet.cap)} is spent"
            held = f", and {show_usd(wallet.reserved)} is held for runs that it started" if wallet.reserved else ""
            return f"The cap of this conversation is reached{cap}{held}{because}. Raise the cap to go on."
        case "cancelled":
            return "Stopped before it was answered."
        case "error":
            return f"This was not answered{because}. Send it again to try once more."
        case _:
            return "Waiting for you."


def stop_sentence(
    reason: StopReason,
    *,
    best: Iteration | None,
    iterations: int,
    wallet: Wallet,
    seconds: float,
    target: Target | None,
    detail: str | None = None,
) -> str:
    """Say why a run is over, in how many iterations and for how much."""
    turns = "1 iteration" if iterations == 1 else f"{iterations} iterations"
    spent = f"{turns} for {show_usd(wallet.spent)}"
    score = "no score" if best is None or best.score is None else f"best score {best.score:.4g}"
    because = f": {detail}" if detail else ""
    goal = f" {target.score:.4g}" if target else ""
    cap = f" of {show_usd(wallet.cap)}" if wallet.cap is not None else ""
    opening: dict[StopReason, str] = {
        "target_reached": f"Reached the target{goal} in {spent} ({score})",
        "converged": f"The agent says that it is done ({score}, {spent}){because}",
        "budget": f"Stopped at the budget{cap} ({score}, {spent}){because}",
        "max_iterations": f"Used all its iterations ({score}, {spent})",
        "time": f"Ran out of time after {seconds:.0f} s ({score}, {spent})",
        "no_improvement": f"Stopped improving ({score}, {spent})",
        "cancelled": f"Cancelled ({score}, {spent})",
        "error": f"Stopped by an error ({score}, {spent}){because}",
    }
    return opening[reason] + ("" if opening[reason].endswith((".", "!", "?")) else ".")
