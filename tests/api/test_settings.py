"""The settings of the workspace: hosts that may be reached, prices of models, a monthly cap for all."""

from __future__ import annotations

from typing import Any

from tests.api.world import LOOP, Api
from tests.postgres import ADMIN, OWNER

PATH = "/api/settings"
UNPRICED: dict[str, Any] = {"model": "openai:made-of-air", "base_url": "https://example.com/v1"}


async def change(api: Api, version: str = "*", **fields: object) -> Any:
    answer = await api.call("PATCH", PATH, fields, user=ADMIN, if_match=version)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_members_read_and_admins_change(idle: Api) -> None:
    before = await idle.get(PATH)
    assert (before["allow_hosts"], before["prices"], before["monthly_cap_usd"]) == ([], {}, None)
    refused = await idle.call("PATCH", PATH, {"monthly_cap_usd": "1"}, if_match="*")
    assert refused.status_code == 403 and (await idle.get(PATH)) == before
    price = {"input": "0.50", "output": "2"}
    await change(idle, prices={"openai:mine": price}, allow_hosts=["inside:8443", "inside:8443"])
    changed = await change(idle, monthly_cap_usd="5")
    assert changed["allow_hosts"] == ["inside:8443"] and changed["monthly_cap_usd"] == "5"
    assert changed["prices"] == {"openai:mine": {**price, "cached_input": None, "cache_write": None}}
    assert (await change(idle, monthly_cap_usd=None))["monthly_cap_usd"] is None
    log = await idle.get("/api/activity", user=ADMIN)
    assert [each["action"] for each in log["items"]][:2] == ["settings_changed"] * 2


async def test_two_tabs_do_not_overwrite_each_other(idle: Api) -> None:
    version = (await idle.call("GET", PATH, user=ADMIN)).headers["etag"]
    await change(idle, version, monthly_cap_usd="5")
    late = await idle.call("PATCH", PATH, {"monthly_cap_usd": "6"}, user=ADMIN, if_match=version)
    assert late.status_code == 412
    assert (await idle.call("PATCH", PATH, {"monthly_cap_usd": "6"}, user=ADMIN)).status_code == 428


async def test_what_can_not_be_is_refused(idle: Api) -> None:
    for fields, place in (
        ({"allow_hosts": ["http://inside/"]}, "allow_hosts"),
        ({"prices": {"a b": {"input": "1", "output": "1"}}}, "prices"),
        ({"prices": {"x": {"input": "1"}}}, "prices.x.output"),
        ({"prices": {"x": {"input": "-1", "output": "1"}}}, "prices.x.input"),
        ({"monthly_cap_usd": "NaN"}, "monthly_cap_usd"),
        ({"surprise": 1}, "surprise"),
    ):
        answer = await idle.call("PATCH", PATH, fields, user=ADMIN, if_match="*")
        assert answer.status_code == 422, fields
        assert answer.json()["errors"][0]["field"] == place


async def test_a_model_that_nobody_prices_needs_a_price_here_or_in_its_loop(idle: Api) -> None:
    refused = await idle.call("POST", "/api/agents", {"name": "a", "spec": UNPRICED})
    assert refused.status_code == 422 and "no price is known" in refused.text
    table = {"openai:made-of-air": {"input": "1", "output": "2"}}
    await change(idle, prices=table)
    here = await idle.make_loop(agent=UNPRICED, name="here")
    own = await idle.make_loop(agent=UNPRICED, name="own", prices={"made-of-air": {"input": "10", "output": "20"}})
    # The loop's own price goes first, whatever form of the name it uses.
    assert float(own["worst_case_usd"]) == 10 * float(here["worst_case_usd"]) > 0


async def test_the_workspaces_cap_is_for_those_without_their_own(api: Api) -> None:
    await change(api, monthly_cap_usd="0.00001")
    assert [each["cap_usd"] for each in await api.get("/api/usage/month")] == ["0.00001"]
    run = await api.finished(await api.start(await api.make_loop()))
    assert (run["stop_reason"], float(run["spent_usd"])) == ("budget", 0)
    await api.call("PATCH", f"/api/people/{OWNER}", {"monthly_cap_usd": "9"}, user=ADMIN)
    assert (await api.finished(await api.start(await api.make_loop())))["stop_reason"] == "max_iterations"


async def test_an_admin_allows_a_host_that_is_not_public(idle: Api) -> None:
    evaluator = {"kind": "http", "url": "http://127.0.0.1:9/score"}
    agent = await idle.make("/api/agents", {"name": "a", "spec": {"model": "practice"}})
    body = {"name": "l", "agent_id": agent["id"], "spec": {**LOOP, "evaluator": evaluator}}
    refused = await idle.call("POST", "/api/loops", body)
    assert refused.status_code == 422 and "PATCH /api/settings" in refused.text
    await change(idle, allow_hosts=["127.0.0.1:9"])
    assert (await idle.call("POST", "/api/loops", body)).status_code == 201
