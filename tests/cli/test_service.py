"""The commands of the service, on a data folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from loopwright.cli import app

LOOP = """\
name: codes
goal: Find the code of 4 letters from A to F.
agent:
  model: practice
  settings: {practice_pace: 0}
evaluator: {kind: python, function: "scoring:score"}
stop: {max_iterations: 3, budget_usd: 0.5}
"""
SCORING = "def score(candidate):\n    return len(candidate), 'by length'\n"


@pytest.fixture(scope="module")
def home() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lw-"))  # short: the database's socket lies in it
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def call(home: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints; in this process, since most of a process of its own would be imports."""
    done = CliRunner().invoke(app, arguments, env=_environment(home))
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def _environment(home: Path) -> dict[str, str]:
    return {"LOOPWRIGHT_HOME": str(home / "h"), "LOOPWRIGHT_GRACE_SECONDS": "1"}


def test_a_loop_file_is_pushed_run_on_the_server_and_pulled(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "loop.yaml"
    file.write_text(LOOP)
    (tmp_path / "scoring.py").write_text(SCORING)
    serving = subprocess.Popen(
        [sys.executable, "-m", "loopwright", "serve", "--port", "0"],
        env={**os.environ, **_environment(home)}, stdout=subprocess.PIPE, text=True, cwd=home,
    )  # fmt: skip
    try:
        assert serving.stdout is not None
        address, _, token = serving.stdout.readline().split()[-1].partition("/login?token=")
        assert "stored codes" in call(home, "loops", "push", str(file))
        assert "changed codes" in call(home, "loops", "push", str(file))
        loop = json.loads(call(home, "loops", "list", "--json"))
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
            run_id = client.post(f"/api/loops/{loop['id']}/runs").json()["run_id"]
            # What a pushed file brought may stay, and nothing of its kind may be added over the API.
            spec = {**loop["spec"], "holdout": {"kind": "command", "run": ["id"]}}
            change = client.patch(f"/api/loops/{loop['id']}", json={"spec": spec}, headers={"if-match": "*"})
            assert change.status_code == 422, change.text
            change = client.patch(f"/api/loops/{loop['id']}", json={"name": "codes"}, headers={"if-match": "*"})
            assert change.status_code == 200, change.text
            call(home, "run", str(file), "--journal", str(tmp_path / "terminal.jsonl"))
            in_terminal = client.get("/api/runs").json()["items"][0]
            assert (in_terminal["door"], in_terminal["loop_id"]) == ("cli", loop["id"])
        watched = call(home, "runs", "watch", run_id, "--json").splitlines()
        assert json.loads(watched[-1])["type"] == "run_finished"
        assert run_id in call(home, "runs", "list")
        assert "max_iterations" in call(home, "runs", "show", run_id)
        call(home, "runs", "extend", run_id, "--iterations", "1")
        deadline = time.monotonic() + 20
        while json.loads(call(home, "runs", "show", run_id, "--json"))["iterations"] < 4:
            assert time.monotonic() < deadline
        fork = call(home, "runs", "fork", run_id, "--from", "2").strip()
        assert json.loads(call(home, "runs", "show", fork, "--json"))["parent_run_id"] == run_id
        assert f"from    iteration 2 of {run_id}" in call(home, "runs", "show", fork)
        with httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30) as client:
            body = {"name": "nightly", "loop_id": loop["id"], "cron": "0 3 * * *", "zone": "Europe/London"}
            schedule = client.post("/api/schedules", json=body).json()["id"]
        assert "0 3 * * * Europe/London  nightly" in call(home, "schedules", "list")
        assert "nightly is paused" in call(home, "schedules", "pause", schedule)
        assert "nightly is active" in call(home, "schedules", "resume", schedule)
        assert json.loads(call(home, "schedules", "list", "--json"))["status"] == "active"
        assert "nothing with this id" in call(home, "schedules", "pause", "nightly", code=3)
        journal = tmp_path / "run.jsonl"
        call(home, "runs", "export", run_id, "-o", str(journal))
        assert "It would have stopped" in call(home, "replay", str(journal), "--stop", "max_iterations=2")
        assert "codes" in call(home, "usage", "--by", "loop")
        assert "0 to apply" in call(home, "db", "status")
        assert "nothing with this id" in call(home, "runs", "show", "run_0", code=3)
        pulled = tmp_path / "pulled.yaml"
        call(home, "loops", "pull", "codes", "-o", str(pulled))
        shutil.copy(tmp_path / "scoring.py", tmp_path / "again.py")
        assert "is fine" in call(home, "check", str(pulled))
        backup = tmp_path / "backup"
        call(home, "db", "backup", str(backup))
        assert "in use" in call(home, "db", "restore", str(backup), code=2)
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(30)
        if serving.stdout is not None:
            serving.stdout.close()
    assert serving.returncode in (0, 130, -signal.SIGINT)
    call(home, "loops", "push", str(file))
    assert "restored" in call(home, "db", "restore", str(backup))
    assert run_id in call(home, "runs", "list")
