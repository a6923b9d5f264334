"""Schedules over the API, and what happens when they are due, by a clock of the tests' own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from loopwright.core.errors import DatabaseAway
from loopwright.core.records import Firing
from loopwright.service.cron import Cron
from loopwright.service.ticking import Ticking, jitter
from loopwright.store import schedules
from loopwright.store.database import Database, connect_direct
from tests.api.world import Api
from tests.postgres import ADMIN, OTHER, OWNER

EVERY_MINUTE: dict[str, Any] = {"name": "each minute", "cron": "* * * * *"}


@dataclass
class Clock:
    """A clock that stands where it is put."""

    now: datetime = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def later(self, **by: float) -> None:
        self.now += timedelta(**by)


@dataclass
class Stage:
    """A schedule whose time passes when the test says so."""

    api: Api
    clock: Clock
    ticking: Ticking
    id: str

    async def tick(self, **later: float) -> None:
        self.clock.later(**later)
        await self.ticking.tick(UUID(self.id))

    async def outcomes(self) -> list[str]:
        """What came of each due time, oldest first."""
        found = await self.api.get(f"/api/schedules/{self.id}/firings")
        return [each["outcome"] for each in reversed(found)]

    async def runs(self) -> list[Any]:
        return (await self.api.get("/api/runs"))["items"]

    async def end_runs(self, reason: str = "max_iterations") -> None:
        async with await connect_direct(self.api.runtime.database.urls) as c:
            await c.execute("update loop_runs set status = 'finished', stop_reason = %s", (reason,))


async def stage(api: Api, **changes: Any) -> Stage:
    loop = await api.make_loop()
    made = await api.make("/api/schedules", {**EVERY_MINUTE, "loop_id": loop["id"], **changes})
    clock = Clock()
    await set_due(api, made, clock)
    return Stage(api, clock, Ticking(runtime=api.runtime, clock=clock), made["id"])


async def set_due(api: Api, schedule: Any, clock: Clock) -> None:
    """Have a schedule be due next as if it had been made at the clock's time."""
    due = Cron.of(schedule["cron"], schedule["zone"]).next_after(clock())
    async with await connect_direct(api.runtime.database.urls) as c:
        await c.execute("update schedules set next_due_at = %s where id = %s", (due, schedule["id"]))


# --- over the API ---


async def test_a_schedule_shows_when_it_is_due_next(idle: Api) -> None:
    loop = await idle.make_loop()
    body = {"name": "mornings", "loop_id": loop["id"], "cron": "30 9 * * 1-5", "zone": "America/New_York"}
    made = await idle.make("/api/schedules", body, idempotency_key="one")
    again = await idle.make("/api/schedules", body, idempotency_key="one")
    assert again["id"] == made["id"]
    assert len(made["next_times"]) == 5
    assert made["next_due_at"] == made["next_times"][0]
    assert made["status"] == "active"
    assert (await idle.get("/api/schedules"))["items"] == [await idle.get(f"/api/schedules/{made['id']}")]


async def test_changing_pausing_and_resuming(idle: Api) -> None:
    loop = await idle.make_loop()
    made = await idle.make("/api/schedules", {**EVERY_MINUTE, "loop_id": loop["id"]})
    path = f"/api/schedules/{made['id']}"
    assert (await idle.call("PATCH", path, {"cron": "@daily"})).status_code == 428
    changed = await idle.call("PATCH", path, {"cron": "@daily", "overlap": "queue"}, if_match='"1"')
    assert changed.status_code == 200
    assert changed.headers["etag"] == '"2"'
    assert (await idle.call("PATCH", path, {"name": "x"}, if_match='"1"')).status_code == 412
    paused = (await idle.call("POST", f"{path}/pause")).json()
    assert (paused["status"], paused["next_times"], paused["next_due_at"]) == ("paused", [], None)
    resumed = (await idle.call("POST", f"{path}/resume")).json()
    assert (resumed["status"], resumed["cron"], len(resumed["next_times"])) == ("active", "@daily", 5)
    assert (await idle.call("DELETE", path)).status_code == 204
    assert (await idle.call("GET", path)).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "often"}, "cron"),
        ({"zone": "Mars/Base"}, "zone"),
        ({"loop_id": None}, "loop_id"),
        ({"loop_id": "00000000-0000-4000-8000-00000000dead"}, "loop_id"),
        ({"wanted": {"budget_usd": "0"}}, "wanted.budget_usd"),
        ({"wanted": {"model": "openai:no-such-model"}}, "agent.model"),
    ],
)
async def test_what_could_not_start_is_refused_by_its_field(idle: Api, changes: Any, field: str) -> None:
    loop = await idle.make_loop()
    answer = await idle.call("POST", "/api/schedules", {**EVERY_MINUTE, "loop_id": loop["id"], **changes})
    assert answer.status_code == 422
    assert {each["field"] for each in answer.json()["errors"]} == {field}


async def test_an_agent_needs_a_goal_and_a_budget(idle: Api) -> None:
    agent = await idle.make("/api/agents", {"name": "a", "spec": {"model": "practice"}})
    body = {**EVERY_MINUTE, "agent_id": agent["id"]}
    answer = await idle.call("POST", "/api/schedules", body)
    assert [each["field"] for each in answer.json()["errors"]] == ["goal", "budget_usd"]
    made = await idle.make("/api/schedules", {**body, "wanted": {"goal": "Say hello.", "budget_usd": "0.10"}})
    clock = Clock()
    await set_due(idle, made, clock)
    clock.later(minutes=1)
    await Ticking(runtime=idle.runtime, clock=clock).tick(UUID(made["id"]))
    [run] = (await idle.get("/api/runs"))["items"]
    assert (run["door"], run["goal"], run["cap_usd"], run["loop_id"]) == ("schedule", "Say hello.", "0.10", None)
    assert (await idle.get(f"/api/runs/{run['id']}"))["spec"]["stop"] == {"max_iterations": 1, "budget_usd": "0.10"}


async def test_others_neither_see_nor_steer_it(idle: Api) -> None:
    loop = await idle.make_loop(visibility="workspace")
    made = await idle.make("/api/schedules", {**EVERY_MINUTE, "loop_id": loop["id"]})
    path = f"/api/schedules/{made['id']}"
    for method, address in (("GET", path), ("GET", f"{path}/firings"), ("POST", f"{path}/pause"), ("DELETE", path)):
        assert (await idle.call(method, address, user=OTHER)).status_code == 404
    assert (await idle.call("POST", f"{path}/pause", user=ADMIN)).status_code == 200


# --- when it is due ---


async def test_a_run_is_its_owners_and_starts_once_however_often_it_is_asked(idle: Api) -> None:
    on = await stage(idle, wanted={"budget_usd": "0.25"})
    await on.tick()
    assert await on.runs() == []  # not due yet
    await on.tick(minutes=1)
    await on.tick()
    [run] = await on.runs()
    assert (run["owner_id"], run["door"], run["cap_usd"]) == (OWNER, "schedule", "0.25")
    assert await on.outcomes() == ["started"]


async def test_ten_that_tick_at_once_start_one_run(idle: Api) -> None:
    """Each with connections of its own, as ten processes have; two real ones are in test_processes.py."""
    on = await stage(idle, overlap="parallel")
    on.clock.later(minutes=1)
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(Database(urls=idle.runtime.database.urls)) for _ in range(10)]
        ticking = [Ticking(runtime=replace(idle.runtime, database=each), clock=on.clock) for each in opened]
        for _ in range(3):
            await asyncio.gather(*(each.tick(UUID(on.id)) for each in ticking))
    assert await on.outcomes() == ["started"]
    assert len(await on.runs()) == 1


@pytest.mark.parametrize(
    ("backfill", "outcomes"),
    [
        ("no", ["missed"] * 9 + ["started"] * 2),
        ("one", ["missed"] * 9 + ["started"] * 2),
        ("all", ["started"] * 11),
    ],
)
async def test_after_a_downtime_with_something_due_now(idle: Api, backfill: str, outcomes: list[str]) -> None:
    """Times of the last 90 seconds are not late; where one of them starts, `one` makes up for nothing."""
    on = await stage(idle, backfill=backfill, overlap="parallel")
    await on.tick(minutes=11)
    assert await on.outcomes() == outcomes


@pytest.mark.parametrize(("backfill", "started"), [("no", 0), ("one", 1), ("all", 3)])
async def test_after_a_downtime_the_backfill_decides(idle: Api, backfill: str, started: int) -> None:
    on = await stage(idle, cron="0 * * * *", backfill=backfill, overlap="parallel")
    await on.tick(hours=3.5)
    found = await on.outcomes()
    assert found.count("started") == started == len(await on.runs())
    assert found.count("missed") == len(found) - started
    await on.tick()
    assert await on.outcomes() == found


async def test_what_is_due_while_it_is_paused_is_not_made_up_for(idle: Api) -> None:
    on = await stage(idle, backfill="all")
    await idle.call("POST", f"/api/schedules/{on.id}/pause")
    await on.tick(minutes=5)
    assert await on.outcomes() == []


async def test_a_run_that_goes_on_is_skipped_queued_behind_or_run_beside(idle: Api) -> None:
    for overlap, waits, then in (
        ("skip", ["started", "skipped", "skipped"], ["started", "skipped", "skipped"]),
        ("queue", ["started", "waiting", "waiting"], ["started", "started", "waiting"]),
        ("parallel", ["started"] * 3, ["started"] * 3),
    ):
        on = await stage(idle, overlap=overlap)
        for _ in range(3):
            await on.tick(minutes=1)
        assert await on.outcomes() == waits
        await on.end_runs()
        await on.tick(seconds=1)
        assert await on.outcomes() == then
        await idle.call("DELETE", f"/api/schedules/{on.id}")


async def test_jitter_puts_a_run_off(idle: Api) -> None:
    on = await stage(idle, jitter_seconds=3600, overlap="parallel")
    await on.tick(minutes=1)
    assert await on.outcomes() == ["waiting"]
    [firing] = await idle.get(f"/api/schedules/{on.id}/firings")
    due = datetime.fromisoformat(firing["due_at"])
    late = jitter(UUID(on.id), due, 3600)
    assert datetime.fromisoformat(firing["start_at"]) == due + timedelta(seconds=late)
    on.clock.now = due + timedelta(seconds=late + 1)
    await on.tick()
    assert (await on.outcomes())[0] == "started"


async def test_it_is_disabled_after_failures_in_a_row(idle: Api) -> None:
    on = await stage(idle, max_failures=2, overlap="parallel")
    await on.tick(minutes=1)
    await on.end_runs("error")
    await on.tick(minutes=1)
    await on.end_runs("error")
    await on.tick(minutes=1)
    schedule = await idle.get(f"/api/schedules/{on.id}")
    assert schedule["status"] == "disabled"
    assert schedule["notice"] == "it failed 2 times in a row; see why, and resume it"
    assert len(await on.runs()) == 2
    assert "schedule_disabled" in [each["action"] for each in (await idle.get("/api/activity"))["items"]]
    resumed = await idle.call("POST", f"/api/schedules/{on.id}/resume")
    assert (resumed.json()["status"], resumed.json()["notice"]) == ("active", "")


async def test_a_loop_that_can_not_start_any_more_is_a_failure_in_words(idle: Api) -> None:
    on = await stage(idle, max_failures=1)
    async with await connect_direct(idle.runtime.database.urls) as c:
        await c.execute("""update agents set spec = '{"model": "openai:no-such-model"}'""")
    await on.tick(minutes=1)
    [firing] = await idle.get(f"/api/schedules/{on.id}/firings")
    assert firing["outcome"] == "failed"
    assert "no price is known for the model 'openai:no-such-model'" in firing["reason"]
    assert (await idle.get(f"/api/schedules/{on.id}"))["status"] == "disabled"


async def test_it_is_disabled_with_a_notice_when_its_loop_goes_or_is_hidden(idle: Api) -> None:
    on = await stage(idle)
    loop = (await idle.get(f"/api/schedules/{on.id}"))["loop_id"]
    assert (await idle.call("DELETE", f"/api/loops/{loop}")).status_code == 204
    schedule = await idle.get(f"/api/schedules/{on.id}")
    assert (schedule["status"], schedule["notice"]) == ("disabled", "its loop 'codes' was deleted")
    assert (await idle.call("POST", f"/api/schedules/{on.id}/resume")).status_code == 422

    shared = await idle.make_loop(user=OTHER, visibility="workspace")
    made = await idle.make("/api/schedules", {**EVERY_MINUTE, "loop_id": shared["id"]})
    await idle.call("PATCH", f"/api/loops/{shared['id']}", {"visibility": "private"}, user=OTHER, if_match="*")
    await set_due(idle, made, on.clock)
    hidden = Stage(idle, on.clock, on.ticking, made["id"])
    await hidden.tick(minutes=2)
    assert "not its owner's to see" in (await idle.get(f"/api/schedules/{made['id']}"))["notice"]
    assert await hidden.runs() == []


async def test_it_is_disabled_with_a_notice_when_its_owner_goes(idle: Api) -> None:
    on = await stage(idle)
    async with await connect_direct(idle.runtime.database.urls) as c:
        await c.execute("delete from profiles where id = %s", (OWNER,))
    await on.tick(minutes=5)
    schedule = await idle.get(f"/api/schedules/{on.id}", user=ADMIN)
    assert (schedule["status"], schedule["notice"]) == ("disabled", "its owner is not of this workspace any more")
    async with await connect_direct(idle.runtime.database.urls) as c:
        rows = await c.execute("select count(*) from loop_runs")
        assert await rows.fetchone() == (0,)
        await c.execute("delete from auth.users where id = %s", (OWNER,))
    assert (await idle.get(f"/api/schedules/{on.id}", user=ADMIN))["owner_id"] is None


async def test_a_look_that_breaks_off_leaves_no_run_without_its_note(idle: Api) -> None:
    """Of three times the second can't be started since the database goes away; then somebody pauses the schedule."""
    on = await stage(idle, backfill="all", overlap="parallel")
    async with await connect_direct(idle.runtime.database.urls) as c:
        await c.execute(
            """
            create function away() returns trigger language plpgsql as $$
            begin
              if (select count(*) from public.loop_runs) = 1 then raise 'away' using errcode = '57P01'; end if;
              return new;
            end $$
            """
        )
        await c.execute("create trigger away before insert on loop_runs for each row execute function away()")
        with pytest.raises(DatabaseAway):
            await on.tick(minutes=3)
        await c.execute("drop trigger away on loop_runs")
    assert await on.outcomes() == ["started", "waiting", "waiting"]
    await idle.call("POST", f"/api/schedules/{on.id}/pause")
    await on.tick()
    assert await on.outcomes() == ["started", "skipped", "skipped"]
    [run] = await on.runs()
    assert run["id"] in [each["run_id"] for each in await idle.get(f"/api/schedules/{on.id}/firings")]


async def test_a_time_gets_one_run_however_many_are_made_for_it(idle: Api) -> None:
    on = await stage(idle)
    await on.tick(minutes=1)
    [firing] = [Firing.model_validate(each) for each in await idle.get(f"/api/schedules/{on.id}/firings")]
    assert firing.run_id

    async def noted(user: str) -> bool:
        async with idle.runtime.database.as_user(user) as c:
            return await schedules.note_started(c, firing, firing.run_id or "")

    assert not await noted(OWNER)  # it is taken
    async with await connect_direct(idle.runtime.database.urls) as c:
        await c.execute("update schedule_firings set outcome = 'waiting', run_id = null")
    assert not await noted(OTHER)  # nobody notes runs for somebody else's schedule
    assert not await noted(ADMIN)
    assert await noted(OWNER)


async def test_what_was_due_while_no_process_lived_is_found_by_the_next_one(api: Api) -> None:
    """The scheduler's look, without a call by the engine."""
    loop = await api.make_loop()
    made = await api.make("/api/schedules", {"name": "hourly", "cron": "0 * * * *", "loop_id": loop["id"]})
    async with await connect_direct(api.runtime.database.urls) as c:
        await c.execute("update schedules set next_due_at = date_trunc('hour', now() - interval '3 hours')")
    await Ticking(runtime=api.runtime).look()
    found = await api.get(f"/api/schedules/{made['id']}/firings")
    assert [each["outcome"] for each in found] == ["started"] + ["missed"] * 3
    assert (await api.finished(found[0]["run_id"]))["door"] == "schedule"
