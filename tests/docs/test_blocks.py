"""Every fenced block of the documentation does what it shows; see CONTRIBUTING.md for how blocks are marked."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from loopwright.core.spec import LoopSpec

from ..examples.provider import Provider, provider, replies
from .blocks import ROOT, Block, blocks

BLOCKS = blocks()
FRAGMENT_OF: dict[str, Any] = {
    "name": "a fragment",
    "goal": "a goal",
    "agent": {"model": "openai:gpt-4o-mini"},
    "stop": {"max_iterations": 1},
}
"""What a part of a loop file is put into, to be read as a whole one."""


def of(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [b for b in BLOCKS if b.language in languages], ids=str)


@pytest.fixture
def openai(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Provider]:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    with provider(replies(*(block.replies or ["a reply"]))) as stand_in:
        for name, value in stand_in.environment().items():
            monkeypatch.setenv(name, value)
        yield stand_in


@of("python")
def test_python_runs(block: Block, openai: Provider, capsys: pytest.CaptureFixture[str]):
    code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    namespace: dict[str, Any] = {"__name__": "example"}

    async def run() -> None:
        # Where it awaits at its top level, evaluating gives a coroutine.
        if inspect.iscoroutine(waiting := eval(code, namespace)):
            await waiting

    asyncio.run(run())
    printed = capsys.readouterr().out
    if block.prints is not None:
        assert fnmatchcase(printed.strip(), _pattern(block.prints.strip())), printed
    assert bool(openai.bodies) == bool(block.replies), "a block that asks a model says what it answers, and no other"


@of("sh", "bash")
def test_shell_runs(block: Block, openai: Provider, tmp_path: Path):
    path = f"{_bin(tmp_path)}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    options = ["-n"] if block.how.startswith("syntax") else ["-eu", "-o", "pipefail"]
    # The environment is there already; in a file, `source .venv/bin/activate` would look for one in the folder.
    text = block.text.replace("source .venv/bin/activate\n", "")
    if _needs_a_key(block):
        options = ["-n"]
    ended = subprocess.run(
        ["bash", *options],
        input=text,
        cwd=tmp_path,
        env={
            "PATH": path,
            "HOME": str(tmp_path),
            "LOOPWRIGHT_HOME": os.environ["LOOPWRIGHT_HOME"],
            "OPENAI_API_KEY": "",
            "LANG": "C.UTF-8",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def _bin(folder: Path) -> Path:
    """A folder with a `loopwright` that is this one."""
    (folder / "bin").mkdir()
    command = folder / "bin" / "loopwright"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m loopwright "$@"\n')
    command.chmod(0o755)
    return command.parent


def _needs_a_key(block: Block) -> bool:
    """The examples are run in tests/examples, with a stand-in for the provider."""
    return block.page.is_relative_to(ROOT / "examples")


@of("yaml")
def test_yaml_is_a_loop_file_or_a_part_of_one(block: Block):
    part = yaml.safe_load(block.text)
    whole = part if {"name", "goal", "agent", "stop"} <= part.keys() else FRAGMENT_OF | part
    LoopSpec.model_validate_json(json.dumps(whole), strict=True)


@of("json")
def test_json_is_json(block: Block):
    json.loads(block.text)


def test_every_block_is_of_a_kind_that_is_tested():
    tested = {"python", "sh", "bash", "yaml", "json"}
    loose = [str(b) for b in BLOCKS if b.language not in tested and b.page.name != "ARCHITECTURE.md"]
    assert not loose
    assert len([b for b in BLOCKS if b.language == "python"]) >= 8


def test_links_lead_somewhere():
    broken: list[str] = []
    for page in {b.page for b in BLOCKS} | {ROOT / "README.md", ROOT / "docs" / "loop-file.md"}:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            file = (page.parent / path) if path else page
            if not file.exists() or (anchor and anchor not in _anchors(file)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _pattern(expected: str) -> str:
    """`…` stands for anything; everything else for itself."""
    return "*".join(part.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]") for part in expected.split("…"))
