"""A process that executes runs and sends: `python -m tests.endpoints.worker <json of urls> <home> <host> <kill>`.

With `kill` it ends as by a power cut, `before` it sends its first message, or `after` the message was received and
before it could write that down.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from loopwright.core.records import DeliveryAttempt
from loopwright.egress import Response
from loopwright.service.delivering import Delivering
from loopwright.service.runtime import open_runtime
from loopwright.settings import Settings
from loopwright.store.database import Urls
from loopwright.store.endpoints import Due


async def _killed_before(self: Delivering, due: Due, at: int) -> Response:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError((self, due, at))


async def _killed_after(self: Delivering, due: Due, attempt: DeliveryAttempt) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError((self, due, attempt))


async def work(urls: str, home: str, host: str, kill: str) -> None:
    settings = Settings(
        home=Path(home),
        service_key="x" * 32,
        egress_allow=host,
        grace_seconds=0.1,
        _env_file=None,  # pyright: ignore[reportCallIssue, reportArgumentType]
    )
    if kill == "before":
        Delivering._post = _killed_before  # pyright: ignore[reportPrivateUsage]
    if kill == "after":
        Delivering._settle = _killed_after  # pyright: ignore[reportPrivateUsage]
    async with open_runtime(settings, urls=Urls(**json.loads(urls))):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(*sys.argv[1:5]))
