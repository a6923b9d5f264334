"""What the commands do, between the parsed command line and an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import nullcontext, redirect_stdout
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InvalidInput, Problem
from ..core.money import show_usd
from ..core.stop import Stop, budget_of, parse_stop, parse_stop_expression
from ..files import refuse_special
from ..runner.library import new_run_id
from ..runner.replay import RecordedRun, Replayed, recorded_runs, replay
from ..service.loop_files import LoopFile, Overrides, assembled, read_loop_file
from ..store.jsonl import read_journal
from .drive import Driven, drive, exit_code, prepare_models
from .outcome import CANCELLED, ERROR, REACHED, refuse, say
from .screens import Screen, screen_for
from .text import duration, one_line, printable, score_text

if TYPE_CHECKING:
    from ..service.assemble import WorstCase

RUNS = Path(".loopwright") / "runs"
"""Where journals are kept, under the current folder."""


def run_file(
    path: Path, overrides: Overrides, *, as_json: bool, output: Path | None, journal: Path | None, ephemeral: bool
) -> int:
    """`loopwright run`."""
    screen = screen_for(json=as_json, environ=os.environ)
    # What an evaluator in Python prints must not get between the events.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        try:
            _check_output(output)
            file = read_loop_file(path, environ=os.environ, overrides=overrides)
            run = _run_in_memory if ephemeral else _run_stored
            return asyncio.run(run(file, screen, output=output, journal=journal))
        except InvalidInput as error:
            return refuse(error, where=str(path))
        except (asyncio.CancelledError, KeyboardInterrupt):
            say("aborted; what was paid for is on record")
            return CANCELLED


async def _run_stored(file: LoopFile, screen: Screen, *, output: Path | None, journal: Path | None) -> int:
    from .stored import stored_run

    async with stored_run(file, journal, RUNS) as run:
        code = _end(await drive(run, screen), file, screen, output=output, journal=run.journal, run_id=run.id)
    return ERROR if run.journal_failed and code == REACHED else code


async def _run_in_memory(file: LoopFile, screen: Screen, *, output: Path | None, journal: Path | None) -> int:
    prepare_models()
    loop, run_id = assembled(file), new_run_id()
    journal = journal or RUNS / f"{run_id}.jsonl"
    try:
        run = loop.start(file.spec.goal, journal=journal, run_id=run_id)
    except OSError as error:
        message = f"can't write the journal {journal}: {error.strerror or error}"
        raise InvalidInput(Problem(field="--journal", message=message)) from None
    return _end(await drive(run, screen), file, screen, output=output, journal=journal)


def _end(
    driven: Driven, file: LoopFile, screen: Screen, *, output: Path | None, journal: Path, run_id: str | None = None
) -> int:
    """Write and show what came of a run; returns the exit code."""
    result = driven.result
    written = _write(output, result.best.text) if output and result.best and result.best.candidate else None
    if driven.nobody_watches:
        say(f"standard output was closed, so the run was stopped; its journal is {journal}")
        return CANCELLED
    screen.end(result, journal=journal, output=output if written else None, run_id=run_id)
    code = exit_code(result, file.spec.stop_condition, file.spec.direction)
    return ERROR if written is False and code == REACHED else code


def _check_output(output: Path | None) -> None:
    """Refuse an output file that surely can't be written, before anything is spent."""
    if output is None:
        return
    if output.is_dir():
        raise InvalidInput(Problem(field="--output", message=f"{output} is a folder; name a file"))
    if not output.parent.is_dir():
        raise InvalidInput(Problem(field="--output", message=f"there is no folder {output.parent}; make it first"))
    try:
        refuse_special(output, or_device=True)
    except OSError as error:
        raise InvalidInput(Problem(field="--output", message=f"can't write {output}: {error.strerror}")) from None


def _write(output: Path, text: str) -> bool:
    try:
        refuse_special(output, or_device=True)
        output.write_bytes(text.encode("utf-8", errors="replace"))
    except OSError as error:
        say(f"can't write {output}: {error.strerror or error}; the best candidate is in the journal")
        return False
    return True


def check_file(path: Path) -> int:
    """`loopwright check`."""
    try:
        file = read_loop_file(path, environ=os.environ)
        assembled(file)
    except InvalidInput as error:
        return refuse(error, where=str(path))
    from ..service.assemble import worst_case

    print(printable(f"{path} is fine."))
    for line in _costs(worst_case(file.spec), budget_of(file.spec.stop_condition), file.spec.attempts):
        print(printable(line))
    return REACHED


def _costs(worst: WorstCase, cap: Decimal | None, attempts: int) -> list[str]:
    models = ", ".join(one_line(model, 200) for model in worst.models)
    if worst.total == 0:
        return [f"An iteration costs nothing ({models})."]
    parts = f"agent {show_usd(worst.agent)}, evaluator {show_usd(worst.evaluator)}"
    lines = [
        f"One iteration costs at worst {show_usd(worst.total)} ({parts}) if each model is asked once: {models}.",
        "Real iterations are mostly far cheaper; the wallet checks each request before it is sent.",
    ]
    if cap is None:
        lines.append("There is no budget_usd, so only iterations or time end the run.")
        return lines
    fit = int(cap / worst.total)
    surely = f"{fit:,} such iteration{'' if fit == 1 else 's'} surely fit{'s' if fit == 1 else ''}"
    shared = f", shared by {attempts} attempts" if attempts > 1 else ""
    lines.append(f"The budget is {show_usd(cap)}{shared}: {surely}.")
    if fit == 0:
        lines.append("Requests get smaller output limits then; if not even a useful minimum fits, the run stops.")
    return lines


def replay_journal(path: Path, expression: str) -> int:
    """`loopwright replay`."""
    try:
        runs = list(recorded_runs(read_journal(path)))
    except InvalidInput as error:
        return refuse(error, where=str(path))
    except OSError as error:
        message = f"the file can't be read: {error.strerror or error}"
        return refuse(InvalidInput(Problem(field="", message=message)), where=str(path))
    try:
        stop = _stop_of(expression)
        answers = [(run, replay(run, stop)) for run in runs]
    except InvalidInput as error:
        return refuse(error, where="")
    for run, answer in answers:
        if len(answers) > 1:
            print(f"{one_line(run.started.run_id)}:")
        for line in _replayed(run, answer):
            print(printable(line))
    return REACHED


def _stop_of(expression: str) -> Stop:
    """A condition in one line, or as JSON or YAML in braces."""
    if not expression.lstrip().startswith("{"):
        return parse_stop_expression(expression)
    import yaml

    try:
        return parse_stop(yaml.safe_load(expression))
    except RecursionError:
        raise InvalidInput(Problem(field="--stop", message="is nested too deeply")) from None
    except yaml.YAMLError as error:
        message = f"can't be read as JSON or YAML: {' '.join(str(error).split())}"
        raise InvalidInput(Problem(field="--stop", message=message)) from None


def _replayed(run: RecordedRun, answer: Replayed) -> list[str]:
    turns = f"{answer.iterations} iteration{'' if answer.iterations == 1 else 's'}"
    spent = f"{turns} for {show_usd(answer.cost)} in {duration(answer.seconds)}"
    where = f"iteration {answer.number}" + (f" of attempt {answer.attempt}" if run.started.attempts > 1 else "")
    if answer.reason is None:
        lines = [f"It would not have stopped within this journal ({spent})."]
    elif answer.iterations == 0:
        lines = [f"It would have stopped in its first iteration: {answer.reason}."]
    else:
        lines = [f"It would have stopped after {where}: {answer.reason} ({spent})."]
    if answer.left_out:
        lines.append(f"The iteration after that does not count: {answer.left_out}.")
    best = answer.best
    if best:
        attempt = f" of attempt {best.attempt}" if run.started.attempts > 1 else ""
        score = f", score {score_text(best.score)}" if best.score is not None else ""
        lines.append(f"Best: iteration {best.number}{attempt}{score}: {one_line(best.text, 200)}")
    else:
        lines.append("There would have been no candidate.")
    if run.finished is None:
        lines.append("The journal breaks off: the run crashed or still goes on, and what came after is unknown.")
    else:
        lines.append(f"In fact: {one_line(run.finished.sentence, 400)}")
    return lines
