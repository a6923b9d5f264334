"""The command line as a process: signals, pipes, terminals, and how quickly it is there."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.console.text import printable
from loopwright.core.events import EVENT, RunFinished
from loopwright.store.jsonl import read_journal

from .world import LIMIT_SECONDS, PROGRAM, Terminal, environment, run, wait_for, write_loop


def start(folder: Path, *arguments: str, function: str = "slow") -> subprocess.Popen[str]:
    """Run `loopwright run` in the background until its evaluator hangs."""
    write_loop(folder, function)
    process = subprocess.Popen(
        [*PROGRAM, "run", "loop.yaml", "--journal", "j.jsonl", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    wait_for(folder / "scoring")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_the_best_is_printed(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "--output", "best.txt")
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert "Stopping; the best so far is kept." in err
    assert "Cancelled" in out
    assert "Best candidate  iteration 1" in out
    *_, last = read_journal(tmp_path / "j.jsonl")
    assert isinstance(last, RunFinished)
    assert last.best
    assert last.stop_reason == "cancelled"
    assert (tmp_path / "best.txt").read_text() == last.best.text


def test_signals_with_json_leave_only_events_on_stdout(tmp_path: Path) -> None:
    process = start(tmp_path, "--json")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    events = [EVENT.validate_json(line) for line in out.splitlines()]
    assert isinstance(events[-1], RunFinished)
    assert process.returncode == 130
    assert "Cancelled" in err


def test_more_signals_end_a_process_that_hangs(tmp_path: Path) -> None:
    process = start(tmp_path, function="deaf")
    assert process.stderr
    for answer in ("Stopping; the best so far is kept.", "Aborting."):
        process.send_signal(signal.SIGINT)
        # A slow start is told of first.
        assert any(answer in line for line in iter(process.stderr.readline, ""))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130


def test_a_killed_process_leaves_a_journal_that_can_be_replayed(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    answer = run("replay", "j.jsonl", "--stop", "max_iterations=9", folder=tmp_path)
    assert answer.returncode == 0
    assert "(1 iteration for $" in answer.stdout
    assert "The journal breaks off" in answer.stdout


@pytest.mark.parametrize("option", ["--json", "--attempts=1"])
def test_nobody_reading_stops_a_run_that_would_go_on(tmp_path: Path, option: str) -> None:
    write_loop(tmp_path, stop={"max_iterations": 100_000})
    process = subprocess.Popen(
        [*PROGRAM, "run", "loop.yaml", option],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(LIMIT_SECONDS) == 130
    assert "standard output was closed, so the run was stopped" in err
    assert "Exception ignored" not in err


def test_a_closed_pipe_is_no_traceback_for_others(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "schema"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    process.wait(LIMIT_SECONDS)
    assert err == ""


def test_plain_lines_without_a_terminal_and_in_any_encoding(tmp_path: Path) -> None:
    write_loop(tmp_path, name="Rätsel ★")
    ran = run("run", "loop.yaml", folder=tmp_path, env=environment(PYTHONUTF8="0", PYTHONIOENCODING="ascii"))
    assert ran.returncode == 0, ran.stderr
    assert "R?tsel ?" in ran.stdout
    assert "\x1b" not in ran.stdout


def test_a_defect_ends_with_3_and_its_traceback(tmp_path: Path) -> None:
    code = "import loopwright.console.outcome as o; o.guarded(lambda: 1 / 0)"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 3
    assert "ZeroDivisionError" in ran.stderr


# --- in a terminal ---


def test_the_live_view_in_a_terminal(tmp_path: Path) -> None:
    agent = {"model": "practice", "max_output_tokens": 64, "settings": {"practice_pace": 0.05}}
    write_loop(tmp_path, agent=agent)
    code, written = Terminal(tmp_path, ["run", "loop.yaml", "--ephemeral"], columns=60).run()
    assert code == 0
    assert written.startswith("\x1b[?25l")  # nothing but the view, in colour
    assert "\x1b[1;32m" in written
    shown = printable(written)
    assert "practice is a built-in search" in shown
    assert re.search(r"★ 1 in iteration \d+ · target 1", shown)
    assert "Reached the target 1" in shown
    assert shown.rstrip().splitlines()[-1].startswith("journal")
    assert written.count("\x1b[?25l") == written.count("\x1b[?25h") == 1  # the cursor is back


def test_ctrl_c_in_a_terminal_keeps_the_best(tmp_path: Path) -> None:
    write_loop(tmp_path, "slow")
    code, written = Terminal(tmp_path, ["run", "loop.yaml"]).run(interrupt_at=b"scoring the candidate")
    assert code == 130
    shown = printable(written)
    assert "Stopping; the best so far is kept." in shown
    assert "Cancelled" in shown
    assert "\x1b[?25h" in written


def test_plain_lines_in_a_terminal_that_wants_them(tmp_path: Path) -> None:
    write_loop(tmp_path)
    code, written = Terminal(tmp_path, ["run", "loop.yaml"], env=environment(NO_COLOR="1")).run()
    assert code == 0
    assert "\x1b" not in written
    assert "iteration 1 of 20  score" in written


# --- quick ---


def test_what_does_no_work_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from loopwright.cli import app\n"
        "for arguments in (['--help'], ['run', '--help'], ['schema'], ['version']):\n"
        "    app(arguments, standalone_mode=False)\n"
        "heavy = {'pydantic_ai', 'loopwright.core.spec', 'yaml', 'httpx', 'asyncio', 'jsonschema'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_a_server_imports_nothing_heavy_before_it_answers(tmp_path: Path) -> None:
    """What sends, what runs agents and what executes runs is imported behind the first answer."""
    code = (
        "import sys\n"
        "import loopwright.cli, loopwright.console.serving, loopwright.service.runtime\n"
        "from loopwright.app import create_app\n"
        "create_app()\n"
        "heavy = {'pydantic_ai', 'dbos', 'mcp', 'httpx', 'httpx2', 'httpcore', 'supabase_auth', 'jwt', 'rich.console', "
        "'openai', 'anthropic', 'jinja2', 'tiktoken', 'genai_prices', 'opentelemetry.sdk'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
