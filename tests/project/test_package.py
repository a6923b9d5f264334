"""What is built is whole, and a fresh machine can install it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_lock", ROOT / ".ci" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_is_that_of_the_project(lock: ModuleType):
    assert lock.problems() == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url " + "https" + "://example.com/simple",
        "--find-links /opt/somewhere",
        "-e .",
        "thing @ file:///somewhere/thing.whl",
        "# from " + "http" + "://example.com",
    ],
)
def test_the_lock_may_name_no_address(lock: ModuleType, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spoilt = tmp_path / "requirements.lock"
    spoilt.write_text(f"{lock.LOCK.read_text()}{line}\n")
    monkeypatch.setattr(lock, "LOCK", spoilt)
    assert any("address or an option" in problem for problem in lock.problems())


def test_the_lock_of_another_project_is_stale(lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text().replace('"rich>=15"', '"rich>=16"'))
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    assert lock.problems() == ["requirements.lock was made from another pyproject.toml: run `make lock`"]


def test_a_pin_without_a_hash_is_found(lock: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spoilt = tmp_path / "requirements.lock"
    spoilt.write_text(f"{lock.LOCK.read_text()}thing==1.0\n")
    monkeypatch.setattr(lock, "LOCK", spoilt)
    assert lock.problems() == ["requirements.lock: no hash for thing==1.0"]


def test_the_wheel_has_all_that_the_package_reads(tmp_path: Path):
    pytest.importorskip("hatchling", reason="the build backend is in the lock")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    read = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "loopwright").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert {name for name in read if name not in names} == set()
    assert {"loopwright/py.typed", "loopwright/schemas/loop.schema.json", "loopwright/templates/loop.yaml"} <= names
    assert not any(name.startswith(("tests/", "examples/", "docs/")) for name in names)


def test_make_says_what_it_can_do():
    said = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=30).stdout
    for target in ("make demo", "make test", "make check", "make lock"):
        assert target in said


def test_make_refuses_a_python_that_is_too_old(tmp_path: Path):
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    env = {"PATH": os.environ["PATH"]}
    ended = subprocess.run(
        ["make", "setup", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ended.returncode != 0
    assert "Python 3.11 or newer is needed" in ended.stdout


def test_no_file_of_the_project_asks_for_a_newer_python_than_the_oldest_that_must_work():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == ">=3.11"
    assert project["tool"]["ruff"]["target-version"] == "py311"
    assert project["tool"]["pyright"]["pythonVersion"] == "3.11"


def test_the_supabase_command_finds_the_same_migrations():
    assert (ROOT / "supabase/migrations").resolve() == ROOT / "loopwright/migrations"
