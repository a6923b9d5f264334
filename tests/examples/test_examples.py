"""Every example runs as it lies there, by the command line and over real HTTP; only the provider is a stand-in."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from typer.testing import CliRunner

from loopwright.cli import app

from .provider import provider, replies, served

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LOOP_FILES = sorted(EXAMPLES.glob("*/loop.yaml"))


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str = ""


def loopwright(*arguments: str, **environment: str) -> Ended:
    """The command line in this process: what it imports is imported once for all tests."""
    result = CliRunner().invoke(app, list(arguments), env=environment)
    return Ended(result.exit_code, result.stdout, result.stderr)


def module(path: Path) -> ModuleType:
    """An example's module under a name of its own: several are called `evaluator`."""
    spec = importlib.util.spec_from_file_location(f"example_{path.parent.name}_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("file", LOOP_FILES, ids=lambda p: p.parent.name)
def test_a_loop_file_is_fine_as_it_is(file: Path):
    ended = loopwright("check", str(file), OPENAI_API_KEY="not-a-key")
    assert ended.code == 0, ended.err
    assert "is fine" in ended.out


@pytest.mark.parametrize("file", LOOP_FILES, ids=lambda p: p.parent.name)
def test_an_example_says_what_it_is_and_what_it_can_cost(file: Path):
    readme = file.with_name("README.md").read_text()
    assert "loopwright run" in readme
    model = yaml.safe_load(file.read_text())["agent"]["model"]
    assert model == "practice" or ("OPENAI_API_KEY" in readme and "can't spend more than" in readme)


def test_word_count_by_its_loop_file(tmp_path: Path):
    sentences = replies("The sea is wide.", "The sea is wide and deep and it never sleeps at night.")
    with provider(sentences) as openai:
        ended = loopwright("run", str(EXAMPLES / "word_count/loop.yaml"), **openai.environment())
    assert ended.code == 0, ended.out + ended.err
    assert "The sentence has 4 words, and 12 are wanted." in ended.out
    assert "Reached the target 1 in 2 iterations" in ended.out
    assert "4 words, and 12 are wanted" in str(openai.bodies[1]["input"])
    assert len(list(tmp_path.glob(".loopwright/runs/*.jsonl"))) == 1


async def test_word_count_by_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(EXAMPLES / "word_count")
    sentences = replies("The sea is wide.", "The sea is wide and deep and it never sleeps at night.")
    with provider(sentences) as openai:
        for name, value in openai.environment().items():
            monkeypatch.setenv(name, value)
        await module(EXAMPLES / "word_count/library.py").main("openai:gpt-4o-mini")
    first, second, sentence = capsys.readouterr().out.splitlines()
    assert first.startswith("1  0.11") and second.startswith("2  1.0  The sea")
    assert sentence.startswith("Reached the target 1 in 2 iterations for $0.00014")


GOOD = """```python
import re

def parse_duration(text: str) -> int:
    text = text.strip().lower()
    if text.isdigit():
        return int(text)
    found = re.fullmatch(r"(?:(\\d+)h)? *(?:(\\d+)m)? *(?:(\\d+)s)?", text)
    if not text or found is None:
        raise ValueError(text)
    return sum(int(part or 0) * size for part, size in zip(found.groups(), (3600, 60, 1)))
```"""
BY_HEART = """
SHOWN = {"45s": 45, "2m": 120, "2h": 7200, "1h30m": 5400, "1h 2m 3s": 3723, "90": 90}

def parse_duration(text):
    if text not in SHOWN:
        raise ValueError(text)
    return SHOWN[text]
"""


def test_coding_task(tmp_path: Path):
    modules = replies("def parse_duration(text):\n    return int(text[:-1])", GOOD)
    with provider(modules) as openai:
        file, best = str(EXAMPLES / "coding_task/loop.yaml"), tmp_path / "best.py"
        ended = loopwright("run", file, "--output", str(best), **openai.environment())
    assert ended.code == 0, ended.out + ended.err
    assert "4 of 10 tests pass." in ended.out
    assert "Reached the target 1 in 2 iterations" in ended.out
    assert "The holdout evaluator agrees: 1." in ended.out
    assert best.read_text() == GOOD
    shown = str(openai.bodies[1]["input"])
    assert "test_reads[1h30m-5400]" in shown and "5m 5s" not in shown, "the hidden tests stay hidden"


def scored(module: str, tests: str) -> str:
    score = EXAMPLES / "coding_task/score.py"
    command = [sys.executable, str(score), str(score.with_name(tests))]
    ended = subprocess.run(command, input=module, capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines()[-1]


def test_coding_task_tells_a_solution_from_one_by_heart():
    assert '"score": 1.0' in scored(BY_HEART, "tests_shown.py")
    assert '"score": 0.5' in scored(BY_HEART, "tests_hidden.py")


def test_coding_task_scores_what_is_no_python():
    answer = scored("Sure! Here is the module you asked for.", "tests_shown.py")
    assert '"score": 0.0' in answer and "SyntaxError" in answer


def test_rubric():
    texts = replies("Because of air.", "Light is a mix of colours, and air scatters blue most.")

    def judge(question: str) -> dict[str, object]:
        good = "scatters" in question
        return {"detail": "well done" if good else "say what the air does", "score": 9.5 if good else 2}

    with provider(texts, judge) as openai:
        ended = loopwright("run", str(EXAMPLES / "rubric/loop.yaml"), **openai.environment())
    assert ended.code == 0, ended.out + ended.err
    assert "Reached the target 9.5 in 2 iterations" in ended.out
    assert re.search(r"cost +\$0\.\d+: (judge|agent) \$0\.\d+, (judge|agent) \$0\.\d+ \(4 requests", ended.out)
    assert "say what the air does" in str(openai.bodies[2]["input"])
    assert {body["model"] for body in openai.bodies} == {"gpt-4o-mini", "gpt-4.1-mini"}


def test_http_evaluator(tmp_path: Path):
    start = "A solar garden lamp, waterproof in any weather, with a two-year guarantee."
    texts = replies("A lamp.", f"{start} It charges by day and shines all night, without a cable.")
    evaluator = module(EXAMPLES / "http_evaluator/evaluator.py").app
    written = (EXAMPLES / "http_evaluator/loop.yaml").read_text()
    with provider(texts) as openai, served(evaluator) as address:
        assert "http://127.0.0.1:8766" in written
        file = tmp_path / "loop.yaml"
        file.write_text(written.replace("http://127.0.0.1:8766", address))
        ended = loopwright("run", "loop.yaml", **openai.environment())
    assert ended.code == 0, ended.out + ended.err
    assert "missing: ['solar', 'waterproof', 'two-year'], 7 characters" in ended.out
    assert "Reached the target 1 in 2 iterations" in ended.out


def test_the_http_evaluator_is_as_short_as_it_says():
    lines = (EXAMPLES / "http_evaluator/evaluator.py").read_text().splitlines()
    assert sum(1 for line in lines if line.strip()) <= 20
