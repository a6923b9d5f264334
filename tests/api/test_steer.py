"""Starting, cancelling, extending and forking runs; what is documented in docs/runs.md."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from loopwright.service import start
from tests.api.world import GOAL, SLOW, Api
from tests.postgres import ADMIN, OTHER, OWNER


async def test_a_run_from_start_to_end(api: Api) -> None:
    loop = await api.make_loop()
    started = await api.make(f"/api/loops/{loop['id']}/runs", None)
    run = await api.finished(started["run_id"])
    assert (run["stop_reason"], run["iterations"], run["cap_usd"]) == ("max_iterations", 3, "0.50")
    assert run["best"]["candidate"]["text"]
    assert run["spec"]["agent"]["model"] == "practice"
    iterations = await api.get(f"/api/runs/{run['id']}/iterations")
    assert [each["position"] for each in iterations] == [1, 2, 3]
    assert (await api.get(f"/api/runs/{run['id']}/iterations?after=2"))[0]["data"]["number"] == 3
    assert [each["action"] for each in (await api.get("/api/activity"))["items"]][:1] == ["run_started"]


async def test_a_run_keeps_what_its_loop_was(api: Api) -> None:
    loop = await api.make_loop()
    run_id = await api.start(loop, {"goal": GOAL + " Now.", "budget_usd": "0.20", "max_iterations": 2})
    assert (await api.call("DELETE", f"/api/loops/{loop['id']}")).status_code == 204
    run = await api.finished(run_id)
    assert (run["goal"], run["cap_usd"], run["iterations"], run["loop_id"]) == (GOAL + " Now.", "0.20", 2, None)


async def test_a_loop_that_is_deleted_while_its_run_is_prepared_is_not_there(
    idle: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, real = await idle.make_loop(), start.clear

    async def clear(*arguments: Any) -> Any:
        assert (await idle.call("DELETE", f"/api/loops/{loop['id']}")).status_code == 204
        return await real(*arguments)

    monkeypatch.setattr(start, "clear", clear)
    assert (await idle.call("POST", f"/api/loops/{loop['id']}/runs")).status_code == 404
    assert (await idle.get("/api/runs"))["items"] == []


async def test_overrides_are_checked_like_a_loop_file(api: Api) -> None:
    loop = await api.make_loop()
    for body, field in (
        ({"goal": "  "}, "goal"),
        ({"budget_usd": "0"}, "budget_usd"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"model": "openai:no-such-model"}, "agent.model"),
        ({"budget": 1}, "budget"),
    ):
        answer = await api.call("POST", f"/api/loops/{loop['id']}/runs", body)
        assert answer.status_code == 422, (body, answer.text)
        assert {each["field"] for each in answer.json()["errors"]} == {field}, answer.text


async def test_one_key_at_once_starts_one_run(api: Api) -> None:
    loop = await api.make_loop()
    path = f"/api/loops/{loop['id']}/runs"
    answers = await asyncio.gather(
        *(api.call("POST", path, {"max_iterations": 1}, idempotency_key="k1") for _ in range(8))
    )
    assert Counter(answer.status_code for answer in answers) == {202: 8}
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert len((await api.get("/api/runs"))["items"]) == 1

    other_body = await api.call("POST", path, {"max_iterations": 2}, idempotency_key="k1")
    assert other_body.status_code == 422
    assert other_body.json()["errors"][0]["field"] == "Idempotency-Key"
    # Keys belong to their user, and a loop that is gone doesn't change an answer that was given.
    await api.call("DELETE", f"/api/loops/{loop['id']}")
    again = await api.call("POST", path, {"max_iterations": 1}, idempotency_key="k1")
    assert again.json() == answers[0].json()
    assert (await api.call("POST", path, {"max_iterations": 1}, user=OTHER, idempotency_key="k1")).status_code == 404


async def test_a_failed_request_leaves_its_key_free(api: Api) -> None:
    agent = await api.make("/api/agents", {"name": "a", "spec": {"model": "practice"}})
    body = {"name": "l", "agent_id": agent["id"], "spec": {"goal": GOAL}}
    assert (await api.call("POST", "/api/loops", body, idempotency_key="k")).status_code == 422
    body["spec"] = {"goal": GOAL, "stop": {"max_iterations": 1}}
    made = [await api.call("POST", "/api/loops", body, idempotency_key="k") for _ in range(2)]
    assert [each.status_code for each in made] == [201, 201]
    assert made[0].json() == made[1].json()


async def test_cancel_interrupts_within_a_second_and_twice_is_once(api: Api) -> None:
    loop = await api.make_loop(agent=SLOW)
    run_id = await api.start(loop)
    await api.running(run_id)
    begun = asyncio.get_running_loop().time()
    both = await asyncio.gather(*(api.call("POST", f"/api/runs/{run_id}/cancel") for _ in range(2)))
    assert [answer.status_code for answer in both] == [202, 202]
    run = await api.finished(run_id)
    assert asyncio.get_running_loop().time() - begun < 1
    assert run["stop_reason"] == "cancelled"
    again = await api.call("POST", f"/api/runs/{run_id}/cancel")
    assert (again.status_code, again.json()["stop_reason"]) == (202, "cancelled")
    cancels = [each for each in (await api.get("/api/activity"))["items"] if each["action"] == "run_cancelled"]
    assert 1 <= len(cancels) <= 2


async def test_a_queued_run_is_over_at_once_when_cancelled(idle: Api) -> None:
    run_id = await idle.start(await idle.make_loop())
    answer = await idle.call("POST", f"/api/runs/{run_id}/cancel")
    run = answer.json()
    assert (run["status"], run["stop_reason"], run["spent_usd"]) == ("finished", "cancelled", "0")
    lines = (await idle.call("GET", f"/api/runs/{run_id}/export")).text.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["run_finished"]


async def test_extend_goes_on_from_where_it_stood(api: Api) -> None:
    run_id = await api.start(await api.make_loop())
    before = await api.finished(run_id)
    extended = await api.call("POST", f"/api/runs/{run_id}/extend", {"iterations": 2, "budget_usd": "0.25"})
    assert extended.status_code == 202
    after = await api.finished(run_id)
    assert (after["iterations"], after["cap_usd"], after["stop_reason"]) == (5, "0.75", "max_iterations")
    iterations = await api.get(f"/api/runs/{run_id}/iterations")
    assert [each["data"]["number"] for each in iterations] == [1, 2, 3, 4, 5]
    assert float(after["spent_usd"]) > float(before["spent_usd"]) > 0
    events = [json.loads(line) for line in (await api.call("GET", f"/api/runs/{run_id}/export")).text.splitlines()]
    assert [each["seq"] for each in events] == list(range(1, len(events) + 1))
    kinds = Counter(each["type"] for each in events)
    assert (kinds["run_finished"], kinds["run_resumed"], kinds["iteration_started"]) == (2, 1, 5)


async def test_extend_refuses_what_would_change_nothing(api: Api) -> None:
    loop = await api.make_loop(agent=SLOW)
    run_id = await api.start(loop)
    path = f"/api/runs/{run_id}/extend"
    assert (await api.call("POST", path, {"iterations": 1})).status_code == 409
    await api.running(run_id)
    assert (await api.call("POST", path, {"iterations": 1})).status_code == 409
    await api.call("POST", f"/api/runs/{run_id}/cancel")
    await api.finished(run_id)
    no_such_limit = await api.call("POST", path, {"seconds": 5})
    assert no_such_limit.json()["errors"] == [{"field": "seconds", "message": "the run has no max_seconds to add to"}]

    done = await api.start(await api.make_loop())
    await api.finished(done)
    nothing = await api.call("POST", f"/api/runs/{done}/extend", {})
    assert (nothing.status_code, nothing.json()["errors"][0]["field"]) == (422, "")
    useless = await api.call("POST", f"/api/runs/{done}/extend", {"budget_usd": "1"})
    assert useless.status_code == 422
    assert "max_iterations" in useless.json()["detail"]


async def test_a_cancelled_run_goes_on_with_what_it_has_left(api: Api) -> None:
    """Pausing is cancelling, and going on is extending by nothing."""
    slow = {"model": "practice", "settings": {"practice_pace": 0.3}}
    run_id = await api.start(await api.make_loop(agent=slow))
    async with asyncio.timeout(30):
        while not (await api.get(f"/api/runs/{run_id}"))["iterations"]:
            await asyncio.sleep(0.01)
    await api.call("POST", f"/api/runs/{run_id}/cancel")
    paused = await api.finished(run_id)
    assert (paused["stop_reason"], paused["iterations"] < 3) == ("cancelled", True)
    assert (await api.call("POST", f"/api/runs/{run_id}/extend", {})).status_code == 202
    run = await api.finished(run_id)
    assert (run["stop_reason"], run["iterations"], run["cap_usd"]) == ("max_iterations", 3, paused["cap_usd"])
    iterations = await api.get(f"/api/runs/{run_id}/iterations")
    assert [each["data"]["number"] for each in iterations] == [1, 2, 3]


async def test_cancel_and_extend_while_an_extended_run_goes_on(api: Api) -> None:
    run_id = await api.start(await api.make_loop())
    before = await api.finished(run_id)
    async with api.runtime.database.service_session() as connection:  # from here on its agent takes its time
        await connection.execute(
            "update public.loop_runs set spec = jsonb_set(spec, '{agent,settings,practice_pace}', '30')"
        )
    assert (await api.call("POST", f"/api/runs/{run_id}/extend", {"iterations": 2})).status_code == 202
    await api.running(run_id)
    first, again, second = await asyncio.gather(
        api.call("POST", f"/api/runs/{run_id}/cancel"),
        api.call("POST", f"/api/runs/{run_id}/extend", {"iterations": 1}),
        api.call("POST", f"/api/runs/{run_id}/cancel"),
    )
    assert (first.status_code, second.status_code) == (202, 202)
    if again.status_code == 202:  # it came after the end
        await api.call("POST", f"/api/runs/{run_id}/cancel")
    else:
        assert again.status_code == 409
    run = await api.finished(run_id)
    assert run["stop_reason"] == "cancelled"
    iterations = await api.get(f"/api/runs/{run_id}/iterations")
    assert [each["data"]["failure"] for each in iterations[:3]] == [None] * 3
    assert {each["data"]["failure"] for each in iterations[3:]} <= {"interrupted: cancelled"}
    assert run["best"] == before["best"]


async def test_two_extends_at_once_are_one(idle: Api) -> None:
    run_id = await idle.start(await idle.make_loop())
    await idle.call("POST", f"/api/runs/{run_id}/cancel")
    path = f"/api/runs/{run_id}/extend"
    answers = await asyncio.gather(*(idle.call("POST", path, {"iterations": 1}) for _ in range(2)))
    assert sorted(answer.status_code for answer in answers) == [202, 409]
    run = await idle.get(f"/api/runs/{run_id}")
    assert (run["status"], run["spec"]["stop"]["max_iterations"]) == ("queued", 4)
    # Cancelling what was just extended ends it again, and it can be extended once more.
    assert (await idle.call("POST", f"/api/runs/{run_id}/cancel")).json()["stop_reason"] == "cancelled"
    assert (await idle.call("POST", path, {"iterations": 1})).status_code == 202


async def test_fork_begins_from_an_iteration_and_pays_nothing_again(api: Api) -> None:
    source = await api.start(await api.make_loop())
    parent = await api.finished(source)
    forked = await api.make(f"/api/runs/{source}/fork", {"iteration": 2, "max_iterations": 4, "budget_usd": "0.10"})
    run = await api.finished(forked["run_id"])
    assert (run["parent_run_id"], run["forked_from_iteration"], run["cap_usd"]) == (source, 2, "0.10")
    assert (run["iterations"], run["stop_reason"]) == (4, "max_iterations")
    mine = await api.get(f"/api/runs/{run['id']}/iterations")
    theirs = await api.get(f"/api/runs/{source}/iterations")
    assert [each["data"]["candidate"] for each in mine[:2]] == [each["data"]["candidate"] for each in theirs[:2]]
    assert [each["data"]["cost_usd"] for each in mine[:2]] == ["0", "0"]
    spent = sum(float(each["data"]["cost_usd"]) for each in mine)
    assert abs(spent - float(run["spent_usd"])) < 1e-9
    events = [json.loads(line) for line in (await api.call("GET", f"/api/runs/{run['id']}/export")).text.splitlines()]
    assert [each["type"] for each in events[:4]] == [
        "run_started", "iteration_finished", "iteration_finished", "run_resumed",
    ]  # fmt: skip
    assert {each["run_id"] for each in events} == {run["id"]}
    assert events[0]["forked_from"] == {"run_id": source, "iteration": 2}  # the journal tells where it comes from
    assert (await api.get(f"/api/runs/{source}"))["spent_usd"] == parent["spent_usd"]
    too_many = await api.call("POST", f"/api/runs/{source}/fork", {"iteration": 4})
    assert too_many.json()["errors"][0]["field"] == "iteration"
    at_its_end = await api.call("POST", f"/api/runs/{source}/fork", {"iteration": 3})
    assert at_its_end.status_code == 422


async def test_others_see_a_shared_loops_runs_but_do_not_steer_them(api: Api) -> None:
    loop = await api.make_loop(visibility="workspace")
    theirs = await api.start(loop, user=OTHER)
    await api.finished(theirs, user=OTHER)
    run_id = await api.start(loop)
    await api.finished(run_id)
    assert {run["id"] for run in (await api.get("/api/runs", user=OTHER))["items"]} == {theirs, run_id}
    assert {run["id"] for run in (await api.get("/api/runs?mine=true", user=OTHER))["items"]} == {theirs}
    for verb, body in (("cancel", None), ("extend", {"iterations": 1})):
        assert (await api.call("POST", f"/api/runs/{run_id}/{verb}", body, user=OTHER)).status_code == 403, verb
    assert (await api.call("POST", f"/api/runs/{run_id}/extend", {"iterations": 1}, user=ADMIN)).status_code == 202
    await api.finished(run_id)
    fork = await api.make(f"/api/runs/{run_id}/fork", {"iteration": 1}, user=OTHER)
    assert (await api.finished(fork["run_id"], user=OTHER))["owner_id"] == OTHER


async def test_a_shared_loop_whose_agent_was_made_private_says_so(api: Api) -> None:
    loop = await api.make_loop(visibility="workspace")
    agent = await api.get(f"/api/agents/{loop['agent_id']}")
    answer = await api.call("PATCH", f"/api/agents/{agent['id']}", {"visibility": "private"}, if_match='"1"')
    assert answer.status_code == 200
    refused = await api.call("POST", f"/api/loops/{loop['id']}/runs", user=OTHER)
    assert refused.status_code == 409
    assert "private to its owner" in refused.json()["detail"]


async def test_what_is_private_does_not_exist_for_others(api: Api) -> None:
    loop = await api.make_loop()
    run_id = await api.start(loop)
    await api.finished(run_id)
    nothing = "00000000-0000-4000-8000-0000000000ff"
    absent = f"run_{'0' * 21}"
    for method, path, body in (
        ("GET", "/api/loops/{loop}", None),
        ("PATCH", "/api/loops/{loop}", {"name": "mine now"}),
        ("DELETE", "/api/loops/{loop}", None),
        ("POST", "/api/loops/{loop}/runs", None),
        ("GET", "/api/agents/{agent}", None),
        ("GET", "/api/runs/{run}", None),
        ("GET", "/api/runs/{run}/iterations", None),
        ("GET", "/api/runs/{run}/events", None),
        ("GET", "/api/runs/{run}/export", None),
        ("POST", "/api/runs/{run}/cancel", None),
        ("POST", "/api/runs/{run}/extend", {"iterations": 1}),
        ("POST", "/api/runs/{run}/fork", {"iteration": 1}),
    ):
        theirs = path.format(loop=loop["id"], agent=loop["agent_id"], run=run_id)
        nobodys = path.format(loop=nothing, agent=nothing, run=absent)
        answers = [await api.call(method, each, body, user=OTHER, if_match='"1"') for each in (theirs, nobodys)]
        assert [answer.status_code for answer in answers] == [404, 404], path
        assert answers[0].content == answers[1].content, path
        assert answers[0].headers["content-type"] == "application/problem+json"
    assert (await api.get(f"/api/runs/{run_id}", user=OWNER))["status"] == "finished"
