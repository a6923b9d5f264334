"""Three ways to watch a run: live in a terminal, as plain lines, as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..core.events import EVENT, RunEvent
from ..core.result import RunResult
from .live import RunScreen
from .outcome import say
from .plain import lines
from .summary import summary
from .view import RunView

STOPPING = "Stopping; the best so far is kept. A second Ctrl-C aborts at once."


class Screen(Protocol):
    """Shows a run to somebody."""

    def open(self) -> None:
        """Begin to show."""
        ...

    def show(self, event: RunEvent) -> None:
        """Show what an event changed."""
        ...

    def stopping(self) -> None:
        """Say that the request to stop has arrived."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...

    def end(self, result: RunResult, *, journal: Path | None, output: Path | None, run_id: str | None = None) -> None:
        """Show how the run ended."""
        ...


class _Lines:
    """What screens that only write lines have in common: there is nothing to set up or to mend."""

    def open(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def stopping(self) -> None:
        """Say so on standard error."""
        print(STOPPING, file=sys.stderr, flush=True)


class LiveScreen:
    """A few lines in a terminal that stay in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view = RunView()
        self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=8)

    def open(self) -> None:
        """Begin to draw."""
        self._live.start()

    def show(self, event: RunEvent) -> None:
        """The next drawing has the event's change."""
        self._view = self._view.after(event)

    def stopping(self) -> None:
        """Say so in the heading, and once below."""
        self._view = self._view.stopped()
        self._live.console.print(Text(STOPPING, style="yellow"))

    def close(self) -> None:
        """Draw for the last time and give the cursor back."""
        self._live.stop()

    def end(self, result: RunResult, *, journal: Path | None, output: Path | None, run_id: str | None = None) -> None:
        """The end of the run, below the last drawing."""
        self._console.print()
        for line in summary(result, journal=journal, output=output, run_id=run_id, whole=self._view.whole):
            self._console.print(line, soft_wrap=True)

    def _drawn(self) -> RunScreen:
        return RunScreen(self._view, datetime.now(UTC))


class PlainScreen(_Lines):
    """Lines of text, one for each finished iteration."""

    def __init__(self) -> None:
        self._view = RunView()

    def show(self, event: RunEvent) -> None:
        """Print a line where there is news."""
        self._view = self._view.after(event)
        for line in lines(event, self._view):
            print(line, flush=True)

    def end(self, result: RunResult, *, journal: Path | None, output: Path | None, run_id: str | None = None) -> None:
        """The end of the run."""
        print()
        for line in summary(result, journal=journal, output=output, run_id=run_id, whole=self._view.whole):
            print(line.plain)
        sys.stdout.flush()


class JsonScreen(_Lines):
    """One event a line on standard output and nothing else there; what people want to know goes to standard error."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def show(self, event: RunEvent) -> None:
        """Write the event."""
        self._out.write(EVENT.dump_json(event) + b"\n")
        self._out.flush()

    def end(self, result: RunResult, *, journal: Path | None, output: Path | None, run_id: str | None = None) -> None:
        """The stop reason, for whoever watches standard error."""
        say(result.sentence)
        if journal:
            say(f"journal {journal}")


def screen_for(*, json: bool, environ: Mapping[str, str]) -> Screen:
    """The screen that fits: live only in a terminal that can move its cursor and shows colours."""
    if json:
        return JsonScreen(sys.stdout.buffer)
    console = Console(highlight=False, markup=False, emoji=False)
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    quiet = bool(environ.get("NO_COLOR")) or environ.get("TERM", "dumb") in ("dumb", "unknown")
    return LiveScreen(console) if console.is_terminal and utf8 and not quiet else PlainScreen()
