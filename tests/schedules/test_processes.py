"""Two real processes with DBOS's own scheduler: whatever dies, each due time has one run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from loopwright.store.database import Connection, Urls, connect_direct
from tests.api.world import Api

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def worker(urls: Urls, home: Path) -> Generator[subprocess.Popen[str]]:
    """A worker that is ready; killed at the end."""
    command = [sys.executable, "-m", "tests.schedules.worker", json.dumps(vars(urls)), str(home)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


async def firings(c: Connection) -> list[tuple[object, ...]]:
    rows = await c.execute(
        "select extract(epoch from f.due_at)::bigint, f.outcome, f.run_id from schedule_firings f order by f.due_at"
    )
    return await rows.fetchall()


async def test_ten_ticks_in_two_processes_one_run_each_though_one_is_killed(
    idle: Api, urls: Urls, tmp_path: Path
) -> None:
    loop = await idle.make_loop()
    body = {"name": "s", "cron": "* * * * *", "loop_id": loop["id"], "overlap": "parallel", "backfill": "all"}
    made = await idle.make("/api/schedules", body)
    async with await connect_direct(urls) as c:
        # Each second, which nobody can ask for over the API: a test of ten minutes would be no test.
        await c.execute("update schedules set cron = '* * * * * *', next_due_at = now() where id = %s", (made["id"],))
        with worker(urls, tmp_path / "a") as one, worker(urls, tmp_path / "b"):
            async with asyncio.timeout(240):
                while len(await firings(c)) < 5:
                    await asyncio.sleep(0.1)
                one.kill()
                while len(await firings(c)) < 10:
                    await asyncio.sleep(0.1)
                await c.execute("update schedules set status = 'paused', next_due_at = null")
                while any(outcome == "waiting" for _, outcome, _ in await firings(c)):
                    await asyncio.sleep(0.1)
        found = await firings(c)
        started = [(due, run) for due, outcome, run in found if outcome == "started"]
        assert len(started) >= 10
        assert len({run for _, run in started}) == len(started)
        rows = await c.execute("select count(*) from loop_runs")
        assert await rows.fetchone() == (len(started),)
        first, last = int(str(found[0][0])), int(str(found[-1][0]))
        assert [due for due, _, _ in found] == list(range(first, last + 1)), "a tick is missing"
        # DBOS called for them, and not only our look for what it missed.
        rows = await c.execute("select count(*) from dbos.workflow_status where name = 'loopwright.schedule'")
        row = await rows.fetchone()
        assert row
        assert row[0] > 0
