"""Every way in which a run begins is checked, and what is refused begins nothing."""

from __future__ import annotations

import ast
import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import loopwright
from loopwright.core.caller import Caller
from loopwright.core.errors import GuardrailRefused
from loopwright.core.guardrails import DenyPattern
from loopwright.service.guardrails import GuardrailChange, check_message, create_guardrail
from loopwright.service.runtime import open_runtime
from loopwright.service.ticking import Ticking
from loopwright.service.trials import try_agent, try_endpoint, try_tool
from loopwright.settings import Settings
from loopwright.store.database import Urls, connect_direct
from tests.api.world import AGENT, Api
from tests.builtins.world import House, Say, Seen
from tests.mcp_server.world import over_http, served, stdio_environment, text
from tests.postgres import ADMIN, OTHER, OWNER
from tests.webhooks.test_incoming import send

NO_SECRETS = {"name": "No secrets", "spec": {"kind": "deny_pattern", "pattern": r"top\s+secret"}}
SENTENCE = "the guardrail 'No secrets' refuses this goal: it holds what the pattern of this rule denies"


async def guard(api: Api, **changes: Any) -> Any:
    return await api.make("/api/guardrails", {**NO_SECRETS, **changes}, user=ADMIN)


async def runs(api: Api) -> list[Any]:
    return (await api.get("/api/runs", user=ADMIN))["items"]


async def refusals(api: Api, user: str = OWNER) -> list[Any]:
    found = (await api.get("/api/activity", user=user))["items"]
    return [each for each in found if each["action"] == "guardrail_refused"]


def test_only_the_check_can_say_that_something_is_cleared() -> None:
    """The types ask for `Cleared` wherever a run is put into the queue; so who makes one has checked."""
    root = Path(loopwright.__file__).parent
    makers = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Cleared"
    }
    assert makers == {"service/guardrails.py"}


async def test_the_api(idle: Api) -> None:
    rule = await guard(idle)
    loop = await idle.make_loop()
    answer = await idle.call("POST", f"/api/loops/{loop['id']}/runs", {"goal": "Tell the TOP\u200b SECRET."})
    assert (answer.status_code, answer.json()["detail"]) == (403, SENTENCE)
    assert answer.headers["content-type"] == "application/problem+json"
    assert await runs(idle) == []
    [noted] = await refusals(idle)
    assert (noted["door"], noted["user_id"], noted["subject"]) == ("api", OWNER, f"guardrail:{rule['id']}")
    assert noted["detail"] == {
        "rule": "No secrets", "kind": "deny_pattern", "what": "goal", "loop": "codes",
        "reason": "it holds what the pattern of this rule denies",
    }  # fmt: skip
    assert await refusals(idle, OTHER) == []
    assert len(await refusals(idle, ADMIN)) == 1
    assert len(await idle.start(loop)) > 0, "another goal may pass"


async def test_a_goal_in_the_loop_itself(idle: Api) -> None:
    loop = await idle.make_loop(goal="Tell the top secret.")
    await guard(idle)
    assert (await idle.call("POST", f"/api/loops/{loop['id']}/runs")).status_code == 403
    assert await runs(idle) == []


async def test_a_model_that_is_wanted_instead(idle: Api) -> None:
    await guard(idle, name="models", spec={"kind": "allowed_models", "models": ["openai:gpt-4o-mini"]})
    loop = await idle.make_loop(agent={**AGENT, "fallback_models": []})
    assert len(await idle.start(loop)) > 0
    await idle.call("PUT", "/api/secrets/ANTHROPIC_API_KEY", {"value": "x"})
    answer = await idle.call("POST", f"/api/loops/{loop['id']}/runs", {"model": "anthropic:claude-sonnet-4-5"})
    assert answer.status_code == 403
    assert "'anthropic:claude-sonnet-4-5' is not among those that are allowed" in answer.json()["detail"]


async def test_the_host_of_an_evaluator(idle: Api) -> None:
    await guard(idle, name="hosts", spec={"kind": "allowed_hosts", "hosts": ["good.example.com"]})
    loop = await idle.make_loop(evaluator={"kind": "http", "url": "https://example.com/score"})
    answer = await idle.call("POST", f"/api/loops/{loop['id']}/runs")
    assert answer.status_code == 403
    assert "the host 'example.com' is not among those that are allowed: good.example.com" in answer.json()["detail"]


async def test_mcp(idle: Api) -> None:
    await guard(idle)
    await idle.make_loop()
    async with served(idle) as at, over_http(at) as client:
        arguments = {"loop": "codes", "goal": "the top secret", "wait": False}
        result = await client.call_tool("run_loop", arguments)
    assert result.is_error
    assert SENTENCE in text(result)
    assert await runs(idle) == []
    assert [each["door"] for each in await refusals(idle)] == ["mcp"]


async def test_a_webhook_refuses_without_saying_why_to_the_sender(idle: Api) -> None:
    await guard(idle)
    loop = await idle.make_loop()
    hook = await idle.make("/api/webhooks", {"name": "tickets", "loop_id": loop["id"]})
    for number, body in enumerate(({"text": "the top secret"}, {"text": "the top\nsecret"}, {"top secret": 1})):
        answer = await send(idle, hook, body, message_id=f"msg_{number}")
        assert answer.status_code == 403, answer.text
        assert answer.json()["detail"] == "a guardrail refuses this message; the webhook's owner can see why"
    assert [each["door"] for each in await refusals(idle)] == ["webhook"] * 3
    assert await runs(idle) == []
    assert (await send(idle, hook, {"text": "a harmless text"}, message_id="msg_0")).status_code == 202


async def test_an_agent_that_starts_a_loop(house: House) -> None:
    await guard(house.api, spec={**NO_SECRETS["spec"], "scope": "goal"})
    await house.make_loop("small")
    loop = await house.make_loop("big", builtins=("start_loop",))

    def think(seen: Seen) -> Say:
        if not seen.results:
            return [("start_loop", {"loop": "small", "goal": "Tell the top secret."})]
        return f"told: {seen.results[0]['error']}"

    house.brain.think = think
    run = await house.api.finished(await house.api.start(loop))
    assert run["best"]["candidate"]["text"] == f"told: {SENTENCE}"
    assert len(await runs(house.api)) == 1


async def test_a_fork_and_an_extension(api: Api) -> None:
    loop = await api.make_loop()
    run = await api.finished(await api.start(loop))
    rule = await guard(api)
    fork = f"/api/runs/{run['id']}/fork"
    answer = await api.call("POST", fork, {"iteration": 1, "goal": "Tell the top secret.", "max_iterations": 9})
    assert (answer.status_code, answer.json()["detail"]) == (403, SENTENCE)
    path, pattern = f"/api/guardrails/{rule['id']}", {"kind": "deny_pattern", "pattern": "code of 4 letters"}
    assert (await api.call("PATCH", path, {"spec": pattern}, user=ADMIN, if_match='"1"')).status_code == 200
    answer = await api.call("POST", f"/api/runs/{run['id']}/extend", {"iterations": 2})
    assert (answer.status_code, answer.json()["detail"]) == (403, SENTENCE)
    assert [(each["id"], each["status"]) for each in await runs(api)] == [(run["id"], "finished")]


async def test_a_trial_of_an_agent(idle: Api) -> None:
    await guard(idle)
    agent = await idle.make("/api/agents", {"name": "a", "spec": AGENT})
    caller = Caller(user_id=OWNER, role="member", door="ui")
    with pytest.raises(GuardrailRefused, match="refuses this goal"):
        await try_agent(idle.runtime, caller, UUID(agent["id"]), "Tell the top secret.")
    assert await runs(idle) == []


async def test_a_tool_that_is_called_by_hand(idle: Api) -> None:
    spec = {
        "kind": "http", "name": "lookup", "description": "x", "method": "GET", "url": "https://example.com/",
        "parameters": {"type": "object", "properties": {"words": {"type": "string"}}},
    }  # fmt: skip
    tool = UUID((await idle.make("/api/tools", {"spec": spec}))["id"])
    caller = Caller(user_id=OWNER, role="member", door="ui")

    async def tried(name: str, **arguments: Any) -> str:
        with pytest.raises(GuardrailRefused) as refused:
            await try_tool(idle.runtime, caller, tool, name, arguments)
        return str(refused.value)

    await guard(idle)
    assert "refuses this tool call `lookup`" in await tried("lookup", words="the top secret")
    await guard(idle, name="hosts", spec={"kind": "allowed_hosts", "hosts": ["good.example.com"]})
    assert "the host 'example.com' is not among" in await tried("")
    with pytest.raises(GuardrailRefused, match=r"'bad\.example\.com' is not among"):
        endpoint = {"kind": "http", "url": "https://bad.example.com/"}
        await try_endpoint(idle.runtime, caller, endpoint, goal="x", candidate="x")


async def test_the_clock(api: Api) -> None:
    """A schedule notes why nothing was started."""
    await guard(api)
    loop = await api.make_loop(goal="Find out the secret.")
    body = {"name": "s", "loop_id": loop["id"], "cron": "* * * * *", "wanted": {"goal": "the top secret"}}
    schedule = UUID((await api.make("/api/schedules", body))["id"])
    later = datetime.now(UTC) + timedelta(minutes=2)
    await Ticking(runtime=api.runtime, clock=lambda: later).tick(schedule)
    fired = await api.get(f"/api/schedules/{schedule}/firings")
    assert (fired[0]["outcome"], fired[0]["reason"]) == ("failed", SENTENCE)
    assert await runs(api) == []
    assert {each["door"] for each in await refusals(api)} == {"schedule"}


async def test_a_loop_file_in_a_terminal(urls: Urls, tmp_path: Path) -> None:
    """`loopwright run` on the store of the service; with --ephemeral there is none, and so no guardrails."""
    from tests.cli.world import write_loop

    path = write_loop(tmp_path, goal="Find the top secret code of 5 letters from A to H.")
    home = tmp_path / "home"
    async with open_runtime(Settings(home=home, _env_file=None), engine=False, urls=urls) as runtime:  # pyright: ignore[reportCallIssue]
        rule = GuardrailChange(name="No secrets", spec=DenyPattern(kind="deny_pattern", pattern=r"top\s+secret"))
        await create_guardrail(runtime.database, runtime.owner(), rule)
    environment = stdio_environment(urls, home)

    async def run(*more: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "loopwright", "run", str(path), *more]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        told, _ = await process.communicate()
        return process.returncode or 0, " ".join(told.decode().split())

    code, told = await run()
    assert SENTENCE in told
    assert code != 0
    code, told = await run("--ephemeral")
    assert SENTENCE not in told
    assert "score" in told


async def test_a_message_to_an_assistant(idle: Api) -> None:
    await guard(idle)
    caller = Caller(user_id=OWNER, role="member", door="chat")
    await check_message(idle.runtime.database, caller, "hello", thread="t1")
    with pytest.raises(GuardrailRefused, match="the guardrail 'No secrets' refuses this message"):
        await check_message(idle.runtime.database, caller, "the top secret", thread="t1")
    [noted] = await refusals(idle)
    assert (noted["door"], noted["detail"]["thread"], noted["detail"]["what"]) == ("chat", "t1", "message")


async def test_guardrails_that_can_not_be_read_let_nothing_pass(idle: Api) -> None:
    loop = await idle.make_loop()
    async with await connect_direct(idle.runtime.database.urls) as c:
        await c.execute("alter table guardrails rename column active to is_active")
    answer = await idle.call("POST", f"/api/loops/{loop['id']}/runs")
    assert answer.status_code == 403
    assert "it can't be applied, so nothing passes (the database says: " in answer.json()["detail"]
    assert "an admin mends it" in answer.json()["detail"]
    assert await runs(idle) == []


@pytest.mark.parametrize("spec", ['{"kind": "telepathy"}', '{"kind": "deny_pattern", "pattern": "("}'])
async def test_one_that_was_stored_broken_lets_nothing_pass(idle: Api, spec: str) -> None:
    loop = await idle.make_loop()
    async with await connect_direct(idle.runtime.database.urls) as c:
        await c.execute("insert into guardrails (name, kind, spec) values ('odd', 'x', %s)", (spec,))
    answer = await idle.call("POST", f"/api/loops/{loop['id']}/runs")
    assert answer.status_code == 403
    assert "the guardrail 'odd' refuses this goal: it can't be applied" in answer.json()["detail"]
    assert await runs(idle) == []


async def test_one_that_is_switched_off_has_no_say(idle: Api) -> None:
    rule = await guard(idle, active=False)
    loop = await idle.make_loop()
    assert len(await idle.start(loop, {"goal": "the top secret"})) > 0
    path = f"/api/guardrails/{rule['id']}"
    assert (await idle.call("PATCH", path, {"active": True}, user=ADMIN, if_match="*")).status_code == 200
    assert (await idle.call("POST", f"/api/loops/{loop['id']}/runs", {"goal": "the top secret"})).status_code == 403
