"""From `POST …/runs` to the run's first event on the viewer's screen, and how long each event takes to get there.

A real `loopwright serve` in a process of its own, idle but for the run that is started: one after the other. An event's
time to the screen is from the database's clock, at which it was recorded, to when the viewer has read it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import httpx

from .stage import ROOT, Target, arguments, verdict

PATIENCE_SECONDS = 120
WARM_UP = 5


@contextmanager
def serving(home: Path) -> Generator[httpx.Client]:
    """A server that is ready, and a client of it."""
    with subprocess.Popen(
        [sys.executable, "-m", "loopwright", "serve", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "LOOPWRIGHT_HOME": str(home), "LOOPWRIGHT_GRACE_SECONDS": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        try:
            address, _, token = process.stdout.readline().split()[-1].partition("/login?token=")
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_SECONDS) as client:
                began = time.monotonic()
                while client.get("/api/health/ready").status_code != 200:
                    assert time.monotonic() - began < PATIENCE_SECONDS, "the engine does not come up"
                    time.sleep(0.1)
                yield client
        finally:
            process.send_signal(signal.SIGINT)


def make_loop(client: httpx.Client) -> str:
    """A loop that is over soon."""
    spec = {"model": "practice", "settings": {"practice_pace": 0.01}}
    agent = client.post("/api/agents", json={"name": "a", "spec": spec}).json()["id"]
    goal = "Find the code of 4 letters from A to F."
    stop = {"max_iterations": 3, "budget_usd": "0.50"}
    body = {"name": "l", "agent_id": agent, "spec": {"goal": goal, "stop": stop}}
    return str(client.post("/api/loops", json=body).json()["id"])


def start(client: httpx.Client, loop_id: str) -> tuple[float, list[float]]:
    """Start a run and watch it to its end: ms to the first event, and ms that each event took to the screen."""
    began = time.perf_counter()
    answer = client.post(f"/api/loops/{loop_id}/runs")
    first, took = None, list[float]()
    with client.stream("GET", answer.raise_for_status().json()["events_url"]) as events:
        for line in events.iter_lines():
            if line.startswith("data: "):
                first = first or (time.perf_counter() - began) * 1_000
                event = json.loads(line[6:])
                if event["type"] != "text_delta":
                    took.append((time.time() - datetime.fromisoformat(event["at"]).timestamp()) * 1_000)
    assert first is not None
    return first, took


def main() -> int:
    """Measure, print, judge."""
    options = arguments(__doc__, rounds=200).parse_args()
    with tempfile.TemporaryDirectory(prefix="lwb") as folder, serving(Path(folder) / "h") as client:
        loop_id = make_loop(client)
        for _ in range(min(WARM_UP, options.rounds)):
            start(client, loop_id)
        runs = [start(client, loop_id) for _ in range(options.rounds)]
    first = sorted(ms for ms, _ in runs)
    events = sorted(ms for _, took in runs for ms in took)
    print(f"{len(runs)} starts, {len(events)} events")
    print(f"event to screen: p50 {at(events, 0.5):.0f} ms, p99 {at(events, 0.99):.0f} ms")
    targets = [
        Target("POST to first event, p50", at(first, 0.5), 250, " ms"),
        Target("POST to first event, p99", at(first, 0.99), 1_000, " ms"),
    ]
    return verdict(targets, check=options.check)


def at(values: list[float], part: float) -> float:
    """The value below which a part of them lies."""
    return values[min(len(values) - 1, int(len(values) * part))]


if __name__ == "__main__":
    sys.exit(main())
