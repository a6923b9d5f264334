"""How long `loopwright --help` takes, beside the help of a bare typer program; and `import loopwright`.

Whole processes, from start to end, in turns. The CPU time is the child's own, so a busy machine disturbs it little.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .stage import ROOT, Target, arguments, verdict

BARE = '''"""A bare program."""
import typer

app = typer.Typer(help="Says hello.")


@app.command()
def hello(name: str = "you") -> None:
    """Say hello."""
    typer.echo(f"Hello {name}")


@app.command()
def goodbye(name: str = "you") -> None:
    """Say goodbye."""
    typer.echo(f"Goodbye {name}")


app()
'''


@dataclass(frozen=True)
class Took:
    """Seconds that a process took: of CPU, and by the clock."""

    cpu: float
    wall: float


def took(command: Sequence[str]) -> Took:
    """Run a process to its end."""
    before, began = _cpu_of_children(), time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return Took(_cpu_of_children() - before, time.perf_counter() - began)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Measure, print, judge."""
    options = arguments(__doc__, rounds=11).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE, encoding="utf-8")
        commands = {
            "loopwright --help": ["-c", "from loopwright.cli import main; main()", "--help"],
            "bare typer --help": [str(bare), "--help"],
            "import loopwright": ["-c", "import loopwright"],
            "python": ["-c", ""],
        }
        rounds = [
            {name: took([sys.executable, *rest]) for name, rest in commands.items()} for _ in range(options.rounds + 1)
        ][1:]  # the first one writes the bytecode
    for name in commands:
        cpu, wall = median(each[name].cpu for each in rounds), median(each[name].wall for each in rounds)
        print(f"{name:18} {cpu * 1_000:6.0f} ms CPU {wall * 1_000:6.0f} ms in all")
    ratio = median(each["loopwright --help"].cpu / each["bare typer --help"].cpu for each in rounds)
    return verdict([Target("loopwright --help over bare typer", ratio, 3)], check=options.check)


if __name__ == "__main__":
    sys.exit(main())
