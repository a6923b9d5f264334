"""The commands in this process: what they print, what they write, how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from loopwright.cli import app
from loopwright.core.events import EVENT, RunFinished, RunStarted
from loopwright.store.jsonl import read_journal

from .world import write_loop


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "dumb")
    return tmp_path


def loopwright(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# --- init ---


def test_init_writes_a_loop_that_reaches_its_target(folder: Path) -> None:
    written = loopwright("init", "x")
    assert written.exit_code == 0
    assert "loopwright run x/loop.yaml" in written.stdout
    assert sorted(p.name for p in (folder / "x").iterdir()) == [".loopwright", "evaluator.py", "loop.yaml"]
    loop_file = folder / "x/loop.yaml"
    loop_file.write_text(
        loop_file.read_text().replace("model: practice\n", "model: practice\n  settings: {practice_pace: 0}\n", 1)
    )
    ran = loopwright("run", "x/loop.yaml")
    assert ran.exit_code == 0, ran.output
    assert "Reached the target 1" in ran.stdout
    assert "BEACH" in ran.stdout


def test_init_never_overwrites_unless_it_is_told_to(folder: Path) -> None:
    loopwright("init", "x")
    (folder / "x/evaluator.py").write_text("mine")
    refused = loopwright("init", "x")
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert (folder / "x/evaluator.py").read_text() == "mine"
    assert loopwright("init", "x", "--force").exit_code == 0
    assert "mine" not in (folder / "x/evaluator.py").read_text()


def test_init_where_it_cant_write(folder: Path) -> None:
    (folder / "file").write_text("")
    refused = loopwright("init", "file/x")
    assert refused.exit_code == 2
    assert "can't write into file/x" in refused.stderr


# --- run ---


def test_run_prints_a_line_an_iteration_and_keeps_a_journal(folder: Path) -> None:
    write_loop(folder)
    ran = loopwright("run", "loop.yaml")
    assert ran.exit_code == 0, ran.output
    assert "iteration 1 of 20  score" in ran.stdout
    (journal,) = (folder / ".loopwright/runs").glob("*.jsonl")
    events = list(read_journal(journal))
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunFinished)
    assert journal.stem == events[0].run_id
    assert str(journal.relative_to(folder)) in ran.stdout


def test_run_ends_with_1_below_the_target(folder: Path) -> None:
    write_loop(folder)
    ran = loopwright("run", "loop.yaml", "--max-iterations", "1")
    assert ran.exit_code == 1
    assert "Used all its iterations" in ran.stdout


def test_run_ends_with_0_where_no_target_is_set(folder: Path) -> None:
    write_loop(folder, stop={"max_iterations": 2})
    assert loopwright("run", "loop.yaml").exit_code == 0


def test_run_ends_with_3_on_an_error(folder: Path) -> None:
    cant_run = {"kind": "command", "run": ["sh", "-c", "exit 126"], "score_from": "exit_code"}
    write_loop(folder, evaluator=cant_run)
    ran = loopwright("run", "loop.yaml")
    assert ran.exit_code == 3
    assert "Stopped by an error" in ran.stdout


def test_run_refuses_everything_wrong_at_once_before_anything_is_sent(folder: Path) -> None:
    write_loop(folder, atempts=3, stop={"target_score": 1})
    ran = loopwright("run", "loop.yaml")
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert "loop.yaml:11: stop: a loop needs at least one stop condition" in ran.stderr
    assert "loop.yaml:13: atempts: is not a key here (did you mean `attempts`?)" in ran.stderr
    assert "2 problems; nothing was sent, nothing was spent." in ran.stderr
    assert not (folder / ".loopwright").exists()


def test_run_takes_overrides(folder: Path) -> None:
    write_loop(folder)
    goal = "Find the secret code of 4 letters from A to B."
    options = [
        "--goal",
        goal,
        "--budget",
        "0.25",
        "--max-iterations",
        "2",
        "--attempts",
        "2",
        "--journal",
        "j/run.jsonl",
    ]
    ran = loopwright("run", "loop.yaml", *options)
    assert ran.exit_code == 1, ran.output
    started = next(read_journal(folder / "j/run.jsonl"))
    assert isinstance(started, RunStarted)
    assert (started.goal, started.attempts) == (goal, 2)
    assert {"budget_usd": "0.25"} in started.stop["any"]  # pyright: ignore[reportOperatorIssue]
    assert "attempt 2  iteration 2 of 2" in ran.stdout


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (["--budget", "none"], "--budget: 'none' is not an amount"),
        (["--max-iterations", "0"], "--max-iterations: must be a whole number of 1 or more"),
        (["--attempts", "0"], "--attempts: must be 1 to 64"),
        (["--model", "nosuch:model"], "agent.model"),
        (["--output", "."], "--output: . is a folder"),
        (["--output", "no/such/file"], "--output: there is no folder no/such"),
        (["--journal", "loop.yaml/j"], "--journal: can't write the journal"),
        (["--nonsense"], "No such option"),
    ],
)
def test_run_refuses_options_that_cant_be(folder: Path, options: list[str], phrase: str) -> None:
    write_loop(folder)
    ran = loopwright("run", "loop.yaml", *options)
    assert ran.exit_code == 2
    assert phrase in ran.stderr


def test_output_is_the_best_candidate_and_nothing_else(folder: Path) -> None:
    write_loop(folder)
    ran = loopwright("run", "loop.yaml", "--output", "best.txt")
    assert (folder / "best.txt").read_bytes() == b"BEACH"
    assert "best.txt" in ran.stdout


def test_an_output_that_cant_be_written_in_the_end_is_an_error(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    write_loop(folder)
    ran = loopwright("run", "loop.yaml", "--output", "/dev/full")
    assert ran.exit_code == 3
    assert "can't write /dev/full" in ran.stderr
    assert "BEACH" in ran.stdout


def test_json_is_one_event_a_line_and_nothing_else(folder: Path) -> None:
    write_loop(folder, "loud")
    ran = loopwright("run", "loop.yaml", "--json")
    events = [EVENT.validate_json(line) for line in ran.stdout.splitlines()]
    assert [e.seq for e in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1], RunFinished)
    assert "printed by the evaluator" in ran.stderr
    assert "Reached the target" in ran.stderr


def test_text_of_evaluators_can_do_nothing_to_the_terminal(folder: Path) -> None:
    write_loop(folder, "rude")
    ran = loopwright("run", "loop.yaml", "--max-iterations", "1")
    assert "[red]not markup[/red]" in ran.stdout
    assert "\x1b" not in ran.stdout
    assert "\x07" not in ran.stdout


# --- check ---


def test_check_says_what_an_iteration_can_cost(folder: Path) -> None:
    write_loop(folder)
    checked = loopwright("check", "loop.yaml")
    assert checked.exit_code == 0, checked.output
    assert "loop.yaml is fine." in checked.stdout
    assert "One iteration costs at worst $" in checked.stdout
    assert "The budget is $0.50" in checked.stdout


def test_check_without_a_budget(folder: Path) -> None:
    write_loop(folder, stop={"max_iterations": 3})
    assert "There is no budget_usd" in loopwright("check", "loop.yaml").stdout


def test_check_with_a_budget_for_less_than_one_iteration(folder: Path) -> None:
    write_loop(folder, stop={"budget_usd": "0.0001"}, attempts=2)
    checked = loopwright("check", "loop.yaml").stdout
    assert "shared by 2 attempts: 0 such iterations surely fit." in checked


def test_check_of_a_model_that_costs_nothing(folder: Path) -> None:
    prices = {"practice": {"input": 0, "output": 0}}
    write_loop(folder, stop={"max_iterations": 3}, prices=prices)
    assert "costs nothing" in loopwright("check", "loop.yaml").stdout


def test_check_reports_all_problems_with_lines(folder: Path) -> None:
    path = write_loop(folder)
    path.write_text(path.read_text().replace("max_iterations: 20", "max_iterations: -1") + "zzz: 1\n")
    checked = loopwright("check", "loop.yaml")
    assert checked.exit_code == 2
    assert "loop.yaml:13: stop.max_iterations:" in checked.stderr
    assert "loop.yaml:15: zzz: is not a key here" in checked.stderr


def test_what_check_and_replay_print_is_printable(folder: Path) -> None:
    rude = "\x1b]0;title\x07"
    model = f"openai:z{rude}z"
    write_loop(
        folder,
        agent={"model": model, "base_url": "http://127.0.0.1:9/v1", "max_output_tokens": 64},
        prices={model: {"input": 1, "output": 1}},
    ).rename(folder / f"lo{rude}op.yaml")
    checked = loopwright("check", f"lo{rude}op.yaml")
    assert checked.exit_code == 0, checked.output
    assert checked.stdout.startswith("loop.yaml is fine.\nOne iteration costs at worst")
    assert "openai:zz" in checked.stdout
    write_loop(folder)
    for name in ("a.jsonl", "b.jsonl"):
        loopwright("run", "loop.yaml", "--journal", name)
    (first, second) = ((folder / name).read_text() for name in ("a.jsonl", "b.jsonl"))
    run_id = json.loads(first.splitlines()[0])["run_id"]
    (folder / "both.jsonl").write_text(first.replace(run_id, "ru\\u001b]0;title\\u0007n") + second)
    replayed = loopwright("replay", "both.jsonl", "--stop", "max_iterations=2")
    assert replayed.stdout.startswith("run:\n")
    assert "\x1b" not in replayed.output + checked.output


def test_check_of_a_function_that_isnt_there(folder: Path) -> None:
    write_loop(folder, "nope")
    checked = loopwright("check", "loop.yaml")
    assert checked.exit_code == 2
    assert "loop.yaml:10: evaluator.function: " in checked.stderr


def test_check_of_a_file_that_isnt_there(folder: Path) -> None:
    checked = loopwright("check", "no.yaml")
    assert checked.exit_code == 2
    assert checked.stderr == "no.yaml: the file does not exist; `loopwright init NAME` writes one to start from\n"


# --- replay ---


@pytest.fixture
def journal(folder: Path) -> str:
    write_loop(folder)
    loopwright("run", "loop.yaml", "--journal", "j.jsonl")
    return "j.jsonl"


def test_replay_says_where_another_condition_stops(journal: str) -> None:
    answer = loopwright("replay", journal, "--stop", "max_iterations=2 | target_score=0.99")
    assert answer.exit_code == 0, answer.output
    assert "It would have stopped after iteration 2: max_iterations (2 iterations for $" in answer.stdout
    assert "Best: iteration " in answer.stdout
    assert "In fact: Reached the target 1" in answer.stdout


@pytest.mark.parametrize("expression", ['{"any": [{"max_iterations": 2}]}', " {max_iterations: 2}"])
def test_replay_takes_json_and_yaml(journal: str, expression: str) -> None:
    assert "after iteration 2: max_iterations" in loopwright("replay", journal, "--stop", expression).stdout


def test_replay_of_a_condition_that_never_holds(journal: str) -> None:
    assert "would not have stopped" in loopwright("replay", journal, "--stop", "max_iterations=99").stdout


def test_replay_of_a_budget_that_is_too_small(journal: str) -> None:
    answer = loopwright("replay", journal, "--stop", "budget_usd=0.000001").stdout
    assert "It would have stopped in its first iteration: budget." in answer
    assert "past the budget" in answer
    assert "There would have been no candidate." in answer


def test_replay_of_a_journal_that_breaks_off(journal: str) -> None:
    path = Path(journal)
    path.write_bytes(path.read_bytes()[:-40])
    answer = loopwright("replay", journal, "--stop", "max_iterations=2")
    assert answer.exit_code == 0
    assert "The journal breaks off" in answer.stdout


def test_replay_of_two_runs_in_a_file(journal: str) -> None:
    loopwright("run", "loop.yaml", "--journal", journal)
    assert loopwright("replay", journal, "--stop", "max_iterations=2").stdout.count("after iteration 2") == 2


@pytest.mark.parametrize(
    ("expression", "phrase"),
    [
        ("max_iteration=2", "max_iteration: is not a stop condition"),
        ("soon", "can't read 'soon'"),
        ("{max_iterations: [", "can't be read as JSON or YAML"),
        ("{nonsense: 2}", "nonsense: is not a stop condition"),
    ],
)
def test_replay_refuses_what_is_no_condition(journal: str, expression: str, phrase: str) -> None:
    answer = loopwright("replay", journal, "--stop", expression)
    assert answer.exit_code == 2
    assert phrase in answer.stderr


def test_replay_of_what_is_no_journal(folder: Path) -> None:
    (folder / "j.jsonl").write_text('{"hello": 1}\n')
    for name, phrase in (
        ("j.jsonl", "j.jsonl:1: is not an event"),
        ("no.jsonl", "can't be read"),
        (".", "can't be read"),
    ):
        answer = loopwright("replay", name, "--stop", "max_iterations=1")
        assert answer.exit_code == 2
        assert phrase in answer.stderr


@pytest.mark.parametrize(
    ("expression", "phrase"),
    [
        ('{"any": [' * 400 + '{"max_iterations": 1}' + "]}" * 400, "nested"),
        ('{"any": [' * 40 + '{"max_iterations": 1}' + "]}" * 40, "nested deeper than 60 levels"),
        ("max_seconds=1e999", "must be a finite number"),
    ],
)
def test_replay_refuses_endless_conditions(journal: str, expression: str, phrase: str) -> None:
    answer = loopwright("replay", journal, "--stop", expression)
    assert answer.exit_code == 2
    assert phrase in answer.stderr


def test_replay_of_a_time_beyond_all_calendars(journal: str) -> None:
    assert "would not have stopped" in loopwright("replay", journal, "--stop", "max_seconds=1e300").stdout


def test_replay_of_a_journal_whose_times_have_no_zone(journal: str) -> None:
    first, _, rest = Path(journal).read_text().partition("\n")
    started = json.loads(first) | {"at": "2026-01-01T00:00:00"}
    Path(journal).write_text(f"{json.dumps(started)}\n{rest}")
    answer = loopwright("replay", journal, "--stop", "max_seconds=1")
    assert answer.exit_code == 2
    assert "j.jsonl:1: is not an event of a journal" in answer.stderr
    assert "timezone" in answer.stderr


# --- files that would block ---


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("check", "fifo"), "fifo: "),
        (("run", "fifo"), "fifo: "),
        (("run", "loop.yaml", "--journal", "fifo"), "--journal: can't write the journal fifo: "),
        (("run", "loop.yaml", "--output", "fifo"), "--output: can't write fifo: "),
        (("replay", "fifo", "--stop", "max_iterations=1"), "fifo: "),
    ],
)
def test_a_fifo_is_refused_and_not_waited_for(folder: Path, arguments: tuple[str, ...], field: str) -> None:
    write_loop(folder)
    os.mkfifo(folder / "fifo")
    refused = loopwright(*arguments)
    assert refused.exit_code == 2
    assert field in refused.stderr
    assert "it is not a regular file" in refused.stderr


def test_a_device_may_be_written_to(folder: Path) -> None:
    write_loop(folder)
    assert loopwright("run", "loop.yaml", "--output", "/dev/null", "--journal", "/dev/null").exit_code == 0


# --- schema, version ---


def test_schema_prints_the_schema() -> None:
    assert json.loads(loopwright("schema").stdout)["title"] == "Loopwright loop file"


@pytest.mark.parametrize("how", ["version", "--version"])
def test_version(how: str) -> None:
    assert loopwright(how).stdout.startswith("loopwright ")


@pytest.mark.parametrize("code", ["0 target", "1 the run ended", "2 refused", "3 error", "130 stopped"])
def test_the_help_of_run_explains_its_exit_codes(code: str) -> None:
    assert code in " ".join(loopwright("run", "--help").stdout.split())
