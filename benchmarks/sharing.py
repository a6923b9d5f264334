"""Two processes that share a thousand runs, each of which waits two seconds for its model.

All are given to one of the processes, as a server that gets all requests would; the other one is idle beside it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from loopwright.runner.library import Loop
from loopwright.service.engine import Engine, Limits
from loopwright.store.database import Database, Urls, connect_direct
from loopwright.store.embedded import EmbeddedServer
from loopwright.store.run_store import TakenRun
from loopwright.store.runs import Submission
from tests.postgres import OWNER, open_database
from tests.postgres import _make_template as make_template  # pyright: ignore[reportPrivateUsage]

from .durable import WAIT_SECONDS, insert
from .stage import ROOT, StubModel, Target, arguments, evaluator_process, loop, verdict


class Waiting(StubModel):
    """Answers after two seconds."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        await asyncio.sleep(WAIT_SECONDS)
        return await super().request(messages, model_settings, model_request_parameters)


async def work(urls: Urls, url: str, runs: int) -> None:
    """One of the processes: executes what there is, first that which it reads from its standard input."""
    async with Database(urls=urls) as database, loop(Waiting(), url, 1) as ready:

        async def load(run: TakenRun) -> Loop:
            return ready

        async with Engine(database=database, load=load, limits=Limits(per_process=runs, per_user=runs)) as engine:
            print("ready", flush=True)
            while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
                for run_id in json.loads(line):
                    await engine.submit(Submission(run_id, uuid.UUID(OWNER), 0))


async def measure(server: EmbeddedServer, runs: int) -> list[Target]:
    """All figures."""
    await make_template(server)
    async with open_database(server) as database:
        with evaluator_process() as url:
            arguments = ["-m", "benchmarks.sharing", "--work", json.dumps(vars(database.urls)), url, str(runs)]
            pipe = asyncio.subprocess.PIPE
            workers = [
                await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdin=pipe, stdout=pipe)
                for _ in "ab"
            ]
            for each in workers:
                assert each.stdout
                assert await each.stdout.readline() == b"ready\n"
            await asyncio.sleep(6)  # until each has seen the other
            ids = await insert(database, runs)
            began = time.perf_counter()
            assert workers[0].stdin
            workers[0].stdin.write(json.dumps(ids).encode() + b"\n")
            await workers[0].stdin.drain()
            while await _unfinished(database):  # noqa: ASYNC110 - another process ends them
                await asyncio.sleep(0.1)
            took = time.perf_counter() - began
            shares = await _shares(database)
            for each in workers:
                assert each.stdin
                each.stdin.close()
                await each.wait()
    print(f"{runs} runs, all finished in {took:.1f} s; the processes had {' and '.join(map(str, shares))} of them")
    return [Target("the larger share over the smaller", shares[0] / max(1, shares[-1]), 1.25)]


async def _unfinished(database: Database) -> int:
    async with database.service_session() as connection:
        rows = await connection.execute("select count(*) from public.loop_runs where status <> 'finished'")
        return int((await rows.fetchone() or (0,))[0])


async def _shares(database: Database) -> list[int]:
    """How many runs each process executed, the largest number first."""
    async with await connect_direct(database.urls) as connection:
        rows = await connection.execute("select executor_id from dbos.workflow_status")
        shares = [many for _, many in Counter(str(row[0]) for row in await rows.fetchall()).most_common()]
    return [*shares, 0] if len(shares) == 1 else shares


def main() -> int:
    """Measure, print, judge."""
    if sys.argv[1:2] == ["--work"]:
        urls, url, runs = sys.argv[2:]
        asyncio.run(work(Urls(**json.loads(urls)), url, int(runs)))
        return 0
    parser = arguments(__doc__)
    parser.add_argument("--runs", type=int, default=1_000, help="how many (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lwb") as folder, EmbeddedServer(Path(folder) / "h") as server:
        return verdict(asyncio.run(measure(server, options.runs)), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
