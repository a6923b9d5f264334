"""How long `loopwright serve` takes until it answers, on a fresh data folder and on one that is there already.

Whole processes, from start to the first answer of `/api/runs`, which needs the database and a sign-in; then to the
first page, which needs the dashboard, and to `/api/health/ready`, which needs the engine. Beside the time by the clock
stands the CPU that the process took until then, without that of its database: on a busy machine the clock says more
about the others.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from .stage import ROOT, Target, arguments, verdict

PATIENCE_SECONDS = 120
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Took:
    """Seconds from the start of the process."""

    answer: float
    answer_cpu: float
    page: float
    ready: float
    ready_cpu: float


def start(home: Path) -> Took:
    """Start a server, wait until it answers and until it is ready, stop it."""
    environment = {**os.environ, "LOOPWRIGHT_HOME": str(home)}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "loopwright", "serve", "--port", "0"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        try:
            address, _, token = process.stdout.readline().split()[-1].partition("/login?token=")
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=address, headers=headers, timeout=PATIENCE_SECONDS) as client:
                client.get("/api/runs").raise_for_status()
                answer, answer_cpu = time.perf_counter() - began, cpu_of(process.pid)
                client.get("/").raise_for_status()
                page = time.perf_counter() - began
                while client.get("/api/health/ready").status_code != 200:
                    assert time.perf_counter() - began < PATIENCE_SECONDS, "the engine does not come up"
                    time.sleep(0.1)
                ready, ready_cpu = time.perf_counter() - began, cpu_of(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
    return Took(answer=answer, answer_cpu=answer_cpu, page=page, ready=ready, ready_cpu=ready_cpu)


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a living process took so far, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> int:
    """Measure, print, judge."""
    options = arguments(__doc__, rounds=5).parse_args()
    first, later = list[Took](), list[Took]()
    for _ in range(options.rounds):
        home = Path(tempfile.mkdtemp(prefix="lw-"))  # short: the database's socket lies in it
        try:
            first.append(start(home))
            later.append(start(home))
        finally:
            shutil.rmtree(home, ignore_errors=True)
    for name, took in (("first", first), ("later", later)):
        answer, ready = median(each.answer for each in took), median(each.ready for each in took)
        answer_cpu, ready_cpu = median(each.answer_cpu for each in took), median(each.ready_cpu for each in took)
        page = median(each.page for each in took)
        print(f"{name} start  answers after {answer:5.2f} s ({answer_cpu:.2f} s CPU), ", end="")
        print(f"shows a page after {page:5.2f} s, ", end="")
        print(f"executes runs after {ready:5.2f} s ({ready_cpu:.2f} s CPU)")
    targets = [
        Target("first start to the first answer", median(each.answer for each in first), 5, " s"),
        Target("later start to the first answer", median(each.answer for each in later), 2, " s"),
    ]
    return verdict(targets, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
