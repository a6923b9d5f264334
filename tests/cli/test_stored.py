"""Runs of the command line are on the server, too, and outlive their process."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loopwright.cli import app
from loopwright.core.errors import StoreUnavailable
from loopwright.core.records import Run
from loopwright.service.executor import Executor
from loopwright.service.push import push_loop
from loopwright.service.runs import get_run, is_forsaken
from loopwright.service.runtime import Runtime, open_runtime
from loopwright.service.start import Wanted, start_run
from loopwright.settings import Settings
from loopwright.store.database import Urls
from loopwright.store.jsonl import read_journal
from tests.postgres import urls

from .world import LIMIT_SECONDS, PROGRAM, environment, wait_for, write_loop

__all__ = ["urls"]

WAITS = """
import os, time


def score(candidate):
    # Scores the first candidate at once, and the others when it is let.
    while os.path.exists("first") and not os.path.exists("go"):
        open("scoring", "w").close()
        time.sleep(0.01)
    open("first", "w").close()
    return len(candidate), "by length"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "dumb")
    return tmp_path


def loopwright(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def run_id_of(folder: Path) -> str:
    (journal,) = (folder / ".loopwright/runs").glob("*.jsonl")
    return journal.stem


def test_a_run_is_in_the_store_with_all_that_its_journal_says(folder: Path) -> None:
    write_loop(folder)
    ran = loopwright("run", "loop.yaml")
    assert ran.exit_code == 0, ran.output
    run_id = run_id_of(folder)
    assert f"loopwright runs show {run_id}" in ran.stdout
    assert run_id in loopwright("runs", "list").stdout
    shown = json.loads(loopwright("runs", "show", run_id, "--json").stdout)
    assert (shown["door"], shown["stop_reason"], shown["loop_id"]) == ("cli", "target_reached", None)
    assert loopwright("runs", "export", run_id, "--output", "export.jsonl").exit_code == 0
    assert list(read_journal(folder / "export.jsonl")) == list(
        read_journal(folder / f".loopwright/runs/{run_id}.jsonl")
    )


def test_an_ephemeral_run_is_not(folder: Path) -> None:
    write_loop(folder)
    ran = loopwright("run", "loop.yaml", "--ephemeral")
    assert ran.exit_code == 0, ran.output
    assert "BEACH" in ran.stdout
    assert "runs show" not in ran.stdout
    missing = loopwright("runs", "show", run_id_of(folder))
    assert missing.exit_code == 3
    assert "nothing with this id" in missing.stderr


def test_a_run_of_a_pushed_file_is_one_of_the_stored_loop(folder: Path) -> None:
    write_loop(folder, name=f"pushed {folder.name}")
    assert loopwright("loops", "push", "loop.yaml").exit_code == 0
    assert loopwright("run", "loop.yaml", "--max-iterations", "1").exit_code == 1
    assert json.loads(loopwright("runs", "show", run_id_of(folder), "--json").stdout)["loop_id"]


def test_where_users_sign_in_only_ephemeral_runs_are_possible(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_loop(folder)
    monkeypatch.setenv("LOOPWRIGHT_SERVICE_KEY", "x" * 40)
    refused = loopwright("run", "loop.yaml")
    assert refused.exit_code == 2
    assert "--ephemeral" in refused.stderr
    assert not (folder / ".loopwright").exists()
    assert loopwright("run", "loop.yaml", "--ephemeral").exit_code == 0


def test_a_database_that_isnt_there_is_an_error_with_a_way_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_loop(folder)
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    ran = CliRunner().invoke(app, ["run", "loop.yaml"])
    assert isinstance(ran.exception, StoreUnavailable)  # which ends the process with 3, see test_process
    assert "--ephemeral" in str(ran.exception)


def test_a_journal_that_cant_be_written_loses_nothing(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    write_loop(folder)
    ran = loopwright("run", "loop.yaml", "--journal", "/dev/full")
    assert ran.exit_code == 3
    assert "can't write /dev/full" in ran.stderr
    assert "loopwright runs export run_" in ran.stderr
    assert "BEACH" in ran.stdout


async def test_a_worker_goes_on_with_the_run_of_a_killed_terminal(folder: Path, urls: Urls) -> None:
    loop_file = write_loop(folder, stop={"max_iterations": 3})
    (folder / "evaluator.py").write_text(WAITS)
    database = {"DATABASE_URL": urls.app, "DATABASE_URL_DIRECT": urls.direct}
    await asyncio.to_thread(run_and_kill, loop_file, environment(**database))
    (folder / "go").touch()
    settings = Settings.model_validate({"home": folder, "grace_seconds": 0.1})
    async with open_runtime(settings, engine=False, urls=urls) as looking:
        assert await is_forsaken(looking.database, run_id_of(folder))  # as `runs watch` says
    async with open_runtime(settings, urls=urls) as worker:
        assert not await is_forsaken(worker.database, run_id_of(folder))
        run = await finished(worker, run_id_of(folder))
    assert (run.stop_reason, run.iterations) == ("max_iterations", 3)


async def test_what_a_run_in_a_terminal_starts_is_executed_there(folder: Path, urls: Urls) -> None:
    loop_file = write_loop(folder)
    settings = Settings.model_validate({"home": folder, "grace_seconds": 0.1})
    async with open_runtime(settings, engine=False, urls=urls) as terminal:
        loop = (await push_loop(terminal, terminal.owner(), loop_file, {})).loop
        async with Executor(database=terminal.database, load=terminal.load) as executor:
            terminal.executor = executor
            started = await start_run(terminal, terminal.owner(), loop.id, Wanted())
            assert (await finished(terminal, started.run_id)).stop_reason == "target_reached"


def run_and_kill(loop_file: Path, env: dict[str, str]) -> None:
    """Run a loop file until its evaluator waits, and kill the process then."""
    with subprocess.Popen(
        [*PROGRAM, "run", loop_file.name], cwd=loop_file.parent, env=env, stdout=subprocess.DEVNULL
    ) as terminal:
        wait_for(loop_file.parent / "scoring")
        terminal.kill()


async def finished(runtime: Runtime, run_id: str) -> Run:
    async with asyncio.timeout(LIMIT_SECONDS):
        while (run := await get_run(runtime.database, runtime.owner(), run_id)).status != "finished":
            await asyncio.sleep(0.05)
    return run
