"""A worker process that can be killed and started again in half a second.

`python -m tests.durability.worker` is a zygote: it has loaded everything and forks a worker for each line of JSON that
it reads, and prints its process id.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any
from uuid import UUID

from loopwright.core.events import TextDelta
from loopwright.core.spec import LoopSpec
from loopwright.runner.library import Loop
from loopwright.service.assemble import assemble
from loopwright.service.engine import Engine, Limits
from loopwright.store.database import Database, Urls
from loopwright.store.run_store import TakenRun
from loopwright.store.runs import Submission

from .loops import KINDS, WATCHED


class Watching:
    """Viewers of the runs whose goal says so; what they are told goes nowhere."""

    def __init__(self) -> None:
        self.runs = set[str]()

    def watched(self, run_id: str) -> bool:
        return run_id in self.runs

    def say(self, delta: TextDelta) -> None:
        assert delta.text


WATCHING = Watching()


async def load(run: TakenRun) -> Loop:
    """Make the loop of a run."""
    if WATCHED in run.goal:
        WATCHING.runs.add(run.id)
    return assemble(LoopSpec.model_validate(run.spec), folder=Path.cwd())


async def work(order: dict[str, Any]) -> None:
    """Execute runs until told to leave: those that are submitted here, and those that are found."""
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    engine = Engine(
        database=Database(urls=Urls(**order["urls"])),
        load=load,
        viewers=WATCHING,
        limits=Limits(**order.get("limits", {"poll_seconds": 0.05})),
        **order.get("engine", {"beat_seconds": 0.1, "dead_after_seconds": 0.3}),
    )
    async with engine.database, engine:
        for run_id, owner, number in order.get("submit", []):
            await engine.submit(Submission(run_id, UUID(owner), number))
        await leave.wait()


def forked(order: dict[str, Any]) -> None:
    """What a forked worker does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        logging.basicConfig(level=logging.WARNING)
        os.environ.update(order.get("environ", {}))
        asyncio.run(work(order))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork a worker for each line of standard input."""
    warnings.simplefilter("ignore")
    os.environ["OPENAI_API_KEY"] = "not-a-key"
    for make in KINDS.values():  # so that the workers find everything loaded
        assemble(LoopSpec.model_validate(make("http://127.0.0.1:9", "[run:00000000]")), folder=Path.cwd())
    gc.collect()
    gc.freeze()  # so that workers share these pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            forked(json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
