"""Each benchmark runs, tiny, and prints its figures. What they come to is not judged here: machines differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [
        ("overhead", ["--iterations", "3", "--rounds", "1"], ["Loopwright over by hand: ", "of 3 iterations over the"]),
        ("tokens", ["--iterations", "30"], ["full is ", "largest prompt of the last "]),
        ("startup", ["--rounds", "1"], ["import loopwright ", "loopwright --help over bare typer: "]),
        ("serve", ["--rounds", "1"], ["first start  answers after ", "later start  answers after "]),
        (
            "durable",
            ["--iterations", "2", "--rounds", "1", "--waiting", "20"],
            ["durable over in memory: ", "lag p99: "],
        ),
        ("first_event", ["--rounds", "3"], ["event to screen: p50 ", "POST to first event, p99: "]),
        ("viewers", ["--viewers", "6", "--seconds", "3"], ["3 viewers of one run: ", "KB a viewer: "]),
        ("sharing", ["--runs", "8"], ["8 runs, all finished in ", "the larger share over the smaller: "]),
        ("memory", ["--iterations", "10"], ["after 10 iterations ", "growth: "]),
    ],
)
def test_it_prints_its_figures(name: str, options: list[str], figures: list[str]):
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for figure in figures:
        assert figure in done.stdout
    assert "(target: at most " in done.stdout
