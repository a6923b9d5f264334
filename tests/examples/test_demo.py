"""`make demo`: once as `make` runs it, and what it decides before it runs."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from pydantic_ai import Agent
from typer.testing import CliRunner

from loopwright import Budget, Loop, MaxIterations, Target
from loopwright.agents.practice import PracticeModel
from loopwright.cli import app
from loopwright.core.spec import HistorySpec
from loopwright.service.loop_files import read_loop_file

from .test_examples import EXAMPLES, module

DEMO = EXAMPLES / "puzzle/demo.py"


@pytest.fixture(scope="module")
def played() -> Generator[tuple[Path, str]]:
    """A folder in which the demo has run, and what it printed."""
    folder = Path(tempfile.mkdtemp(prefix="lw-"))  # short: the database's socket lies in it
    try:
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        env = kept | {"HOME": str(folder)}
        command = [sys.executable, str(DEMO), "--code", "GHFAD"]
        ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        yield folder, ended.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_without_a_key_the_practice_model_plays_and_the_screen_says_so(played: tuple[Path, str]):
    _, printed = played
    assert "a deterministic search, not an LLM" in printed
    assert "list prices of openai:gpt-4o, under a budget of $0.05" in printed
    assert "practice is a built-in search, not a language model" in printed
    assert re.search(r"Reached the target 1 in \d+ iterations for \$0\.00\d+", printed)
    assert "\nGHFAD\n" in printed


def test_the_run_is_on_the_server_that_the_demo_started_and_stopped(
    played: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
):
    folder, printed = played
    address = re.search(r"dashboard  (http://127\.0\.0\.1:\d+)/login\?token=\S+", printed)
    assert address
    with pytest.raises(httpx.ConnectError):
        httpx.get(address[1])
    assert "LOOPWRIGHT_HOME=.loopwright/demo " in printed
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LOOPWRIGHT_HOME", ".loopwright/demo")
    listed = CliRunner().invoke(app, ["runs", "list", "--json"])
    (run,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert (run["door"], run["stop_reason"], run["loop_name"]) == ("api", "target_reached", "code puzzle")


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES / "puzzle")
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    return module(DEMO)


@pytest.mark.parametrize("key", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"])
def test_with_a_key_its_model_plays_and_the_cap_is_said_first(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
):
    monkeypatch.setenv(key, "not-a-key")
    monkeypatch.setattr(demo, "play", lambda spec, model: print(f"plays {model} at {spec['evaluator']['url']}") or 0)
    assert demo.main() == 0
    said = capsys.readouterr().out
    assert f"{demo.MODELS[key]}, for its key is in the environment (MODEL=practice plays without)" in said
    assert "real money, never more than $0.05" in said
    assert f"plays {demo.MODELS[key]} at http://127.0.0.1:" in said.splitlines()[-1]


def test_a_model_by_name_goes_before_a_key(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    monkeypatch.setattr(sys, "argv", ["demo.py", "--model", "practice"])
    monkeypatch.setattr(demo, "play", lambda spec, model: print(f"plays {model}") or 0)
    demo.main()
    assert capsys.readouterr().out.endswith("plays practice\n")


async def test_the_practice_model_finds_any_code_within_the_limits_of_the_demo():
    puzzle = module(EXAMPLES / "puzzle/evaluator.py")
    spec = read_loop_file(EXAMPLES / "puzzle/loop.yaml", environ={}).spec
    rng = random.Random(1)
    for _ in range(2):
        code = "".join(rng.choices("ABCDEFGH", k=5))

        def score(candidate: str, code: str = code) -> dict[str, object]:
            return puzzle.judge(candidate, code).model_dump()

        loop = Loop(
            agent=Agent(PracticeModel(pace=0)),
            evaluate=score,
            stop=Target(1) | MaxIterations(20) | Budget("0.05"),
            history=HistorySpec(recent=spec.history.recent),
        )
        result = await loop.run(spec.goal)
        assert result.stop_reason == "target_reached", (code, result.sentence)
        assert result.best is not None and result.best.text == code
