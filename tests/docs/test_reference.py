"""What is made from the code is as the code makes it now, and what is public is described."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import loopwright
from loopwright.core.events import RunEvent
from loopwright.core.stop import CONDITIONS, PRECEDENCE
from loopwright.service.loop_schema import loop_schema

from .blocks import ROOT

DOCS = ROOT / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_loop_files_is_current():
    assert (DOCS / "loop-file.md").read_text(encoding="utf-8") == script("make_reference").page(), "make generated"


def test_every_key_of_a_loop_file_is_in_the_reference():
    page = (DOCS / "loop-file.md").read_text(encoding="utf-8")
    schema = loop_schema()
    parts: list[dict[str, Any]] = [schema, *schema["$defs"].values()]
    keys = {key for part in parts for key in part["properties"]}
    assert {key for key in keys if f"`{key}`" not in page} == set()


def test_a_key_without_a_description_is_refused():
    reference = script("make_reference")
    part = {"properties": {"new": {"type": "string"}}}
    with pytest.raises(SystemExit, match=r"AgentSpec\.new has no description"):
        list(reference._rows(part, "AgentSpec", {}))


def test_the_pictures_are_current(tmp_path: Path):
    for picture in script("make_images").draw(tmp_path):
        kept = DOCS / "images" / picture.name
        assert picture.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), f"{kept.name}: make images"


def test_the_pictures_fetch_nothing():
    for picture in (DOCS / "images").glob("*.svg"):
        text = picture.read_text(encoding="utf-8")
        assert "@font-face" not in text and not re.search(r"url\((?!#)", text)


def test_the_library_page_has_every_public_name_and_no_other():
    page = (DOCS / "library.md").read_text(encoding="utf-8")
    table = page.partition("| name | is |")[2].partition("\n\n")[0]
    described = {
        name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    }
    assert described == set(loopwright.__all__)


def test_every_argument_of_a_loop_is_on_the_library_page():
    import inspect

    page = (DOCS / "library.md").read_text(encoding="utf-8")
    arguments = list(inspect.signature(loopwright.Loop.__init__).parameters)[1:]
    assert [name for name in arguments if f"| `{name}` |" not in page] == []


def test_every_event_is_on_the_journal_page():
    page = (DOCS / "journal.md").read_text(encoding="utf-8")
    union = get_args(get_args(RunEvent)[0])
    assert {event.model_fields["type"].default for event in union} == set(
        re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    )


def test_every_stop_condition_and_reason_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in CONDITIONS if f"`{name}" not in readme] == []
    assert [reason for reason in PRECEDENCE if f"`{reason}`" not in readme] == []


def test_every_command_is_on_its_page():
    from loopwright.cli import app

    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    names = [command.callback.__name__ for command in app.registered_commands if command.callback]
    assert [name for name in names if f"`loopwright {name}" not in page] == []


def test_what_contributing_names_is_there():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:tests|docs)/[\w/.]+)", page))
    named |= {f"loopwright/{path}" for path in re.findall(r"`((?:core|service|feedback)/\w+\.py)`", page)}
    assert sorted(path for path in named if not (ROOT / path.rstrip(".")).exists()) == []


def test_what_the_architecture_names_is_there():
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:core|runner|service|agents|feedback|store|console)/\w+\.py)`", page)
    assert sorted({path for path in named if not (ROOT / "loopwright" / path).exists()}) == []


def test_every_dependency_has_its_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]}  # type: ignore[index]
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Dependencies")[2]
    described = {name for row in re.findall(r"^\| ([\w, -]+) \|", table, re.MULTILINE) for name in row.split(", ")}
    assert names - described == set()
