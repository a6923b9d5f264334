"""What endpoints are told, how often, and what comes of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, get_args
from uuid import UUID

import pytest

from loopwright.core.models import StopReason
from loopwright.service.delivering import JITTER, PLAN, Delivering
from loopwright.service.pruning import Pruning
from loopwright.store.database import Database, connect_direct
from loopwright.store.endpoints import Due
from tests.api.world import AGENT, Api
from tests.postgres import ADMIN, OTHER, OWNER

from .receiver import Message, Receiver, Reply
from .world import change, deliveries, end_a_run, make_endpoint, send_all, settled


async def test_who_has_an_endpoint_is_told_of_its_runs_end(api: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(api, receiver)
    loop = await api.make_loop()
    run = await api.finished(await api.start(loop))
    [message] = await receiver.heard(1)
    assert message.is_signed_with(endpoint["secret"])
    assert not message.is_signed_with("whsec_" + "A" * 43 + "=")
    assert message.headers["content-type"] == "application/json"
    told = message.data
    assert (told["type"], told["data"]["run_id"], told["data"]["loop_id"]) == ("run.finished", run["id"], loop["id"])
    for name in ("stop_reason", "sentence", "iterations", "spent_usd", "cap_usd", "door", "owner_id", "loop_name"):
        assert told["data"][name] == run[name], name
    best = run["best"]
    assert told["data"]["best"] == {
        "attempt": 1, "number": best["number"], "score": run["best_score"], "text": best["candidate"]["text"],
        "is_whole": True,
    }  # fmt: skip
    [delivery] = await settled(api, endpoint)
    assert message.id == f"msg_{UUID(delivery['id']).hex}"
    assert (delivery["state"], delivery["attempts"], delivery["run_id"]) == ("delivered", 1, run["id"])
    last = delivery["last"]
    assert (last["status"], last["answer"], last["error"], last["seconds"] >= 0) == (200, "thanks", "", True)


async def test_it_is_told_whatever_ended_the_run(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    loop, run = await idle.make_loop(), ""
    for reason in get_args(StopReason):
        run = await idle.start(loop)
        await change(idle, "update loop_runs set status = 'finished', stop_reason = %s where id = %s", reason, run)
    await send_all(idle)
    assert {each.data["data"]["stop_reason"] for each in receiver.messages} == set(get_args(StopReason))
    assert len({each.id for each in receiver.messages}) == len(get_args(StopReason))
    # A run that is extended ends again, which is news.
    await change(idle, "update loop_runs set status = 'queued', stop_reason = null where id = %s", run)
    await change(idle, "update loop_runs set status = 'finished', stop_reason = 'time' where id = %s", run)
    assert [each["state"] for each in await deliveries(idle, endpoint)][:2] == ["waiting", "delivered"]


async def test_a_run_that_can_not_be_told_of_does_not_end(idle: Api, receiver: Receiver) -> None:
    """The message and the end are one transaction: there is neither without the other."""
    endpoint = await make_endpoint(idle, receiver)
    run = await idle.start(await idle.make_loop())
    async with await connect_direct(idle.runtime.database.urls) as c, c.transaction(force_rollback=True):
        await c.execute("update loop_runs set status = 'finished', stop_reason = 'time' where id = %s", (run,))
        rows = await c.execute("select run_id from deliveries")
        assert await rows.fetchall() == [(run,)]
    assert await deliveries(idle, endpoint) == []
    assert (await idle.get(f"/api/runs/{run}"))["status"] == "queued"


async def test_it_is_sent_again_after_a_failure_with_the_same_id(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    receiver.answers(500, 503, 204, body=b"try later")
    await send_all(idle)
    assert len({(each.id, each.body) for each in receiver.messages}) == 1
    assert all(each.is_signed_with(endpoint["secret"]) for each in receiver.messages)
    [delivery] = await deliveries(idle, endpoint)
    details = await idle.get(f"/api/endpoints/{endpoint['id']}/deliveries/{delivery['id']}")
    assert [(each["number"], each["status"]) for each in details["log"]] == [(1, 500), (2, 503), (3, 204)]
    assert details["log"][0]["answer"] == "try later"
    assert details["payload"].encode() == receiver.messages[0].body
    assert (details["state"], details["next_at"]) == ("delivered", None)
    assert (await idle.get(f"/api/endpoints/{endpoint['id']}"))["active"]


async def test_it_waits_as_planned(idle: Api, receiver: Receiver) -> None:
    """5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h, each up to a fifth longer; then no more."""
    await make_endpoint(idle, receiver)
    await end_a_run(idle)
    receiver.answers(500)
    delivering = Delivering(runtime=idle.runtime)
    assert [5, 300, 1800] + [hours * 3600 for hours in (2, 5, 10, 14, 20, 24)] == list(PLAN)
    async with await connect_direct(idle.runtime.database.urls) as c:
        for wait in PLAN:
            assert await delivering.look() == 1
            await delivering.settled()
            assert await delivering.look() == 0  # not yet
            rows = await c.execute("select extract(epoch from next_at - now()), state from deliveries")
            row = await rows.fetchone()
            assert row and row[1] == "waiting"
            assert wait - 30 < row[0] <= wait * (1 + JITTER)
            await c.execute("update deliveries set next_at = now()")
        assert await delivering.look() == 1
        await delivering.settled()
        rows = await c.execute("select state, next_at, attempts from deliveries")
        assert await rows.fetchone() == ("failed", None, 10)


def test_those_that_failed_together_do_not_come_back_together() -> None:
    delivering = Delivering(runtime=None)  # pyright: ignore[reportArgumentType]
    nothing: Any = None
    due = Due(UUID(int=0), UUID(int=1), UUID(int=2), "run.finished", "{}", 3, 3, "", b"", b"", "", *[nothing] * 3)
    waits = [delivering.wait_after(replace(due, id=UUID(int=number))) or 0 for number in range(100)]
    assert len(set(waits)) == 100
    assert all(1800 <= each <= 2160 for each in waits)
    assert max(waits) - min(waits) > 180
    assert delivering.wait_after(replace(due, event="endpoint.test")) is None


async def test_one_that_nothing_reaches_is_switched_off_with_a_notice(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    path = f"/api/endpoints/{endpoint['id']}"
    await end_a_run(idle)
    receiver.answers(500)
    await send_all(idle)
    [delivery] = await deliveries(idle, endpoint)
    assert (delivery["state"], delivery["attempts"]) == ("failed", 3)
    off = await idle.get(path)
    assert (off["active"], "was tried 3 times" in off["notice"]) == (False, True)
    assert "endpoint_disabled" in [each["action"] for each in (await idle.get("/api/activity"))["items"]]
    # Meanwhile it is told of nothing, and nothing can be sent to it.
    await end_a_run(idle)
    assert len(await deliveries(idle, endpoint)) == 1
    for address in (f"{path}/test", f"{path}/deliveries/{delivery['id']}/again"):
        assert (await idle.call("POST", address)).status_code == 409
    on = await idle.call("PATCH", path, {"active": True}, if_match="*")
    assert (on.json()["active"], on.json()["notice"]) == (True, "")
    receiver.answers(200)
    again = await idle.call("POST", f"{path}/deliveries/{delivery['id']}/again")
    assert (again.status_code, again.json()["state"]) == (202, "waiting")
    await send_all(idle)
    [delivery] = await deliveries(idle, endpoint)
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 4)
    assert len({each.id for each in receiver.messages}) == 1, "who took it already can tell by its id"


async def test_one_that_something_reaches_stays_on(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    unlucky = await end_a_run(idle)

    async def reply(message: Message) -> Reply:
        return (500 if message.data["data"]["run_id"] == unlucky else 200), {}, b""

    receiver.reply = reply
    await send_all(idle, rounds=1)
    await end_a_run(idle)
    await send_all(idle)
    assert sorted(each["state"] for each in await deliveries(idle, endpoint)) == ["delivered", "failed"]
    assert (await idle.get(f"/api/endpoints/{endpoint['id']}"))["active"]


async def test_one_that_says_it_is_gone_is_switched_off_at_once(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    receiver.answers(410)
    await send_all(idle)
    assert len(receiver.messages) == 1
    off = await idle.get(f"/api/endpoints/{endpoint['id']}")
    assert (off["active"], "410" in off["notice"]) == (False, True)


# --- who is told of what ---


async def test_only_of_the_runs_that_it_may_and_wants_to_hear_of(idle: Api, receiver: Receiver) -> None:
    loop, other_loop = await idle.make_loop(), await idle.make_loop(name="other")
    own = await make_endpoint(idle, receiver)
    of_loop = await make_endpoint(idle, receiver, loop_id=loop["id"])
    others = await make_endpoint(idle, receiver, user=OTHER)
    admins = await make_endpoint(idle, receiver, user=ADMIN)
    everybody = await make_endpoint(idle, receiver, user=ADMIN, scope="workspace")
    runs = [await end_a_run(idle, loop), await end_a_run(idle, other_loop)]

    async def told(endpoint: Any, user: str) -> set[str]:
        return {each["run_id"] for each in await deliveries(idle, endpoint, user=user)}

    assert await told(own, OWNER) == await told(everybody, ADMIN) == set(runs)
    assert await told(of_loop, OWNER) == {runs[0]}
    assert await told(others, OTHER) == await told(admins, ADMIN) == set()
    cleared = await idle.call("PATCH", f"/api/endpoints/{of_loop['id']}", {"loop_id": None}, if_match="*")
    assert cleared.json()["loop_id"] is None
    await idle.call("PATCH", f"/api/endpoints/{own['id']}", {"active": False}, if_match="*")
    third = await end_a_run(idle, other_loop)
    assert third in await told(of_loop, OWNER)
    assert third not in await told(own, OWNER)


async def test_an_answer_in_a_conversation_is_no_run(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    everybody = await make_endpoint(idle, receiver, user=ADMIN, scope="workspace")
    agent = await idle.make("/api/agents", {"name": "a", "spec": AGENT})
    thread = await idle.make("/api/threads", {"agent_id": agent["id"]})
    for status, reason in (("queued", None), ("finished", "max_iterations")):
        statement = "update loop_runs set status = %s, stop_reason = %s where id = %s"
        await change(idle, statement, status, reason, thread["run_id"])
    assert await deliveries(idle, endpoint) == await deliveries(idle, everybody, user=ADMIN) == []


async def test_who_loses_its_rights_is_told_nothing_more(idle: Api, receiver: Receiver) -> None:
    everybody = await make_endpoint(idle, receiver, user=ADMIN, scope="workspace")
    own = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    await change(idle, "update profiles set role = 'admin' where id = %s", OTHER)
    await change(idle, "update profiles set role = 'member' where id = %s", ADMIN)
    await change(idle, "delete from profiles where id = %s", OWNER)
    await send_all(idle)
    assert receiver.messages == [], "what was due by then is not sent either"
    # Who was an admin once can't read what others' runs came to, though the endpoint is its own.
    assert await deliveries(idle, everybody, user=ADMIN) == []
    assert len(await deliveries(idle, everybody, user=OTHER)) == 1
    await change(idle, "update auth.users set banned_until = now() + interval '1 day' where id = %s", ADMIN)
    await end_a_run(idle, user=OTHER)
    assert len(await deliveries(idle, everybody, user=OTHER)) == 1
    assert len(await deliveries(idle, own, user=OTHER)) == 1
    # Back again, it is sent what waited.
    await change(idle, "insert into profiles (id) values (%s)", OWNER)
    await send_all(idle)
    assert [each.is_signed_with(own["secret"]) for each in receiver.messages] == [True]


# --- secrets ---


async def test_after_a_new_secret_both_hold_for_a_day(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    renewed = (await idle.call("POST", f"/api/endpoints/{endpoint['id']}/secret")).json()
    assert renewed["secret"] != endpoint["secret"]
    assert renewed["old_until"] is not None
    await end_a_run(idle)
    await send_all(idle)
    [message] = receiver.messages
    assert message.is_signed_with(renewed["secret"])
    assert message.is_signed_with(endpoint["secret"])
    await change(idle, "update endpoints set old_until = now()")
    await end_a_run(idle)
    await send_all(idle)
    assert receiver.messages[1].is_signed_with(renewed["secret"])
    assert not receiver.messages[1].is_signed_with(endpoint["secret"])


# --- where it goes ---


async def test_what_may_not_be_reached_is_not_reached(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    strict = replace(idle.runtime, settings=idle.runtime.settings.model_copy(update={"egress_allow": frozenset()}))
    delivering = Delivering(runtime=strict, plan=())
    await delivering.look()
    await delivering.settled()
    assert receiver.messages == []
    [delivery] = await deliveries(idle, endpoint)
    assert delivery["last"]["status"] is None
    assert "loopback address and not a public one" in delivery["last"]["error"]


async def test_redirects_are_not_followed(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    receiver.answers(307, location="/elsewhere")
    await send_all(idle, plan=())
    assert receiver.paths == ["/hook"]
    [delivery] = await deliveries(idle, endpoint)
    assert (delivery["state"], "redirects aren't followed" in delivery["last"]["error"]) == ("failed", True)


@pytest.mark.parametrize(
    ("body", "headers", "kept"),
    [
        (b"x" * 100_000, {}, "x" * 2000),
        (b"\x1f\x8b\x00", {"content_encoding": "gzip"}, "\x1f\ufffd\ufffd"),
        (b"\xff<script>", {}, "\ufffd<script>"),
    ],
    ids=["large", "compressed", "no text"],
)
async def test_whatever_is_answered_with_success_is_a_success(
    idle: Api, receiver: Receiver, body: bytes, headers: dict[str, str], kept: str
) -> None:
    endpoint = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    receiver.answers(200, body=body, **headers)
    await send_all(idle)
    [delivery] = await deliveries(idle, endpoint)
    assert (delivery["state"], delivery["last"]["answer"]) == ("delivered", kept)


async def test_a_test_is_sent_once(idle: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(idle, receiver)
    made = await idle.call("POST", f"/api/endpoints/{endpoint['id']}/test")
    assert (made.status_code, made.json()["event"], made.json()["state"]) == (202, "endpoint.test", "waiting")
    receiver.answers(500)
    await send_all(idle)
    [message] = receiver.messages
    assert message.data["type"] == "endpoint.test"
    assert message.is_signed_with(endpoint["secret"])
    [delivery] = await deliveries(idle, endpoint)
    assert (delivery["state"], delivery["attempts"]) == ("failed", 1)
    assert (await idle.get(f"/api/endpoints/{endpoint['id']}"))["active"]


# --- several at once ---


async def test_a_receiver_that_hangs_holds_up_neither_runs_nor_others(api: Api, receiver: Receiver) -> None:
    stuck = asyncio.Event()

    async def reply(message: Message) -> Reply:
        if message.data["data"]["owner_id"] == OWNER:
            await stuck.wait()
        return 200, {}, b""

    receiver.reply = reply
    slow = await make_endpoint(api, receiver)
    quick = await make_endpoint(api, receiver, user=OTHER)
    loop, others = await api.make_loop(), await api.make_loop(user=OTHER)
    for _ in range(6):
        assert (await api.finished(await api.start(loop)))["stop_reason"] == "max_iterations"
    await api.finished(await api.start(others, user=OTHER), user=OTHER)
    async with asyncio.timeout(30):
        while (await deliveries(api, quick, user=OTHER))[0]["state"] != "delivered":
            await asyncio.sleep(0.02)
    assert {each["state"] for each in await deliveries(api, slow)} == {"waiting"}
    stuck.set()
    assert {each["state"] for each in await settled(api, slow)} == {"delivered"}


async def test_of_two_that_send_each_message_is_sent_by_one(idle: Api, receiver: Receiver) -> None:
    endpoints = [await make_endpoint(idle, receiver) for _ in range(5)]
    loop = await idle.make_loop()
    for _ in range(6):
        await end_a_run(idle, loop)
    async with AsyncExitStack() as stack:
        senders: list[Delivering] = []
        for _ in range(2):
            database = await stack.enter_async_context(Database(urls=idle.runtime.database.urls))
            senders.append(Delivering(runtime=replace(idle.runtime, database=database), look_seconds=0.01))
        for each in senders:
            await stack.enter_async_context(each)
        await receiver.heard(30)
        for endpoint in endpoints:
            assert {each["attempts"] for each in await settled(idle, endpoint)} == {1}
    assert len(receiver.messages) == len({each.id for each in receiver.messages}) == 30


async def test_what_was_told_is_forgotten_after_a_month(api: Api, receiver: Receiver) -> None:
    endpoint = await make_endpoint(api, receiver)
    loop = await api.make_loop()
    for _ in range(2):
        await api.finished(await api.start(loop))
    kept, _ = await settled(api, endpoint)
    await change(api, "update deliveries set created_at = now() - interval '31 days' where id <> %s", kept["id"])
    await Pruning(database=api.runtime.database, engine_days=1).prune()
    assert [each["id"] for each in await deliveries(api, endpoint)] == [kept["id"]]
