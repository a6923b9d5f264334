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
