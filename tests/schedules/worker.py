"""A process that executes runs and fires schedules: `python -m tests.schedules.worker <json of urls> <home>`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from loopwright.service.runtime import open_runtime
from loopwright.settings import Settings
from loopwright.store.database import Urls


async def work() -> None:
    settings = Settings(home=Path(sys.argv[2]), service_key="x" * 32, grace_seconds=0.1, _env_file=None)  # pyright: ignore[reportCallIssue, reportArgumentType]
    async with open_runtime(settings, urls=Urls(**json.loads(sys.argv[1]))):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work())
