"""The live view: a few quiet lines that stay where they are while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ..core.events import WalletView
from ..core.models import Iteration
from ..core.money import show_usd
from .text import duration, one_line, score_text, whole_text
from .view import PRACTICE_NOTE, AttemptView, RunView

BARS = "▁▂▃▄▅▆▇█"
YELLOW_AT, RED_AT = 0.80, 0.95
"""Shares of the budget from which on the cost bar is yellow and red."""
ROWS = 4
"""How many of the last iterations are listed."""
SIDE_BY_SIDE = 56
"""With fewer columns than this, bars and their words stand below each other; a fixed limit, so that nothing jumps."""
WIDEST = 100
"""The view takes no more columns than this: longer lines are hard to read."""


class RunScreen:
    """A run as a rich renderable.

    Args:
        view: what to show.
        now: the time to count up to.
    """

    def __init__(self, view: RunView, now: datetime) -> None:
        self._view = view
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it to the width at hand."""
        width = min(options.max_width, WIDEST)
        room = width - 8  # beside the labels
        parts: list[RenderableType] = [_heading(self._view, width)]
        if self._view.model == "practice":
            parts.append(Text(PRACTICE_NOTE, style="dim"))
        parts.append(Text())
        parts.append(_facts(self._view, self._now, room))
        if self._view.finished is None:
            parts += [Text(), _rows(self._view, options.size.height)]
        yield from console.render(Group(*parts), options.update(width=width))


def _heading(view: RunView, width: int) -> RenderableType:
    name = Text(view.loop, style="bold", no_wrap=True, overflow="ellipsis")
    where = Text(no_wrap=True, overflow="ellipsis")
    where.append(view.model, style="dim")
    where.append(" · " if view.model else "", style="dim")
    where.append("stopping…" if view.stopping and not view.finished else view.progress, style="cyan")
    if len(name) + len(where) + 2 > width:
        return Group(name, where)
    gap = " " * (width - len(name) - len(where))
    return Text.assemble(name, gap, where, no_wrap=True)


def _facts(view: RunView, now: datetime, room: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=6)
    grid.add_column(ratio=1)
    if view.scored:
        grid.add_row("score", _score_line(view, room))
    if view.wallet:
        grid.add_row("cost", cost_line(view.wallet, room, over=view.finished is not None))
    if view.whole and view.finished is None:  # then the summary says so
        grid.add_row("", Text(whole_text(view.whole), style="yellow"))
    if view.started_at:
        grid.add_row("time", duration(_elapsed(view, now)))
    return grid


def _elapsed(view: RunView, now: datetime) -> float:
    if view.finished:
        return view.finished.seconds
    return max(0.0, (now - view.started_at).total_seconds()) if view.started_at else 0.0


def _score_line(view: RunView, room: int) -> Text:
    finished = [i for a in view.attempts.values() for i in a.finished]
    finished.sort(key=lambda i: (i.started_at, i.attempt))
    words = Text()
    if view.best and view.best.score is not None:
        words.append(f"★ {score_text(view.best.score)}", style="bold green")
        attempt = f" of #{view.best.attempt}" if len(view.attempts) > 1 else ""
        words.append(f" in iteration {view.best.number}{attempt}", style="dim")
    if view.target is not None:
        words.append(f"{' · ' if words else ''}target {score_text(view.target)}", style="dim")
    if room < SIDE_BY_SIDE:
        return Text("\n").join(line for line in (sparkline(finished, view.best, room), words) if line)
    return Text("  ").join(line for line in (sparkline(finished, view.best, min(40, room - 34)), words) if line)


def sparkline(finished: Sequence[Iteration], best: Iteration | None, width: int) -> Text:
    """The last scores as bars, the best one green, failed iterations as a red cross."""
    shown = finished[-width:]
    scores = [i.score for i in shown if i.score is not None]
    low, high = (min(scores), max(scores)) if scores else (0.0, 0.0)
    line = Text(no_wrap=True)
    for iteration in shown:
        if iteration.score is None:
            line.append("✗", style="red")
            continue
        is_best = best is not None and (iteration.attempt, iteration.number) == (best.attempt, best.number)
        line.append(_bar(iteration.score, low, high), style="bold green" if is_best else "blue")
    return line


def _bar(score: float, low: float, high: float) -> str:
    span = high / 2 - low / 2  # halves, for the whole span of two floats may be infinite
    share = (score / 2 - low / 2) / span if span else 0.5
    return BARS[min(len(BARS) - 1, int(share * len(BARS)))]


def cost_line(wallet: WalletView, room: int, *, over: bool = False) -> Text:
    """The cost in words, with a bar where there is a budget.

    What is reserved is shown even while it is nothing, so that the line keeps its shape.
    """
    spent = Text(show_usd(wallet.spent))
    spent.append(f" of {show_usd(wallet.cap)}" if wallet.cap is not None else ", no budget is set", style="dim")
    reserved = Text("" if over else f"{show_usd(wallet.reserved)} reserved", style="dim")
    if wallet.cap is None:
        return Text.assemble(spent, "  " if reserved else "", reserved)
    if room < SIDE_BY_SIDE:
        return Text("\n").join(line for line in (cost_bar(wallet, room), spent, reserved) if line)
    width = min(30, room - 42)
    return Text("  ").join(line for line in (cost_bar(wallet, width), spent, reserved) if line)


def cost_bar(wallet: WalletView, width: int) -> Text:
    """Spent in colour, reserved beside it in the same colour but faint, the rest grey."""
    cap = wallet.cap or Decimal(1)
    share = float(wallet.spent / cap)
    colour = cost_colour(share)
    spent = max(1, min(width, int(share * width))) if wallet.spent else 0
    reserved = min(width - spent, round(float(wallet.reserved / cap) * width))
    bar = Text(no_wrap=True)
    bar.append("━" * spent, style=colour)
    bar.append("╌" * reserved, style=colour)
    bar.append("─" * (width - spent - reserved), style="bright_black")
    return bar


def cost_colour(share: float) -> str:
    """Green, yellow or red by how much of the budget is spent."""
    return "red" if share >= RED_AT else "yellow" if share >= YELLOW_AT else "green"


def _rows(view: RunView, height: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, min_width=6)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    rows = list(_attempt_rows(view) if len(view.attempts) > 1 else _iteration_rows(view))
    room = max(1, height - 9)
    for row in rows[:room]:
        grid.add_row(*row)
    if len(rows) > room:
        grid.add_row("", "", "", Text(f"and {len(rows) - room} more", style="dim"))
    return grid


def _iteration_rows(view: RunView) -> Iterator[tuple[Text, Text, Text, Text]]:
    for attempt in view.attempts.values():
        for done in attempt.finished[-ROWS:]:
            best = view.best is not None and done.number == view.best.number
            yield _star(best), Text(str(done.number)), _score(done, best=best), _remark(done)
        if attempt.phase:
            yield Text(" "), Text(str(attempt.number), style="cyan"), Text("…", style="cyan"), _phase(attempt)


def _attempt_rows(view: RunView) -> Iterator[tuple[Text, Text, Text, Text]]:
    """One line an attempt: who leads, what each is at, its scores."""
    longest = max(min(10, len(attempt.finished)) for attempt in view.attempts.values())
    for number, attempt in sorted(view.attempts.items()):
        leads = view.best is not None and view.best.attempt == number
        of = f"/{view.limit}" if view.limit else ""
        line = sparkline(attempt.finished, attempt.best, 10)
        score = score_text(attempt.best.score) if attempt.best else ""
        doing = _phase(attempt) if attempt.phase else _last_remark(attempt)
        beside = Text.assemble(line, " " * (longest - len(line) + 2), doing)
        where = Text.assemble((f"#{number} ", "bold"), (f"{attempt.number}{of}", "dim"))
        yield _star(leads), where, Text(score, style="bold green" if leads else ""), beside


def _last_remark(attempt: AttemptView) -> Text:
    return _remark(attempt.finished[-1]) if attempt.finished else Text("waiting", style="dim")


def _star(best: bool) -> Text:
    return Text("★" if best else " ", style="bold green")


def _score(done: Iteration, *, best: bool) -> Text:
    if done.failure:
        return Text("failed", style="red")
    return Text(score_text(done.score), style="bold green" if best else "")


def _remark(done: Iteration) -> Text:
    if done.failure:
        return Text(one_line(done.failure, 200), style="red")
    detail = done.feedback.detail if done.feedback else done.text
    return Text(one_line(detail or done.text, 200), style="dim")


def _phase(attempt: AttemptView) -> Text:
    return Text(attempt.phase, style="cyan")
