"""The commands of the service: those that look at and steer what is stored, as the owner of this installation."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.caller import Caller
from ..core.errors import InvalidInput, LoopwrightError, Problem
from ..core.events import EVENT, RunFinished
from ..core.money import show_usd, usd
from ..core.records import Run, RunSummary
from ..files import refuse_special
from ..settings import Settings
from .outcome import CANCELLED, ERROR, REACHED, refuse, say
from .text import one_line, printable, score_text

if TYPE_CHECKING:
    from ..service.runtime import Runtime
    from ..service.usage import GroupBy

Work = Callable[["Runtime", Caller], Awaitable[int]]


def settings_with(**options: object) -> Settings:
    """The settings of the environment, with what the command line says otherwise.

    Raises:
        InvalidInput: a variable holds what it can't.
    """
    from pydantic import ValidationError

    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        problems = [
            Problem(field=f"LOOPWRIGHT_{'_'.join(str(step) for step in each['loc']).upper()}", message=each["msg"])
            for each in error.errors(include_url=False)
        ]
        raise InvalidInput(*problems) from None


def with_runtime(work: Work) -> int:
    """Do something with what is stored, as the owner; returns the exit code."""

    async def run() -> int:
        from ..service.runtime import open_runtime

        async with open_runtime(settings_with(), engine=False) as runtime:
            return await work(runtime, runtime.owner())

    return guarded(run)


def guarded(work: Callable[[], Awaitable[int]]) -> int:
    """Run something async; what is refused is said in words."""

    async def run() -> int:
        return await work()

    try:
        return asyncio.run(run())
    except InvalidInput as error:
        return refuse(error, where="")
    except LoopwrightError as error:
        say(f"error: {error}")
        return ERROR
    except KeyboardInterrupt:
        return CANCELLED


# --- runs ---


async def list_runs(runtime: Runtime, me: Caller, *, limit: int, as_json: bool) -> int:
    """`loopwright runs list`."""
    from ..service import runs

    page = await runs.list_runs(runtime.database, me, limit=limit)
    for run in page.items:
        print(run.model_dump_json() if as_json else printable(_line(run)))
    if not page.items and not as_json:
        say("there are no runs yet; start one with `loopwright run FILE` or over the API")
    return REACHED


def _line(run: RunSummary) -> str:
    cap = f" of {show_usd(run.cap_usd)}" if run.cap_usd is not None else ""
    state = run.stop_reason or ("cancelling" if run.cancel_requested_at else run.status)
    score = f"score {score_text(run.best_score)}"
    return f"{run.id}  {state:<15} {score:<13} {show_usd(run.spent_usd)}{cap}  {one_line(run.loop_name, 60)}"


async def show_run(runtime: Runtime, me: Caller, run_id: str, *, as_json: bool) -> int:
    """`loopwright runs show`."""
    from ..service import runs

    run = await runs.get_run(runtime.database, me, run_id)
    print(run.model_dump_json(indent=2) if as_json else printable("\n".join(_details(run))))
    return REACHED


def _details(run: Run) -> list[str]:
    lines = [_line(run), f"goal    {one_line(run.goal, 400)}"]
    if run.parent_run_id and run.forked_from_iteration:
        lines.append(f"from    iteration {run.forked_from_iteration} of {run.parent_run_id}")
    if run.sentence:
        lines.append(f"ended   {one_line(run.sentence, 400)}")
    if run.error:
        lines.append(f"error   {one_line(run.error, 400)}")
    if run.best:
        what = "best   " if run.best.score is not None else "last (not scored)"
        lines += [f"{what} iteration {run.best.number}", "", run.best.text]
    return lines


async def watch_run(runtime: Runtime, me: Caller, run_id: str, *, as_json: bool) -> int:
    """`loopwright runs watch`: shows a run to its end; Ctrl-C leaves it alone."""
    from ..service.runs import is_forsaken
    from .screens import screen_for

    events = await runtime.hub.open(me, run_id, 0)
    if events is None:
        return REACHED
    if await is_forsaken(runtime.database, run_id):
        say("nobody executes this run at the moment; `loopwright serve` or `loopwright worker` goes on with it")
    screen = screen_for(json=as_json, environ=os.environ)
    screen.open()
    ended: RunFinished | None = None
    try:
        async for line in _data(events):
            event = EVENT.validate_json(line)
            ended = event if isinstance(event, RunFinished) else None
            screen.show(event)
    finally:
        with suppress(OSError):
            screen.close()
    if ended and not as_json:
        print(printable(ended.sentence))
    return REACHED


async def _data(events: AsyncGenerator[bytes]) -> AsyncGenerator[str]:
    async for chunk in events:
        for line in chunk.decode().split("\n"):
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


async def cancel_run(runtime: Runtime, me: Caller, run_id: str) -> int:
    """`loopwright runs cancel`."""
    from ..service.cancel import cancel_run as cancel

    run = await cancel(runtime, me, run_id)
    print(
        printable(run.sentence if run.status == "finished" else f"{run_id} is being cancelled; its best so far is kept")
    )
    return REACHED


async def extend_run(
    runtime: Runtime, me: Caller, run_id: str, *, budget: str | None, iterations: int | None, seconds: float | None
) -> int:
    """`loopwright runs extend`."""
    from ..service.extend import More
    from ..service.extend import extend_run as extend

    more = More(budget_usd=_dollars(budget), iterations=iterations, seconds=seconds)
    await extend(runtime, me, run_id, more)
    return _queued(run_id)


async def fork_run(runtime: Runtime, me: Caller, run_id: str, *, iteration: int, budget: str | None) -> int:
    """`loopwright runs fork`."""
    from ..service.fork import fork_run as fork
    from ..service.start import Wanted

    wanted = Wanted(budget_usd=_dollars(budget))
    return _queued((await fork(runtime, me, run_id, many=iteration, wanted=wanted)).run_id)


def _queued(run_id: str) -> int:
    print(run_id)
    say("it is in the queue; `loopwright serve` or `loopwright worker` executes it")
    return REACHED


def _dollars(text: str | None) -> Decimal | None:
    try:
        return None if text is None else usd(text)
    except ValueError as error:
        raise InvalidInput(Problem(field="--budget", message=str(error))) from None


async def export_run(runtime: Runtime, me: Caller, run_id: str, output: Path | None) -> int:
    """`loopwright runs export`."""
    from ..service import runs

    lines = await runs.export_run(runtime.database, me, run_id)
    try:
        out = output.open("wb") if output else sys.stdout.buffer
    except OSError as error:
        message = f"can't write {output}: {error.strerror or error}"
        raise InvalidInput(Problem(field="--output", message=message)) from None
    try:
        async for chunk in lines:
            out.write(chunk)
    finally:
        out.flush() if output is None else out.close()
    return REACHED


# --- loops and usage ---


async def list_loops(runtime: Runtime, me: Caller, *, as_json: bool) -> int:
    """`loopwright loops list`."""
    from ..service import loops

    cursor: str | None = None
    while True:
        page = await loops.list_loops(runtime, me, cursor=cursor, limit=200)
        for loop in page.items:
            worst = show_usd(loop.worst_case_usd)
            line = f"{loop.id}  {worst:>10} an iteration  {one_line(loop.name, 200)}"
            print(loop.model_dump_json() if as_json else line)
        if (cursor := page.next_cursor) is None:
            return REACHED


async def push_loop(runtime: Runtime, me: Caller, path: Path) -> int:
    """`loopwright loops push`."""
    from ..service.push import push_loop as push

    try:
        pushed = await push(runtime, me, path, os.environ)
    except InvalidInput as error:
        return refuse(error, where=str(path))
    print(f"{'stored' if pushed.new else 'changed'} {one_line(pushed.loop.name, 200)} ({pushed.loop.id})")
    return REACHED


async def pull_loop(runtime: Runtime, me: Caller, name: str, output: Path | None) -> int:
    """`loopwright loops pull`."""
    from ..service.push import pull_loop as pull

    text = await pull(runtime, me, name)
    if output is None:
        print(text, end="")
        return REACHED
    _write(output, text)
    print(printable(f"wrote {output}"))
    return REACHED


def _write(output: Path, text: str) -> None:
    try:
        refuse_special(output, or_device=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"can't write {output}: {error.strerror or error}"
        raise InvalidInput(Problem(field="--output", message=message)) from None


async def show_usage(runtime: Runtime, me: Caller, group_by: GroupBy, *, as_csv: bool, as_json: bool) -> int:
    """`loopwright usage`."""
    from ..service import usage

    rows = await usage.usage(runtime.database, me, group_by)
    if as_csv:
        print(usage.as_csv(rows), end="")
    elif as_json:
        print(json.dumps([row.model_dump(mode="json") for row in rows]))
    else:
        for row in rows:
            name = row.label or row.group or "(gone)"
            print(f"{show_usd(row.cost_usd):>12}  {row.requests:>8,} requests  {one_line(name, 80)}")
    return REACHED
