"""A folder with a loop that runs in no time, and ways to run the command line in it."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

PROGRAM = (sys.executable, "-m", "loopwright")
LIMIT_SECONDS = 180
"""A test that waits longer for a process has failed."""

EVALUATOR = """\
import asyncio, os, sys, time
from collections import Counter

CODE = "BEACH"


def score(candidate):
    in_place = sum(a == b for a, b in zip(candidate, CODE))
    elsewhere = sum((Counter(candidate) & Counter(CODE)).values()) - in_place
    return (in_place + elsewhere / 2) / 5, f"{in_place} in place, {elsewhere} elsewhere"


def loud(candidate):
    print("printed by the evaluator")
    return score(candidate)


def slow(candidate):
    # Scores the first candidate at once and hangs on the second.
    if os.path.exists("first"):
        open("scoring", "w").close()
        time.sleep(60)
    open("first", "w").close()
    return score(candidate)


async def deaf(candidate):
    open("scoring", "w").close()
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass


def rude(candidate):
    return 0.5, "\\x1b[2J\\x1b]0;title\\x07[red]not markup[/red] \\x07\\u202ereversed"
"""


def write_loop(folder: Path, function: str = "score", **changes: Any) -> Path:
    """Write `loop.yaml` and `evaluator.py`; `changes` are top-level keys of the loop file."""
    loop = {
        "name": "code puzzle",
        "goal": "Find the secret code of 5 letters from A to H.",
        "agent": {"model": "practice", "max_output_tokens": 64, "settings": {"practice_pace": 0}},
        "evaluator": {"kind": "python", "function": f"evaluator:{function}"},
        "stop": {"target_score": 1, "max_iterations": 20, "budget_usd": "0.50"},
    } | changes
    (folder / "evaluator.py").write_text(EVALUATOR)
    path = folder / "loop.yaml"
    path.write_text(yaml.safe_dump(loop, sort_keys=False))
    return path


def environment(**changes: str) -> dict[str, str]:
    """An environment without a terminal's settings and without keys."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "LOOPWRIGHT_HOME") if name in os.environ}
    return kept | {"PYTHONUTF8": "1", "TERM": "xterm-256color"} | changes


def run(*arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, without a terminal."""
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=folder,
        env=env or environment(),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_SECONDS,
        check=False,
    )


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.01)


@dataclass
class Terminal:
    """A process in a pseudo-terminal of its own."""

    folder: Path
    arguments: Sequence[str]
    columns: int = 80
    env: Mapping[str, str] = field(default_factory=environment)

    def run(self, *, interrupt_at: bytes | None = None) -> tuple[int, str]:
        """Run to the end, with a SIGINT when `interrupt_at` is seen; gives the exit code and all that was written."""
        import fcntl
        import pty
        import termios

        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self.columns, 0, 0))
        process = subprocess.Popen(
            [*PROGRAM, *self.arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=self.folder, env=dict(self.env)
        )
        os.close(theirs)
        written = b""
        try:
            while chunk := _read(ours):
                written += chunk
                if interrupt_at and interrupt_at in written:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = None
            return process.wait(LIMIT_SECONDS), written.decode()
        finally:
            os.close(ours)
            process.kill()
            process.wait()


def _read(terminal: int) -> bytes:
    ready, _, _ = select.select([terminal], [], [], LIMIT_SECONDS)
    assert ready, "nothing was written"
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""
