"""The durable loop beside the one in memory: CPU of an iteration, iterations a second, a thousand waiting runs.

The CPU time of this process counts; that of Postgres is printed beside it. Both sides use the same agent on a model
without latency and the same HTTP evaluator in another process, and take turns.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from loopwright.runner.library import Loop
from loopwright.service.engine import Engine, Limits
from loopwright.store.database import Database
from loopwright.store.embedded import EmbeddedServer
from loopwright.store.run_store import TakenRun
from loopwright.store.runs import Submission
from tests.postgres import OWNER, open_database
from tests.postgres import _make_template as make_template  # pyright: ignore[reportPrivateUsage]

from .stage import GOAL, StubModel, Target, arguments, evaluator_process, loop, verdict

SIDE_BY_SIDE = 20
"""Runs at once for the iterations a second."""
WAITING = 1_000
WAIT_SECONDS = 2.0


class SlowModel(StubModel):
    """Takes its time, as real models do: two seconds from when all runs have asked it."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self._missing = runs
        self._all = asyncio.Event()

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self._missing -= 1
        if self._missing <= 0:
            self._all.set()
        await self._all.wait()
        await asyncio.sleep(WAIT_SECONDS)
        return await super().request(messages, model_settings, model_request_parameters)


async def insert(database: Database, many: int) -> list[str]:
    """Runs in the table, as the service puts them there."""
    ids = [f"run_{uuid.uuid4().hex[:21]}" for _ in range(many)]
    async with database.service_session() as connection:
        for run_id in ids:
            await connection.execute(
                "insert into public.loop_runs (id, loop_name, owner_id, door, spec, goal, cap_usd) "
                "values (%s, 'b', %s, 'api', '{}', %s, 1000)",
                (run_id, OWNER, GOAL),
            )
    return ids


async def execute(engine: Engine, ids: Sequence[str]) -> float:
    """Run them all to their end; gives the seconds that it took."""
    began = time.perf_counter()
    for run_id in ids:
        await engine.submit(Submission(run_id, uuid.UUID(OWNER), 0))
    while True:
        async with engine.database.service_session() as connection:
            rows = await connection.execute(
                "select count(*) from public.loop_runs where id = any(%s) and status = 'finished'", (list(ids),)
            )
            if (await rows.fetchone() or (0,))[0] == len(ids):
                return time.perf_counter() - began
        await asyncio.sleep(0.05)


async def in_memory(ready: Loop, iterations: int) -> float:
    """CPU seconds of an iteration in memory."""
    began = time.process_time()
    await ready.run(GOAL)
    return (time.process_time() - began) / iterations


async def durable(engine: Engine, iterations: int) -> float:
    """CPU seconds of a durable iteration, the start of the run included."""
    ids = await insert(engine.database, 1)
    began = time.process_time()
    await execute(engine, ids)
    return (time.process_time() - began) / iterations


def postgres_cpu(server: EmbeddedServer) -> float:
    """CPU seconds of all of the server's processes that live."""
    main = (server.data / "postmaster.pid").read_text().split()[0]
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if main in (fields[1], stat.parent.name):
            total += int(fields[11]) + int(fields[12])
    return total / 100


class Lag:
    """How late the event loop is, measured every 10 ms."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    async def measure(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            self.seen.append(time.perf_counter() - began - 0.01)

    @property
    def p99(self) -> float:
        return sorted(self.seen)[int(len(self.seen) * 0.99)]


def memory() -> int:
    """Resident bytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def measure(server: EmbeddedServer, iterations: int, rounds: int, runs: int) -> list[Target]:
    """All figures."""
    await make_template(server)
    targets: list[Target] = []
    with evaluator_process() as url:
        async with open_database(server) as database, loop(StubModel(), url, iterations) as ready:

            async def load(run: TakenRun) -> Loop:
                return ready

            limits = Limits(per_user=WAITING)
            async with Engine(database=database, load=load, limits=limits) as engine:
                await in_memory(ready, iterations)
                await durable(engine, iterations)
                served = postgres_cpu(server)
                pairs = [(await in_memory(ready, iterations), await durable(engine, iterations)) for _ in range(rounds)]
                served = (postgres_cpu(server) - served) / rounds / iterations
                memory_ms, durable_ms = (median(side) * 1_000 for side in zip(*pairs, strict=True))
                print(f"in memory {memory_ms:.2f} ms, durable {durable_ms:.2f} ms of CPU an iteration")
                print(f"Postgres: {served * 1_000:.2f} ms of CPU an iteration")
                ratio = median(ours / theirs for theirs, ours in pairs)
                targets.append(Target("durable over in memory", ratio, 1.6))
                began = time.process_time()
                took = await execute(engine, await insert(database, SIDE_BY_SIDE))
                spent = time.process_time() - began
                total = SIDE_BY_SIDE * iterations
                print(f"{total / took:.0f} iterations a second, {total / spent:.0f} a second of this process's CPU")
                targets.append(Target("ms of CPU an iteration, 20 runs at once", spent / total * 1_000, 1_000 / 60))
        targets += await waiting(server, url, runs)
    return targets


async def waiting(server: EmbeddedServer, url: str, runs: int) -> list[Target]:
    """Many runs that all wait for their model at the same time."""
    lag = Lag()
    async with (
        open_database(server) as database,
        loop(SlowModel(20), url, 1) as first,
        loop(SlowModel(runs), url, 1) as ready,
    ):
        loops = [first]

        async def load(run: TakenRun) -> Loop:
            return loops[-1]

        async with Engine(database=database, load=load, limits=Limits(per_user=runs + SIDE_BY_SIDE)) as engine:
            await execute(engine, await insert(database, 20))
            loops.append(ready)
            ids, before = await insert(database, runs), memory()
            most, measuring = before, asyncio.ensure_future(lag.measure())
            running = asyncio.ensure_future(execute(engine, ids))
            while not running.done():
                most = max(most, memory())
                await asyncio.sleep(0.05)
            measuring.cancel()
            print(f"{runs} runs that wait at once: all finished, in {await running:.1f} s with their starts")
    return [
        Target("KB a waiting run", (most - before) / runs / 1_000, 250),
        Target("event loop lag p99", lag.p99, 1, " s"),
    ]


def main() -> int:
    """Measure, print, judge."""
    parser = arguments(__doc__, iterations=50, rounds=7)
    parser.add_argument("--waiting", type=int, default=WAITING, help="runs that wait at once (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lwb") as folder, EmbeddedServer(Path(folder) / "h") as server:
        return verdict(
            asyncio.run(measure(server, options.iterations, options.rounds, options.waiting)), check=options.check
        )


if __name__ == "__main__":
    sys.exit(main())
