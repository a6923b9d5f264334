"""Agents, tools and loops: what is stored, what is refused, and two tabs at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.api.world import AGENT, GOAL, LOOP, Api
from tests.postgres import ADMIN, OTHER

TOOL: dict[str, Any] = {
    "kind": "http", "name": "search", "description": "Searches.", "method": "GET", "url": "https://8.8.8.8/s",
}  # fmt: skip


async def test_a_tool_an_agent_and_a_loop_are_stored_read_changed_and_deleted(idle: Api) -> None:
    tool = await idle.make("/api/tools", {"spec": TOOL})
    assert (tool["name"], tool["kind"], tool["active"], tool["visibility"]) == ("search", "http", True, "private")
    agent = await idle.make("/api/agents", {"name": "a", "spec": AGENT, "tool_ids": [tool["id"]]})
    loop = await idle.make("/api/loops", {"name": "l", "agent_id": agent["id"], "spec": LOOP})
    assert float(loop["worst_case_usd"]) > 0
    for kind, made in (("tools", tool), ("agents", agent), ("loops", loop)):
        answer = await idle.call("GET", f"/api/{kind}/{made['id']}")
        assert answer.json() == made
        assert answer.headers["etag"] == '"1"'
        assert made["id"] in [each["id"] for each in (await idle.get(f"/api/{kind}"))["items"]]
    changed = await idle.call("PATCH", f"/api/loops/{loop['id']}", {"name": "m"}, if_match='"1"')
    assert (changed.json()["name"], changed.json()["spec"], changed.headers["etag"]) == ("m", loop["spec"], '"2"')

    for kind, made, user in (("tools", tool, "a"), ("agents", agent, "m")):
        used = await idle.call("DELETE", f"/api/{kind}/{made['id']}")
        assert used.status_code == 409
        assert repr(user) in used.json()["detail"]
    for kind, made in (("loops", loop), ("agents", agent), ("tools", tool)):
        assert (await idle.call("DELETE", f"/api/{kind}/{made['id']}", if_match='"9"')).status_code == 412
        assert (await idle.call("DELETE", f"/api/{kind}/{made['id']}")).status_code == 204
        assert (await idle.call("GET", f"/api/{kind}/{made['id']}")).status_code == 404
    actions = [each["action"] for each in (await idle.get("/api/activity"))["items"]]
    assert actions == [
        "tool_deleted", "agent_deleted", "loop_deleted", "loop_changed",
        "loop_created", "agent_created", "tool_created",
    ]  # fmt: skip


async def test_two_tabs_can_not_overwrite_each_other(idle: Api) -> None:
    loop = await idle.make_loop()
    path = f"/api/loops/{loop['id']}"
    assert (await idle.call("PATCH", path, {"name": "x"})).status_code == 428
    tabs = await asyncio.gather(*(idle.call("PATCH", path, {"name": name}, if_match='"1"') for name in ("x", "y")))
    assert sorted(answer.status_code for answer in tabs) == [200, 412]
    assert (await idle.get(path))["version"] == 2
    assert (await idle.call("PATCH", path, {"name": "z"}, if_match="*")).status_code == 200
    assert (await idle.call("PATCH", path, {"name": "z"}, if_match="W/3")).status_code == 422


async def test_what_is_shared_is_used_but_not_changed(idle: Api) -> None:
    loop = await idle.make_loop(visibility="workspace")
    path = f"/api/loops/{loop['id']}"
    assert (await idle.get(path, user=OTHER))["id"] == loop["id"]
    assert (await idle.call("PATCH", path, {"name": "x"}, user=OTHER, if_match='"1"')).status_code == 403
    assert (await idle.call("DELETE", path, user=OTHER)).status_code == 403
    assert (await idle.call("PATCH", path, {"name": "x"}, user=ADMIN, if_match='"1"')).status_code == 200
    builtin = next(each for each in (await idle.get("/api/tools", user=OTHER))["items"] if each["name"] == "loop_done")
    assert builtin["is_builtin"]
    for user in (OTHER, ADMIN):
        assert (await idle.call("DELETE", f"/api/tools/{builtin['id']}", user=user)).status_code == 403


async def test_sharing_goes_from_the_inside_out(idle: Api) -> None:
    tool = await idle.make("/api/tools", {"spec": TOOL})
    body = {"name": "a", "spec": AGENT, "tool_ids": [tool["id"]], "visibility": "workspace"}
    refused = await idle.call("POST", "/api/agents", body)
    assert refused.json()["errors"][0]["field"] == "tool_ids.0"
    agent = await idle.make("/api/agents", {**body, "visibility": "private"})
    loop = {"name": "l", "agent_id": agent["id"], "spec": LOOP, "visibility": "workspace"}
    assert (await idle.call("POST", "/api/loops", loop)).json()["errors"][0]["field"] == "agent_id"
    theirs = {"name": "l", "agent_id": agent["id"], "spec": LOOP}
    assert (await idle.call("POST", "/api/loops", theirs, user=OTHER)).json()["errors"][0]["field"] == "agent_id"


LOOP_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"goal": GOAL}, "spec.stop"),
    ({"goal": " ", "stop": {"max_iterations": 1}}, "spec.goal"),
    ({"goal": GOAL, "stop": {"target_score": 1}}, "spec.stop"),
    ({"goal": GOAL, "stop": {"max_iterations": True}}, "spec.stop.max_iterations"),
    ({"goal": GOAL, "stop": {"max_iterations": 1}, "evaluators": {}}, "spec.evaluators"),
    ({"goal": GOAL, "stop": {"max_iterations": 1}, "name": "n"}, "spec.name"),
    ({"goal": GOAL, "stop": {"max_iterations": 1}, "agent": {"model": "practice"}}, "spec.agent"),
    ({"goal": GOAL, "stop": {"max_iterations": 1}, "allow_hosts": ["10.0.0.1"]}, "spec.allow_hosts"),
    ({"goal": GOAL, "stop": {"max_iterations": 1}, "evaluator": {"kind": "command", "run": ["id"]}}, "spec.evaluator"),
    ({"goal": GOAL, "stop": {"max_iterations": 1}, "holdout": {"kind": "python", "function": "os:x"}}, "spec.holdout"),
    (
        {
            "goal": GOAL,
            "stop": {"max_iterations": 1},
            "evaluator": {
                "kind": "combined",
                "parts": [{"name": "p", "evaluator": {"kind": "python", "function": "os:getcwd"}}],
            },
        },
        "spec.evaluator.parts.0.evaluator",
    ),
    (
        {"goal": GOAL, "stop": {"max_iterations": 1}, "evaluator": {"kind": "judge", "model": "x:y", "rubric": "r"}},
        "spec.evaluator.model",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "field"), LOOP_MISTAKES)
async def test_mistakes_in_loops_are_named(idle: Api, spec: dict[str, Any], field: str) -> None:
    agent = await idle.make("/api/agents", {"name": "a", "spec": AGENT})
    answer = await idle.call("POST", "/api/loops", {"name": "l", "agent_id": agent["id"], "spec": spec})
    assert answer.status_code == 422, answer.text
    assert field in [each["field"] for each in answer.json()["errors"]], answer.text
    assert (await idle.get("/api/loops"))["items"] == []


async def test_mistakes_in_agents_are_named(idle: Api) -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({}, "spec.model"),
        ({"model": "nobody:knows"}, "spec.model"),
        ({"model": "practice", "tools": [{"kind": "python", "function": "os:getcwd"}]}, "spec.tools.0"),
        ({"model": "practice", "tools": [{"kind": "mcp", "name": "m", "command": ["sh"]}]}, "spec.tools.0.command"),
        ({"model": "practice", "max_requests": 0}, "spec.max_requests"),
        ({"model": "practice", "output_schema": {"type": "string"}}, "spec.output_schema"),
        ({"model": "practice", "tools": "all"}, "spec.tools"),
    ]
    for spec, field in mistakes:
        answer = await idle.call("POST", "/api/agents", {"name": "a", "spec": spec})
        assert answer.status_code == 422, (spec, answer.text)
        assert field in [each["field"] for each in answer.json()["errors"]], (spec, answer.text)
    for spec, field in (({**TOOL, "kind": "python"}, "spec.kind"), ({**TOOL, "url": "ftp://x"}, "spec.url")):
        answer = await idle.call("POST", "/api/tools", {"spec": spec})
        assert field in [each["field"] for each in answer.json()["errors"]], (spec, answer.text)


PRIVATE = (
    "http://127.0.0.1:1/s", "http://localhost/s", "http://[::1]/s", "http://169.254.169.254/latest/meta-data",
    "http://[::ffff:10.0.0.1]/s", "http://2130706433/s", "http://0x7f.1/s", "http://0177.0.0.1/s", "http://10.1.2.3/s",
    "http://[fe80::1]/s", "http://100.64.0.1/s", "http://0.0.0.0/s",
)  # fmt: skip


@pytest.mark.parametrize("url", PRIVATE)
async def test_addresses_that_are_not_public_are_refused_by_name(idle: Api, url: str) -> None:
    tool = await idle.call("POST", "/api/tools", {"spec": {**TOOL, "url": url}})
    assert tool.status_code == 422, tool.text
    assert tool.json()["errors"][0]["field"] == "spec.url"
    assert "LOOPWRIGHT_EGRESS_ALLOW" in tool.json()["detail"] or "not" in tool.json()["detail"]
    agent = {"model": "openai:gpt-4o-mini", "base_url": url}
    assert (await idle.call("POST", "/api/agents", {"name": "a", "spec": agent})).status_code == 422
    mcp = {"model": "practice", "tools": [{"kind": "mcp", "name": "m", "url": url}]}
    assert (await idle.call("POST", "/api/agents", {"name": "a", "spec": mcp})).status_code == 422
    made = await idle.make("/api/agents", {"name": "a", "spec": AGENT})
    spec = {**LOOP, "evaluator": {"kind": "http", "url": url}}
    loop = await idle.call("POST", "/api/loops", {"name": "l", "agent_id": made["id"], "spec": spec})
    assert [each["field"] for each in loop.json()["errors"]] == ["spec.evaluator.url"]
