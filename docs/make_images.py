"""Draws the terminal pictures of the README: a real run, its times set to fixed ones, so that each drawing is the same.

python docs/make_images.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from loopwright.console.live import RunScreen
from loopwright.console.summary import summary
from loopwright.console.view import RunView
from loopwright.core.events import IterationFinished, RunEvent, RunFinished
from loopwright.core.result import RunResult
from loopwright.runner.library import Loop
from loopwright.service.assemble import assemble
from loopwright.service.loop_files import Overrides, read_loop_file

ROOT = Path(__file__).resolve().parent.parent
START = datetime(2026, 12, 1, tzinfo=UTC)
SECONDS = 0.6
"""How long an iteration takes in the pictures."""
BUDGET = "0.03"
COMMAND = f"loopwright run x/loop.yaml --budget {BUDGET}"


def draw(folder: Path) -> list[Path]:
    """Run the loop of `loopwright init`, and draw it under way and at its end."""
    loop = _loop()
    events, result = asyncio.run(_run(loop))
    events = list(_restamped(events))
    middle = next(n for n, e in enumerate(events) if isinstance(e, IterationFinished) and e.iteration.number == 5)
    under_way = _view(events[: middle + 3])
    end = _view(events)

    def at_the_end(console: Console) -> None:
        console.print(RunScreen(end, START))
        console.print()
        for line in summary(result, journal=Path(".loopwright/runs/run_19b1c0ffee42a7d1e8f30.jsonl"), output=None):
            console.print(line)

    return [
        _picture(folder / "run.svg", lambda c: c.print(RunScreen(under_way, START + timedelta(seconds=5 * SECONDS)))),
        _picture(folder / "end.svg", at_the_end),
    ]


def _loop() -> Loop:
    template = ROOT / "loopwright" / "templates" / "loop.yaml"
    spec = read_loop_file(template, environ={}, overrides=Overrides(budget=BUDGET)).spec
    quick = spec.agent.model_copy(update={"settings": {"practice_pace": 0}})
    return assemble(spec.model_copy(update={"agent": quick}), folder=template.parent)


async def _run(loop: Loop) -> tuple[list[RunEvent], RunResult]:
    goal = read_loop_file(ROOT / "loopwright" / "templates" / "loop.yaml", environ={}).spec.goal
    run = loop.start(goal, run_id="run")
    events = [event async for event in run.events()]
    return events, await run


def _restamped(events: Sequence[RunEvent]) -> list[RunEvent]:
    finished, stamped = 0, list[RunEvent]()
    for event in events:
        changes: dict[str, object] = {"at": START + timedelta(seconds=finished * SECONDS)}
        if isinstance(event, IterationFinished):
            finished += 1
            iteration = event.iteration.model_copy(update={"started_at": changes["at"], "seconds": SECONDS})
            changes["iteration"] = iteration
        if isinstance(event, RunFinished):
            changes["seconds"] = finished * SECONDS
        stamped.append(event.model_copy(update=changes))
    return stamped


def _view(events: Sequence[RunEvent]) -> RunView:
    view = RunView()
    for event in events:
        view = view.after(event)
    return view


def _picture(path: Path, show: Callable[[Console], None]) -> Path:
    console = Console(
        record=True, width=88, height=30, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.assemble(("$ ", "dim"), COMMAND))
    show(console)
    drawn = console.export_svg(title="loopwright", theme=MONOKAI, unique_id=path.stem)
    # A picture must not fetch a font from somewhere: the viewer's own monospaced one will do.
    path.write_text(re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")
    return path


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("images")
    target.mkdir(parents=True, exist_ok=True)
    for picture in draw(target):
        print(picture)
