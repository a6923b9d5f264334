"""What is forgotten, and what never is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loopwright.service import pruning
from loopwright.service.pruning import Pruning
from loopwright.store.database import connect_direct

from ..api.conftest import api
from ..api.world import SLOW, Api
from ..postgres import OWNER

__all__ = ["api"]

OLD = "(extract(epoch from now() - interval '8 days') * 1000)::bigint"


async def sql(api: Api, statement: Any, *arguments: object) -> list[tuple[Any, ...]]:
    async with await connect_direct(api.runtime.database.urls) as connection:
        rows = await connection.execute(statement, arguments)
        return await rows.fetchall() if rows.description else []


async def records(api: Api) -> dict[str, str]:
    return {
        str(key): str(status)
        for key, status in await sql(api, "select workflow_uuid, status from dbos.workflow_status")
    }


async def until_over(api: Api, many: int) -> None:
    """The engine closes its books a moment after ours."""
    async with asyncio.timeout(30):
        while list((await records(api)).values()).count("SUCCESS") < many:
            await asyncio.sleep(0.02)


async def test_the_engines_old_records_go_and_runs_stay(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)  # more than one batch
    loop = await api.make_loop()
    old = [await api.start(loop) for _ in range(3)]
    fresh = await api.start(loop)
    for run in (*old, fresh):
        await api.finished(run)
    going = await api.start(await api.make_loop(agent=SLOW, name="slow"))
    await api.running(going)
    await until_over(api, 4)
    await sql(
        api,
        f"update dbos.workflow_status set created_at = {OLD}, "
        f"completed_at = case when status = 'SUCCESS' then {OLD} end where workflow_uuid <> %s",
        f"{fresh}:0",
    )
    # Of a worker that died long ago; others went on with its run under a record of their own.
    await sql(
        api,
        "insert into dbos.workflow_status (workflow_uuid, status, name, executor_id, created_at, updated_at) "
        f"values ('run_gone:0', 'PENDING', 'loopwright.run', 'gone', {OLD}, {OLD})",
    )
    before = [await api.get(f"/api/runs/{run}") for run in old]
    exported = (await api.call("GET", f"/api/runs/{old[0]}/export")).text

    gone = await Pruning(database=api.runtime.database, engine_days=7).prune()

    assert gone == 4
    assert set(await records(api)) == {f"{fresh}:0", f"{going}:0"}
    assert (
        await sql(api, "select from dbos.workflow_input where workflow_uuid = any(%s)", [f"{run}:0" for run in old])
        == []
    )
    assert [await api.get(f"/api/runs/{run}") for run in old] == before
    assert (await api.call("GET", f"/api/runs/{old[0]}/export")).text == exported
    assert (await api.call("POST", f"/api/runs/{old[0]}/extend", {"iterations": 1})).status_code == 202
    assert (await api.finished(old[0]))["iterations"] == 4
    assert (await api.get(f"/api/runs/{going}"))["status"] == "running"


async def test_old_answers_and_ended_sign_ins_go(api: Api) -> None:
    loop = await api.make_loop()
    for key in ("old", "fresh"):
        await api.start(loop, {"max_iterations": 1}, idempotency_key=key)
    await sql(api, "update idempotency_keys set created_at = now() - interval '8 days' where key = 'old'")
    for name, ends in (("ended", "-1 second"), ("going", "1 day")):
        await sql(
            api,
            "insert into sign_ins (id, user_id, nonce, sealed, key_id, fresh_until, ends_at) "
            "values (%s, %s, %s, 'x', 'k', now(), now() + %s::interval)",
            name.encode().ljust(32), OWNER, b"n" * 12, ends,
        )  # fmt: skip
    await Pruning(database=api.runtime.database, engine_days=7).prune()
    assert await sql(api, "select key from idempotency_keys") == [("fresh",)]
    assert await sql(api, "select id from sign_ins") == [(b"going".ljust(32),)]


async def test_a_process_that_executes_runs_forgets_by_itself(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = await api.make_loop()
    run = await api.start(loop)
    await api.finished(run)
    await until_over(api, 1)
    await sql(api, f"update dbos.workflow_status set created_at = {OLD}, completed_at = {OLD}")
    monkeypatch.setattr(pruning, "FIRST_SECONDS", 0.0)
    async with Pruning(database=api.runtime.database, engine_days=7), asyncio.timeout(30):
        while await records(api):
            await asyncio.sleep(0.02)
