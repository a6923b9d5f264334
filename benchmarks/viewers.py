"""A thousand viewers of live events: half of them of one run, half of them of a run each.

The server is this process; the viewers are another one, which speaks HTTP over real connections, and what happens in
the runs is written into the database by a third. An event's time to the screen is from the database's clock, at which
it was recorded, to when its last byte has been read: one machine has one clock.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path

import psycopg
import uvicorn

from loopwright.app import create_app
from loopwright.service.runtime import LOCAL_OWNER, local_token
from loopwright.settings import Settings
from loopwright.store.database import Urls
from loopwright.store.embedded import EmbeddedServer
from tests.postgres import _make_template as make_template  # pyright: ignore[reportPrivateUsage]
from tests.postgres import fresh_database

from .memory import resident_mb
from .stage import ROOT, Target, arguments, verdict

ONE_RUN_SECONDS = 0.5
"""How often something happens in the run that many watch."""
OTHERS_SECONDS = 2.0
"""How often something happens in each of the others: a loop on a quick model writes six events an iteration."""
EVENT = json.dumps([{"type": "iteration_started", "attempt": 1, "number": 1}])


def run_ids(many: int) -> list[str]:
    """The run that many watch, and those that are watched by one each."""
    return [f"run_{uuid.UUID(int=number).hex[-21:]}" for number in range(1, many + 2)]


async def insert(urls: Urls, ids: Sequence[str]) -> None:
    """Runs that go on, as far as anybody can see."""
    async with await psycopg.AsyncConnection.connect(urls.direct, autocommit=True) as connection:
        for run_id in ids:
            await connection.execute(
                "insert into public.loop_runs (id, loop_name, owner_id, door, spec, goal, status, started_at) "
                "values (%s, 'b', %s, 'api', '{}', 'g', 'running', now())",
                (run_id, LOCAL_OWNER),
            )


async def write(direct: str, ids: Sequence[str], seconds: float) -> None:
    """The process in which the runs go on."""
    one, others = ids[0], ids[1:]
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as connection:
        print("writing", flush=True)
        began, happened = time.monotonic(), 0
        each = OTHERS_SECONDS / max(1, len(others))
        next_one = 0.0
        while (now := time.monotonic() - began) < seconds:
            if now >= next_one:
                await connection.execute("select private.add_events(%s, %s, null)", (one, EVENT))
                next_one += ONE_RUN_SECONDS
            if others and now >= happened * each:
                run_id = others[happened % len(others)]
                await connection.execute("select private.add_events(%s, %s, null)", (run_id, EVENT))
                happened += 1
            else:
                await asyncio.sleep(0.001)


async def watch(port: int, token: str, ids: Sequence[str], many: int, seconds: float) -> None:
    """The process of the viewers: prints a line when all watch, and then how many ms each event took."""
    took: dict[str, list[float]] = {"one": [], "others": []}
    head = f"HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\r\n"
    watching = asyncio.Semaphore(0)

    async def view(run_id: str, seen: list[float]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /api/runs/{run_id}/events {head}".encode())
        status = await reader.readline()
        assert b"200" in status, status
        await reader.readuntil(b"\r\n\r\n")
        watching.release()
        while line := await reader.readline():
            if line.startswith(b"data: "):
                at = datetime.fromisoformat(json.loads(line[6:])["at"]).timestamp()
                seen.append((time.time() - at) * 1_000)

    viewers = [asyncio.ensure_future(view(ids[0], took["one"])) for _ in range(many)]
    viewers += [asyncio.ensure_future(view(run_id, took["others"])) for run_id in ids[1:]]
    for _ in viewers:
        await watching.acquire()
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.sleep(seconds)
    for each in viewers:
        each.cancel()
    print(json.dumps(took), flush=True)


@asynccontextmanager
async def serving(urls: Urls, home: Path) -> AsyncGenerator[tuple[int, str]]:
    """The server in this process; gives its port and a token."""
    settings = Settings(home=home, _env_file=None)  # pyright: ignore[reportCallIssue]
    app = create_app(settings, urls=urls, engine=False)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_level="critical"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells in no other way
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1], local_token(settings)
    finally:
        server.should_exit = server.force_exit = True
        await task


async def measure(server: EmbeddedServer, viewers: int, seconds: float) -> list[Target]:
    """All figures."""
    await make_template(server)
    many = viewers // 2
    ids = run_ids(many)
    async with fresh_database(server) as urls, serving(urls, server.home / "a") as (port, token):
        await insert(urls, ids)
        before = resident_mb()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.viewers", "--watch", str(port), token, str(many), str(seconds),
            cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
        )  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert await process.stdout.readline() == b"watching\n"
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.viewers", "--write", urls.direct, str(many), str(seconds), cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert writer.stdout
        assert await writer.stdout.readline() == b"writing\n"
        process.stdin.write(b"\n")
        took = json.loads(await process.stdout.readline())
        with_viewers = resident_mb()
        await process.wait()
        await writer.wait()
    figures = list[Target]()
    for name, who in (("one", f"{many} viewers of one run"), ("others", f"{many} viewers of a run each")):
        seen = sorted(took[name])
        p50, p99 = seen[len(seen) // 2], seen[int(len(seen) * 0.99)]
        print(f"{who}: {len(seen) / seconds:.0f} events a second on screens, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
        figures.append(Target(f"event to screen p99, {who}", p99, 500, " ms"))
    return [*figures, Target("KB a viewer", (with_viewers - before) * 1_024 / (2 * many), 100)]


def main() -> int:
    """Measure, print, judge."""
    if sys.argv[1:2] == ["--watch"]:
        port, token, many, seconds = sys.argv[2:]
        with suppress(BrokenPipeError):
            asyncio.run(watch(int(port), token, run_ids(int(many)), int(many), float(seconds)))
        return 0
    if sys.argv[1:2] == ["--write"]:
        direct, many, seconds = sys.argv[2:]
        asyncio.run(write(direct, run_ids(int(many)), float(seconds)))
        return 0
    parser = arguments(__doc__)
    parser.add_argument("--viewers", type=int, default=1_000, help="how many, in both halves (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lwb") as folder, EmbeddedServer(Path(folder) / "h") as server:
        return verdict(asyncio.run(measure(server, options.viewers, options.seconds)), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
