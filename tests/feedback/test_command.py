from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.core import spec
from loopwright.core.errors import EvaluatorFailed
from loopwright.core.models import Candidate, EvaluationRequest, Feedback
from loopwright.core.ports import EvaluatorContext
from loopwright.egress import EgressClient
from loopwright.feedback import command
from loopwright.feedback.command import ProcessEvaluator
from loopwright.feedback.registry import build_evaluator

from .conftest import request_for

Sh = Callable[..., ProcessEvaluator]


@pytest.fixture
def sh(tmp_path: Path) -> Sh:
    def evaluator(script: str, **options: object) -> ProcessEvaluator:
        settings: dict[str, object] = {"timeout_seconds": 20.0} | options
        return ProcessEvaluator(run=["sh", "-c", script], folder=tmp_path, **settings)  # pyright: ignore[reportArgumentType]

    return evaluator


async def failure(
    evaluator: ProcessEvaluator, request: EvaluationRequest, context: EvaluatorContext
) -> EvaluatorFailed:
    with pytest.raises(EvaluatorFailed) as failed:
        await evaluator.evaluate(request, context)
    return failed.value


def is_running(pid: int) -> bool:
    """Whether a process still does anything: one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def is_there(name: str) -> bool:
    return os.path.lexists(name)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def gone(pids: list[int]) -> bool:
    """Wait for processes that were sent SIGKILL: it takes effect a moment later."""
    await until(lambda: not any(is_running(pid) for pid in pids))
    return True


async def pids_in(file: Path, count: int) -> list[int]:
    await until(lambda: len(listed(file)) == count)
    return listed(file)


def listed(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


FAMILY = "sleep 1000 & echo $! >> pids; (trap '' TERM; sleep 1000 & echo $! >> pids; wait) & echo $$ >> pids; wait"
"""A command with two children of its own, one of which does not care for SIGTERM."""


# Scores


@pytest.mark.parametrize(
    ("script", "feedback"),
    [
        ("echo 0.5", Feedback(score=0.5)),
        ("echo noise; echo; echo ' 3 '; echo; printf '  \\n'", Feedback(score=3)),
        ('echo noise; printf %s \'{"score": 0.25, "detail": "a\\nb"}\'', Feedback(score=0.25, detail="a\nb")),
        ('printf \'{"score": 1, "cost_usd": 0.5}\'', Feedback.model_validate({"score": 1, "cost_usd": "0.5"})),
        ('printf \'{"score": 1, "detail": "a\\342\\200\\250b"}\'', Feedback(score=1, detail="a\u2028b")),
        ("echo 1 >&2; echo 2; echo 3 >&2", Feedback(score=2)),
    ],
)
async def test_the_last_line_is_the_score(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, script: str, feedback: Feedback
):
    assert await sh(script).evaluate(request_, context) == feedback


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "echo 1 >&2",
        "echo done",
        "echo NaN",
        "echo true",
        "echo '\"0.9\"'",
        "echo 1e400",
        "echo '{\"score\": null}'",
        "echo 1; echo done",
    ],
)
async def test_another_last_line_is_a_failure(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, script: str
):
    assert (await failure(sh(script), request_, context)).transient


async def test_an_exit_code_that_is_not_0_is_a_failure_that_quotes_stderr(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext
):
    failed = await failure(
        sh('echo "out of\033[31m luck" >&2; echo \'{"score": 1, "cost_usd": 2}\'; exit 3'), request_, context
    )
    assert "ended with exit code 3: out of\\x1b[31m luck" in str(failed)
    assert failed.transient
    assert failed.cost_usd == 2


async def test_the_exit_code_as_the_score(sh: Sh, request_: EvaluationRequest, context: EvaluatorContext):
    script = "echo one; echo two >&2; echo three; exit "
    passed = await sh(script + "0", score_from="exit_code").evaluate(request_, context)
    assert passed == Feedback(score=1, detail="one\ntwo\nthree")
    assert await sh(script + "1", score_from="exit_code").evaluate(request_, context) == Feedback(
        score=0, detail="one\ntwo\nthree"
    )


async def test_the_detail_is_the_end_of_a_long_output(sh: Sh, request_: EvaluationRequest, context: EvaluatorContext):
    found = await sh("seq 1 10000; exit 1", score_from="exit_code").evaluate(request_, context)
    assert found.detail.endswith("9999\n10000")
    assert len(found.detail) == command.TAIL_CHARACTERS + 1


@pytest.mark.parametrize("score_from", ["last_line", "exit_code"])
@pytest.mark.parametrize(
    ("script", "message", "transient"),
    [
        ("kill -9 $$", "was killed by SIGKILL", True),
        ("kill -SEGV $$", "was killed by SIGSEGV", True),
        ("no-such-command-anywhere", "127", False),
        ("./not-executable", "126", False),
    ],
)
async def test_a_command_that_died_or_could_not_run_has_no_score(
    *,
    sh: Sh,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    tmp_path: Path,
    script: str,
    message: str,
    transient: bool,
    score_from: str,
):
    (tmp_path / "not-executable").write_text("#!/bin/sh\n")
    failed = await failure(sh(script, score_from=score_from), request_, context)
    assert message in str(failed)
    assert failed.transient is transient


@pytest.mark.parametrize("run", [["no-such-command-anywhere"], ["./folder"], ["sh\0"]])
@pytest.mark.parametrize("score_from", ["last_line", "exit_code"])
async def test_a_command_that_can_not_be_started(
    request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path, run: list[str], score_from: str
):
    (tmp_path / "folder").mkdir()
    evaluator = ProcessEvaluator(run=run, folder=tmp_path, score_from=score_from)  # pyright: ignore[reportArgumentType]
    failed = await failure(evaluator, request_, context)
    assert "can't be started" in str(failed)
    assert not failed.transient


# What the command gets


async def test_the_candidate_on_stdin_and_in_a_file(
    sh: Sh, context: EvaluatorContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    text = "ü{}\x1b\r\n$(touch owned)`touch owned`; call loop_done\n" * 20_000
    script = 'echo "$LOOPWRIGHT_CANDIDATE_FILE" > name; cat > stdin; cat "$LOOPWRIGHT_CANDIDATE_FILE" > file; echo 1'
    await sh(script).evaluate(request_for(Candidate(text=text)), context)
    assert (tmp_path / "stdin").read_bytes() == text.encode()
    assert (tmp_path / "file").read_bytes() == text.encode()
    assert not (tmp_path / "owned").exists()
    name = (tmp_path / "name").read_text().strip()
    assert name.endswith(".txt")
    assert not os.path.exists(name)  # noqa: ASYNC240, PTH110


@pytest.mark.parametrize(
    "script",
    [
        'mv "$LOOPWRIGHT_CANDIDATE_FILE" moved',
        'rm "$LOOPWRIGHT_CANDIDATE_FILE"',
        'rm "$LOOPWRIGHT_CANDIDATE_FILE"; mkdir "$LOOPWRIGHT_CANDIDATE_FILE"; rmdir "$LOOPWRIGHT_CANDIDATE_FILE"',
    ],
)
async def test_the_command_may_move_or_delete_the_candidate_file(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, script: str
):
    assert (await sh(f"{script}; echo 0.5").evaluate(request_, context)).score == 0.5


async def test_the_candidate_file_is_gone_afterwards(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path
):
    await sh('echo "$LOOPWRIGHT_CANDIDATE_FILE" > name; echo 1').evaluate(request_, context)
    assert not is_there((tmp_path / "name").read_text().strip())


async def test_a_structured_candidate_is_a_json_file(sh: Sh, context: EvaluatorContext, tmp_path: Path):
    candidate = Candidate(text='{"a": 1}', data={"a": 1})
    await sh('echo "$LOOPWRIGHT_CANDIDATE_FILE" > name; cat > stdin; echo 1').evaluate(request_for(candidate), context)
    assert (tmp_path / "name").read_text().endswith(".json\n")
    assert json.loads((tmp_path / "stdin").read_text()) == {"a": 1}


async def test_a_command_need_not_read_the_candidate(sh: Sh, context: EvaluatorContext):
    assert (await sh("echo 1").evaluate(request_for(Candidate(text="x" * 1_000_000)), context)).score == 1


async def test_the_environment_is_clean_but_for_what_is_named(
    request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("OPENAI_API_KEY", "PYTHONPATH", "WANTED", "LC_TIME", "LANG"):
        monkeypatch.setenv(name, f"value of {name}")
    monkeypatch.delenv("LC_CTYPE", raising=False)
    code = "import json, os; json.dump([dict(os.environ), os.getcwd()], open('seen', 'w')); print(1)"
    evaluator = ProcessEvaluator(run=[sys.executable, "-c", code], folder=tmp_path, env=["WANTED"])
    await evaluator.evaluate(request_, context)
    environment, folder = json.loads((tmp_path / "seen").read_text())
    environment.pop("LC_CTYPE", None)  # Python sets it for itself where the locale is unknown
    allowed = {"PATH", "HOME", "LANG", "LC_TIME", "TMPDIR", "VIRTUAL_ENV", "WANTED", "LOOPWRIGHT_CANDIDATE_FILE"}
    assert set(environment) <= allowed
    assert environment["WANTED"] == "value of WANTED"
    assert environment["PATH"] == os.environ["PATH"]
    assert os.path.samefile(folder, tmp_path)  # noqa: ASYNC240, PTH121


async def test_a_variable_that_is_not_set_is_a_final_failure(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext
):
    failed = await failure(sh("echo 1", env=["LOOPWRIGHT_TEST_NOT_SET"]), request_, context)
    assert "LOOPWRIGHT_TEST_NOT_SET is not set" in str(failed)
    assert not failed.transient


# How it ends


async def test_a_timeout_ends_the_whole_family(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path
):
    started = time.monotonic()
    failed = await failure(sh(f"echo half done >&2; {FAMILY}", timeout_seconds=1), request_, context)
    assert time.monotonic() - started < 5
    assert failed.transient
    assert "took longer than 1 s and was ended: half done" in str(failed)
    assert await gone(await pids_in(tmp_path / "pids", 3))


async def test_a_process_that_can_not_be_signalled_is_not_waited_for(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def not_permitted(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    started = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(command.os, "killpg", not_permitted)
        failed = await failure(sh("echo $$ > pids; exec sleep 30", timeout_seconds=0.5), request_, context)
    assert time.monotonic() - started < 10
    assert "took longer than 0.5 s and could not be ended" in str(failed)
    assert not failed.transient
    (pid,) = listed(tmp_path / "pids")
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists())
    await asyncio.sleep(0.2)  # for the event loop to hear of it


async def test_cancelling_ends_the_whole_family(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path
):
    task = asyncio.create_task(sh(FAMILY).evaluate(request_, context))
    pids = await pids_in(tmp_path / "pids", 3)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 2
    assert await gone(pids)


@pytest.mark.parametrize("times", [2, 3, 5, 20])
async def test_cancelling_again_and_again_still_ends_the_whole_family(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path, times: int
):
    task = asyncio.create_task(sh(f"trap '' TERM; {FAMILY}").evaluate(request_, context))
    pids = await pids_in(tmp_path / "pids", 3)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(pids)


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
async def test_cancelling_while_it_starts_leaves_nobody_behind(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path, turns: int
):
    task = asyncio.create_task(sh("echo $$ > pids; exec sleep 1000").evaluate(request_, context))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(listed(tmp_path / "pids"))


@pytest.mark.parametrize("stream", ["", ">&2"])
async def test_too_much_output_ends_the_whole_family(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path, stream: str
):
    script = f"echo $$ >> pids; yes aaaaaaa {stream} & echo $! >> pids; wait"
    tracemalloc.start()
    try:
        failed = await failure(sh(script, max_output_bytes=10_000), request_, context)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert "wrote more than 10,000 bytes and was ended" in str(failed)
    assert failed.transient
    assert await gone(await pids_in(tmp_path / "pids", 2))


async def test_too_much_output_in_one_go_is_too_much(sh: Sh, request_: EvaluationRequest, context: EvaluatorContext):
    script = "head -c 5000 /dev/zero; echo; echo 1"
    assert "wrote more than" in str(await failure(sh(script, max_output_bytes=5000), request_, context))
    assert (await sh(script, max_output_bytes=5003).evaluate(request_, context)).score == 1


async def test_a_child_in_the_background_does_not_hold_things_up(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path
):
    started = time.monotonic()
    found = await sh("sleep 1000 & echo $! > pids; echo 0.5").evaluate(request_, context)
    assert found.score == 0.5
    assert time.monotonic() - started < 1
    assert await gone(await pids_in(tmp_path / "pids", 1))


async def test_a_child_that_left_the_group_does_not_hold_things_up_either(
    sh: Sh, request_: EvaluationRequest, context: EvaluatorContext, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "DRAIN_SECONDS", 0.1)
    started = time.monotonic()
    found = await sh("setsid sleep 6 & sleep 0.2; echo 0.5").evaluate(request_, context)
    assert found.score == 0.5
    assert time.monotonic() - started < 5


async def test_many_at_once(sh: Sh, request_: EvaluationRequest, context: EvaluatorContext):
    evaluator = sh("cat > /dev/null; seq 1 2000; echo 0.5")
    found = await asyncio.gather(*(evaluator.evaluate(request_, context) for _ in range(20)))
    assert {feedback.score for feedback in found} == {0.5}


async def test_a_command_of_a_loop_file(request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path):
    (tmp_path / "score.sh").write_text("#!/bin/sh\necho 0.5\n")
    (tmp_path / "score.sh").chmod(0o755)
    described = spec.CommandEvaluator(kind="command", run=["./score.sh"])
    evaluator = build_evaluator(described, egress=EgressClient(), folder=tmp_path)
    assert (await evaluator.evaluate(request_, context)).score == 0.5
    assert evaluator.name == "command ./score.sh"
    assert evaluator.max_cost_usd == 0
