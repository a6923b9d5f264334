"""Real processes that are killed between a run's end and its message, and another one that goes on."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopwright.store.database import Urls
from tests.api.world import Api

from .receiver import Receiver
from .world import change, deliveries, make_endpoint, settled

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def worker(urls: Urls, home: Path, receiver: Receiver, kill: str = "") -> Generator[subprocess.Popen[str]]:
    """A worker that is ready; killed at the end."""
    command = [
        sys.executable, "-m", "tests.endpoints.worker", json.dumps(vars(urls)), str(home), receiver.host, kill,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("kill", "sent"), [("before", 1), ("after", 2)])
async def test_what_a_killed_process_did_not_send_another_one_sends(
    idle: Api, tmp_path: Path, receiver: Receiver, kill: str, sent: int
) -> None:
    urls = idle.runtime.database.urls
    endpoint = await make_endpoint(idle, receiver)
    loop = await idle.make_loop()
    with worker(urls, tmp_path, receiver, kill) as doomed:
        run = await idle.start(loop)
        assert await asyncio.to_thread(doomed.wait, 60) == -9
    assert (await idle.get(f"/api/runs/{run}"))["status"] == "finished"
    [delivery] = await deliveries(idle, endpoint)
    assert (delivery["state"], delivery["attempts"], delivery["last"]) == ("waiting", 1, None)
    # The dead process has it for a minute still; that this passes is all that is made up here.
    await change(idle, "update deliveries set taken_until = taken_until - interval '1 minute'")
    with worker(urls, tmp_path, receiver):
        [delivery] = await settled(idle, endpoint)
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 2)
    assert [each.data["data"]["run_id"] for each in receiver.messages] == [run] * sent
    assert len({each.id for each in receiver.messages}) == 1
