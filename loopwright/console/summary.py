"""The end of a run: why it is over, the best candidate, what it cost, where the journal is."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from rich.text import Text

from ..core.models import Cost
from ..core.money import show_usd
from ..core.result import RunResult
from ..core.wallet import ZERO
from .text import printable, score_text, whole_text

LONGEST = 20_000
"""Characters of a candidate that a terminal shows; the whole is in the journal and in `--output`."""


def summary(
    result: RunResult,
    *,
    journal: Path | None,
    output: Path | None,
    run_id: str | None = None,
    whole: Decimal = ZERO,
) -> Iterator[Text]:
    """The lines that end a run.

    Args:
        result: what the run came to.
        journal: the journal's file.
        output: where the best candidate was written.
        run_id: the run, where it is in the store.
        whole: how much of the cost are reservations charged whole, in USD.
    """
    colour = {"target_reached": "bold green", "error": "bold red"}.get(result.stop_reason, "bold")
    yield Text(printable(result.sentence), style=colour)
    yield Text()
    yield from _best(result)
    yield _cost(result.cost)
    if whole:
        yield _fact("", whole_text(whole), "yellow")
    if result.holdout:
        parted = result.holdout.parted_at is not None
        yield _fact("holdout", printable(result.holdout.sentence), "yellow" if parted else "")
    if output:
        yield _fact("written", printable(output))
    if run_id:
        yield _fact("run", f"{run_id}: see `loopwright runs show {run_id}`, or the dashboard of `loopwright serve`")
    if journal:
        yield _fact("journal", printable(journal))


def _best(result: RunResult) -> Iterator[Text]:
    best = result.best
    if best is None or best.candidate is None:
        yield Text("There is no candidate: no iteration came to one.", style="yellow")
        yield Text()
        return
    where = f"iteration {best.number}" + (f" of attempt {best.attempt}" if _several(result) else "")
    score = f", score {score_text(best.score)}" if best.score is not None else ""
    heading = "Best candidate" if best.score is not None else "Last candidate (not scored)"
    yield Text.assemble((heading, "bold"), (f"  {where}{score}", "dim"))
    text = printable(best.text).rstrip("\n")
    yield Text(text[:LONGEST])
    if len(text) > LONGEST:
        rest = f"… and {len(text) - LONGEST:,} characters more: see the journal, or use --output FILE"
        yield Text(rest, style="dim")
    yield Text()


def _several(result: RunResult) -> bool:
    return any(i.attempt > 1 for i in result.iterations)


def _cost(cost: Cost) -> Text:
    roles = ", ".join(
        f"{role} {show_usd(amount)}" for role, amount in sorted(cost.by_role.items(), key=lambda r: -r[1])
    )
    requests = "1 request" if cost.requests == 1 else f"{cost.requests:,} requests"
    cached = f" ({cost.tokens.cached:,} cached)" if cost.tokens.cached else ""
    tokens = f"{requests}, {cost.tokens.input:,} tokens in{cached}, {cost.tokens.output:,} out"
    return _fact("cost", f"{show_usd(cost.total)}{f': {roles}' if roles else ''} ({tokens})")


def _fact(label: str, text: str, style: str = "") -> Text:
    return Text.assemble((f"{label:<7} ", "dim"), (text, style))
