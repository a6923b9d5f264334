"""`make demo`: once as `make` runs it, and what it decides before it runs."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pydantic_ai import Agent

from loopwright import Budget, Loop, MaxIterations, Target
from loopwright.agents.practice import PracticeModel
from loopwright.core.spec import HistorySpec
from loopwright.service.loop_files import read_loop_file

from .test_examples import EXAMPLES, module

DEMO = EXAMPLES / "puzzle/demo.py"


def test_without_a_key_the_practice_model_plays_and_the_screen_says_so(tmp_path: Path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [sys.executable, str(DEMO), "--code", "GHFAD"]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "a deterministic search, not an LLM" in ended.stdout
    assert "list prices of openai:gpt-4o, under a budget of $0.05" in ended.stdout
    assert "practice is a built-in search, not a language model" in ended.stdout
    assert re.search(r"Reached the target 1 in \d+ iterations for \$0\.00\d+", ended.stdout)
    assert "\nGHFAD\n" in ended.stdout
    assert len(list(tmp_path.glob(".loopwright/runs/*.jsonl"))) == 1


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES / "puzzle")
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    return module(DEMO)


@pytest.mark.parametrize("key", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"])
def test_with_a_key_its_model_plays_and_the_cap_is_said_first(
    demo: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
):
    started: list[list[str]] = []
    monkeypatch.setenv(key, "not-a-key")
    monkeypatch.setattr(demo, "run", lambda command: started.append(command) or 0)
    assert demo.main() == 0
    assert started[0][-1] == demo.MODELS[key]
    said = capsys.readouterr().out
    assert f"{demo.MODELS[key]}, for its key is in the environment (MODEL=practice plays without)" in said
    assert "real money, never more than $0.05" in said


def test_a_model_by_name_goes_before_a_key(demo: ModuleType, monkeypatch: pytest.MonkeyPatch):
    started: list[list[str]] = []
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    monkeypatch.setattr(sys, "argv", ["demo.py", "--model", "practice"])
    monkeypatch.setattr(demo, "run", lambda command: started.append(command) or 0)
    demo.main()
    assert started[0][-1] == "practice"


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 0), (130, 0), (2, 2), (3, 3)])
def test_to_end_below_the_target_is_no_failure_of_make(demo: ModuleType, code: int, expected: int):
    assert demo.run([sys.executable, "-c", f"raise SystemExit({code})"]) == expected


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
