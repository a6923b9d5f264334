"""The MCP server with the official client: over HTTP as a user of the service, on stdio as the owner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import yaml
from mcp import Client, MCPError
from mcp_types import TextContent, TextResourceContents

from loopwright.core.events import EVENT, RunFinished
from loopwright.core.spec import LoopSpec
from loopwright.store.database import Urls
from tests.api.world import AGENT, Api, open_api
from tests.postgres import ADMIN, OTHER, OWNER

from .world import make_own_loop, over_http, over_stdio, served, structured, text

TOOLS = {"run_loop", "check_run", "get_best", "cancel_run", "list_loops", "list_runs"}


@pytest.fixture
async def address(api: Api) -> AsyncGenerator[str]:
    async with served(api) as at:
        yield at


Connect = Callable[[], AbstractAsyncContextManager[Client]]


both = pytest.mark.parametrize("connect", ["http", "stdio"], indirect=True)


@pytest.fixture
def connect(request: pytest.FixtureRequest, urls: Urls, tmp_path: Path) -> Connect:
    """Opens a client over HTTP or on stdio, with a loop called `codes` that it may run. It must be left where it was
    opened, so the test does both."""

    @asynccontextmanager
    async def open_client() -> AsyncGenerator[Client]:
        if getattr(request, "param", "http") == "stdio":
            await make_own_loop(urls, tmp_path)
            async with over_stdio(urls, tmp_path) as client:
                yield client
            return
        async with open_api(urls, tmp_path) as api, served(api) as at:
            await api.make_loop()
            async with over_http(at) as client:
                yield client

    return open_client


@both
async def test_a_run_from_its_start_to_its_best(connect: Connect) -> None:
    async with connect() as client:
        loops = structured(await client.call_tool("list_loops", {}))["loops"]
        assert [(loop["name"], loop["budget_usd"]) for loop in loops] == [("codes", "0.50")]
        told: list[tuple[float, float | None, str | None]] = []

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            told.append((progress, total, message))

        ended = await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 60}, progress_callback=tell)
        report = structured(ended)
        assert json.loads(text(ended)) == report
        assert (report["status"], report["stop_reason"], report["iterations"]) == ("finished", "max_iterations", 3)
        assert [(progress, total) for progress, total, _ in told] == [(1, 3), (2, 3), (3, 3)]
        assert told[0][2] is not None and told[0][2].startswith("iteration 1: ")
        run_id = report["run_id"]
        assert structured(await client.call_tool("check_run", {"run_id": run_id})) == report
        best = structured(await client.call_tool("get_best", {"run_id": run_id}))
        assert (best["text"], best["score"]) == (report["best_text"], report["best_score"])
        (only,) = structured(await client.call_tool("list_runs", {}))["runs"]
        assert only["run_id"] == run_id


async def test_what_the_client_is_told_of_the_tools(connect: Connect) -> None:
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == TOOLS
        for tool in tools.values():
            assert tool.output_schema and tool.description and tool.annotations
            assert tool.annotations.destructive_hint is not True
        run_loop = tools["run_loop"]
        assert run_loop.annotations and run_loop.annotations.read_only_hint is False
        assert run_loop.meta and run_loop.meta["loopwright/costs_money"] is True
        assert "costs money" in (run_loop.description or "")
        assert {
            name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint
        } == TOOLS - {
            "run_loop",
            "cancel_run",
        }


async def test_resources_and_prompts(connect: Connect) -> None:
    async with connect() as client:
        report = structured(await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 60}))
        listed = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert [uri.partition("://")[2].split("/")[0] for uri in listed] == ["loops", "runs"]
        (loop,) = (await client.read_resource(listed[0])).contents
        assert isinstance(loop, TextResourceContents) and "name: codes" in loop.text
        (journal,) = (await client.read_resource(listed[1])).contents
        assert isinstance(journal, TextResourceContents)
        events = [EVENT.validate_json(line) for line in journal.text.splitlines()]
        assert isinstance(events[-1], RunFinished)
        (rest,) = (await client.read_resource(f"{listed[1]}?after={events[-1].seq - 1}")).contents
        assert isinstance(rest, TextResourceContents)
        assert [EVENT.validate_json(line).seq for line in rest.text.splitlines()] == [events[-1].seq]
        with pytest.raises(MCPError, match="nothing with this id"):
            await client.read_resource("loopwright://runs/run_0123456789/journal")

        (prompt,) = (await client.get_prompt("write_loop", {"task": "A haiku on rain."})).messages
        assert isinstance(prompt.content, TextContent) and "A haiku on rain." in prompt.content.text
        example = prompt.content.text.partition("```yaml\n")[2].partition("```")[0]
        LoopSpec.model_validate(yaml.safe_load(example))
        (prompt,) = (await client.get_prompt("improve_loop", {"run_id": report["run_id"]})).messages
        assert isinstance(prompt.content, TextContent) and report["sentence"] in prompt.content.text


async def test_errors_say_what_to_do(connect: Connect) -> None:
    async with connect() as client:
        for arguments, words in (
            ({"loop": "nope"}, "there are: 'codes'"),
            ({"loop": "codes", "budget_usd": "0.51"}, "above the loop's budget of $0.50"),
            ({"loop": "codes", "max_iterations": 4}, "above the loop's limit of 3"),
            ({"loop": "codes", "budget_usd": "a lot"}, "budget_usd"),
            ({"loop": "codes", "budget_usd": "-1"}, "budget_usd"),
            ({"loop": "codes", "wait_seconds": 1e9}, "wait_seconds"),
            ({"loop": "codes", "goal": " "}, "goal"),
        ):
            answer = await client.call_tool("run_loop", arguments)
            assert answer.is_error and words in text(answer), (arguments, text(answer))
        missing = await client.call_tool("get_best", {"run_id": "run_0123456789"})
        assert missing.is_error and "list_runs" in text(missing)
        assert structured(await client.call_tool("list_runs", {}))["runs"] == []


async def test_overrides_below_the_caps_hold(connect: Connect) -> None:
    async with connect() as client:
        asked = {"loop": "codes", "budget_usd": "0.25", "max_iterations": 1, "goal": "Find it.", "wait_seconds": 60}
        report = structured(await client.call_tool("run_loop", asked))
        assert (report["budget_usd"], report["iterations"]) == ("0.25", 1)


@both
async def test_two_calls_with_one_key_start_one_run(connect: Connect) -> None:
    async with connect() as client:
        asked = {"loop": "codes", "idempotency_key": "once", "wait_seconds": 30}
        first, second = await asyncio.gather(client.call_tool("run_loop", asked), client.call_tool("run_loop", asked))
        assert structured(first)["run_id"] == structured(second)["run_id"]
        later = await client.call_tool("run_loop", asked)
        assert structured(later)["run_id"] == structured(first)["run_id"]
        assert len(structured(await client.call_tool("list_runs", {}))["runs"]) == 1
        other = await client.call_tool("run_loop", {**asked, "max_iterations": 1})
        assert other.is_error and "another request" in text(other)


async def test_a_run_outlives_a_client_that_leaves_while_it_waits(api: Api, address: str) -> None:
    await api.make_loop(agent={"model": "practice", "settings": {"practice_pace": 0.3}})
    heard = asyncio.Event()

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    async def wait_for_it() -> None:
        async with over_http(address) as client:
            await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 60}, progress_callback=tell)

    waiting = asyncio.create_task(wait_for_it())
    await heard.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with over_http(address) as again:
        (found,) = structured(await again.call_tool("list_runs", {}))["runs"]
        report = structured(await again.call_tool("check_run", {"run_id": found["run_id"], "wait_seconds": 60}))
    assert (report["stop_reason"], report["iterations"]) == ("max_iterations", 3)
    (run,) = (await api.get("/api/runs"))["items"]
    assert run["door"] == "mcp"


async def test_a_run_outlives_the_server_that_a_desktop_client_takes_along(urls: Urls, tmp_path: Path) -> None:
    await make_own_loop(urls, tmp_path, settings={"practice_pace": 0.3})
    async with over_stdio(urls, tmp_path) as client:
        started = structured(await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 0}))
        assert started["status"] != "finished" and "check_run" in started["next"]
    async with over_stdio(urls, tmp_path) as client:
        asked = {"run_id": started["run_id"], "wait_seconds": 60}
        report = structured(await client.call_tool("check_run", asked))
    assert (report["stop_reason"], report["iterations"]) == ("max_iterations", 3)


async def test_cancelling_keeps_the_best(api: Api, address: str) -> None:
    await api.make_loop(agent={"model": "practice", "settings": {"practice_pace": 30.0}})
    async with over_http(address) as client:
        started = structured(await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 0}))
        asked = {"run_id": started["run_id"]}
        for _ in range(2):
            report = structured(await client.call_tool("cancel_run", asked))
            assert (report["status"], report["stop_reason"]) == ("finished", "cancelled")
        nothing = await client.call_tool("get_best", asked)
        assert nothing.is_error and "no candidate yet" in text(nothing)


async def test_what_is_somebody_elses_is_not_there(api: Api, address: str) -> None:
    private = await api.make_loop()
    shared = await api.make_loop(name="shared", visibility="workspace")
    run_id = await api.start(private)
    await api.finished(run_id)
    async with over_http(address, OTHER) as other:
        assert [each["name"] for each in structured(await other.call_tool("list_loops", {}))["loops"]] == ["shared"]
        for loop in ("codes", private["id"]):
            answer = await other.call_tool("run_loop", {"loop": loop})
            assert answer.is_error and "there are: 'shared'" in text(answer)
        for tool in ("check_run", "get_best", "cancel_run"):
            answer = await other.call_tool(tool, {"run_id": run_id})
            assert answer.is_error and "no run" in text(answer)
        assert [str(each.uri) for each in (await other.list_resources()).resources] == [
            f"loopwright://loops/{shared['id']}"
        ]
        for uri in (f"loopwright://loops/{private['id']}", f"loopwright://runs/{run_id}/journal"):
            with pytest.raises(MCPError):
                await other.read_resource(uri)
        with pytest.raises(MCPError):
            await other.get_prompt("improve_loop", {"run_id": run_id})
        mine = structured(await other.call_tool("run_loop", {"loop": "shared", "wait_seconds": 30}))
    (run,) = (await api.get("/api/runs", user=OTHER))["items"]
    assert (run["id"], run["owner_id"]) == (mine["run_id"], OTHER)
    async with over_http(address, ADMIN) as admin:
        assert structured(await admin.call_tool("check_run", {"run_id": run_id}))["status"] == "finished"


async def test_own_loops_win_over_shared_ones_of_the_name(api: Api, address: str) -> None:
    await api.make_loop(user=OTHER, visibility="workspace")
    async with over_http(address) as client:
        await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 30})
        await api.make_loop(user=ADMIN, visibility="workspace")
        unclear = await client.call_tool("run_loop", {"loop": "codes"})
        assert unclear.is_error and "name one by its id" in text(unclear)
        own = await api.make_loop(agent=AGENT, stop={"max_iterations": 1})
        report = structured(await client.call_tool("run_loop", {"loop": "codes", "wait_seconds": 30}))
    run = await api.get(f"/api/runs/{report['run_id']}")
    assert (run["loop_id"], run["owner_id"]) == (own["id"], OWNER)
