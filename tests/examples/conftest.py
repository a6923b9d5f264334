from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.postgres import data_folder, pg_server

__all__ = ["data_folder", "pg_server"]


@pytest.fixture(scope="session", autouse=True)
def one_data_folder(data_folder: None) -> None:
    """All runs of the command line are kept in one folder, whose database is up already."""


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder of its own, no keys, the `python` of this environment first on the path, no module of another example.

    Several examples have an `evaluator.py`; each runs in a process of its own outside the tests.
    """
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evaluator", raising=False)
