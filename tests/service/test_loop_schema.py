"""The published schema of loop files agrees with the code, and accepts what the code accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from loopwright.core.stop import CONDITIONS
from loopwright.service.loop_schema import loop_schema, schema_text

ROOT = Path(__file__).parents[2]
LOOP_FILES = sorted(
    path
    for folder in ("examples", "loopwright/templates")
    for path in (ROOT / folder).rglob("*.y*ml")
    if ".loopwright" not in path.parts and "stop" in (yaml.safe_load(path.read_text()) or {})
)
SCHEMA: dict[str, Any] = json.loads(schema_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def errors(loop: dict[str, Any]) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(loop)]


def test_it_is_up_to_date() -> None:
    assert loop_schema() == SCHEMA, "run: python -m loopwright.service.loop_schema"


def test_it_is_a_schema_that_says_what_it_is() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["$id"].startswith("urn:loopwright:")


def test_it_knows_every_stop_condition() -> None:
    assert SCHEMA["$defs"]["Stop"]["properties"].keys() == CONDITIONS.keys()


def test_editors_find_words_for_every_group() -> None:
    for name, part in SCHEMA["$defs"].items():
        assert part["title"], name
        assert part["description"], name


@pytest.mark.parametrize("path", LOOP_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_loop_files_that_are_shipped_follow_it(path: Path) -> None:
    assert errors(yaml.safe_load(path.read_text())) == []


def test_the_template_is_among_them() -> None:
    assert ROOT / "loopwright/templates/loop.yaml" in LOOP_FILES


def loop(**changes: Any) -> dict[str, Any]:
    return {"name": "n", "goal": "g", "agent": {"model": "m"}, "stop": {"max_iterations": 3}} | changes


@pytest.mark.parametrize(
    "good",
    [
        loop(),
        loop(stop={"budget_usd": "0.50"}),
        loop(stop={"budget_usd": 1, "no_improvement": 3}),
        loop(stop={"any": [{"all": [{"target_score": 0.9}, {"max_seconds": 1.5}]}, {"max_iterations": 3}]}),
        loop(prices={"m": {"input": "0.15", "output": 1}}),
        loop(evaluator={"kind": "judge", "model": "m", "rubric": "r", "scale": [0, 10]}),
        loop(agent={"model": "m", "output_schema": {"type": "object"}}),
    ],
)
def test_it_accepts(good: dict[str, Any]) -> None:
    assert errors(good) == []


@pytest.mark.parametrize(
    "bad",
    [
        loop(stop={"max_iteration": 3}),
        loop(stop={"max_iterations": 0}),
        loop(stop={}),
        loop(stop={"any": []}),
        loop(stop={"no_improvement": {"min_gain": 1}}),
        loop(prices={"m": {"input": "cheap", "output": 1}}),
        loop(evaluator={"kind": "judg", "model": "m", "rubric": "r"}),
        loop(atempts=3),
        loop(attempts=True),
    ],
)
def test_it_refuses(bad: dict[str, Any]) -> None:
    assert errors(bad)
