"""From a loop file's spec to a loop that runs: everything wrong at once, honest figures, connections closed."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from loopwright import UnknownPrice
from loopwright.core.errors import InvalidInput
from loopwright.core.events import MoneySettled, RunFinished
from loopwright.core.spec import LoopSpec
from loopwright.runner.library import Loop
from loopwright.service.assemble import assemble, worst_case

from ..agents.provider import Provider, Reply, running_provider
from ..feedback.endpoint import Endpoint, reply, running_endpoint

PRICES = {"openai:a": {"input": 1, "output": 10}, "openai:b": {"input": 2, "output": 20}}
ONE_REQUEST = Decimal("0.0002")
"""What 100 tokens in and 10 out cost at the price of `openai:a`."""


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with running_provider() as running:
        yield running


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    async with running_endpoint() as running:
        yield running


def loop_spec(**fields: Any) -> LoopSpec:
    known = {"name": "n", "goal": "a goal", "stop": {"max_iterations": 2}, "prices": PRICES}
    return LoopSpec.model_validate({**known, **fields})


def model(provider: Provider | None = None, name: str = "openai:a", **fields: Any) -> dict[str, Any]:
    url = provider.url("/v1") if provider else "http://127.0.0.1:1/v1"
    return {"model": name, "base_url": url, "max_output_tokens": 100, **fields}


# --- what is wrong ---


def test_everything_wrong_comes_at_once_each_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LW_NO_SUCH", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    judge = {"kind": "judge", "rubric": "r", "model": "anthropic:claude-sonnet-4-5"}
    spec = loop_spec(
        agent=model(
            name="openai:unheard-of",
            fallback_models=["openai:b", "nobody:knows"],
            api_key_env="LW_NO_SUCH",
            output_schema={"type": "string"},
            tools=[
                {"kind": "python", "function": "there_is_no:such_thing"},
                {"kind": "http", "name": "h", "description": "d", "url": "gopher://x"},
                {"kind": "agent", "name": "i", "description": "d", "agent": model(name="openai:dunno")},
            ],
        ),
        evaluator={
            "kind": "combined",
            "parts": [
                {"name": "j", "evaluator": judge},
                {"name": "h", "evaluator": {"kind": "http", "url": "not a url"}},
                {"name": "s", "evaluator": {**judge, "model": "openai:a", "base_url": "x", "scale": [1, 0]}},
            ],
        },
        holdout={"kind": "python", "function": "neither:this"},
        stop={"budget_usd": "1", "all": [{"budget_usd": "2"}, {"max_iterations": 3}]},
        allow_hosts=["http://not-a-host/"],
    )
    with pytest.raises(InvalidInput) as refused:
        assemble(spec, folder=tmp_path)
    assert sorted({p.field for p in refused.value.problems}) == sorted(
        {
            "allow_hosts",
            "agent.model",
            "agent.api_key_env",
            "agent.fallback_models.1",
            "agent.output_schema",
            "agent.tools.0.function",
            "agent.tools.1.url",
            "agent.tools.2.agent.model",
            "evaluator.parts.0.evaluator.model",
            "evaluator.parts.1.evaluator.url",
            "evaluator.parts.2.evaluator.base_url",
            "evaluator.parts.2.evaluator.scale",
            "holdout.function",
            "stop.all",
        }
    )
    assert all(p.message for p in refused.value.problems)


def test_stop_conditions_are_checked_with_the_rest(tmp_path: Path) -> None:
    free = {"openai:a": {"input": 0, "output": 0}}
    for fields, place in (
        ({"stop": {"target_score": 1}, "evaluator": None}, "stop"),
        ({"stop": {"target_score": 1, "max_iterations": 2}, "evaluator": None}, "stop.target_score"),
        ({"stop": {"budget_usd": "1"}, "prices": free}, "stop"),
        ({"holdout": {"kind": "python", "function": "json:dumps"}}, "holdout"),
    ):
        with pytest.raises(InvalidInput) as refused:
            assemble(loop_spec(agent=model(), **fields), folder=tmp_path)
        assert place in [p.field for p in refused.value.problems]


def test_a_missing_key_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(InvalidInput, match="ANTHROPIC_API_KEY"):
        assemble(loop_spec(agent={"model": "anthropic:claude-haiku-4-5"}), folder=tmp_path)


# --- figures ---


def test_worst_case_counts_each_model_once_with_a_full_prompt() -> None:
    schema_free = loop_spec(
        goal="g" * 100,
        agent=model(
            instructions="i" * 1_000,
            max_output_tokens=500,
            fallback_models=["openai:b"],
            tools=[
                {
                    "kind": "agent",
                    "name": "x",
                    "description": "d",
                    "agent": model(name="openai:b", instructions="i" * 10, max_output_tokens=200),
                }
            ],
        ),
        evaluator={"kind": "judge", "rubric": "r" * 50, **model(max_output_tokens=300)},
        holdout={"kind": "http", "url": "http://example.com", "max_cost_usd": "0.25"},
        history={"max_tokens": 1_000},
    )
    worst = worst_case(schema_free)
    # The agent: 4,000 bytes of history, 1,000 of instructions, 4,000 around it; at 1/10 and at 2/20 USD a million.
    asked = Decimal(9_000 * 1 + 500 * 10) / 1_000_000 + Decimal(9_000 * 2 + 500 * 20) / 1_000_000
    # The agent among its tools: a question of 8,000 bytes, 10 of instructions, 4,000 around it.
    helper = Decimal(12_010 * 2 + 200 * 20) / 1_000_000
    judge = Decimal((50 + 100 + 8_000 + 4_000) * 1 + 300 * 10) / 1_000_000
    assert worst.agent == asked + helper == Decimal("0.07002")
    assert worst.evaluator == judge + Decimal("0.25") == Decimal("0.26515")
    assert worst.total == Decimal("0.33517")
    assert worst.models == ("openai:a", "openai:b")


def test_worst_case_of_a_combination_is_the_sum_of_its_parts() -> None:
    parts: list[dict[str, Any]] = [
        {"name": "a", "evaluator": {"kind": "python", "function": "json:dumps", "max_cost_usd": "0.01"}},
        {"name": "b", "evaluator": {"kind": "command", "run": ["true"]}},
        {"name": "c", "evaluator": {"kind": "http", "url": "http://example.com", "max_cost_usd": "0.02"}},
    ]
    assert worst_case(loop_spec(agent=model(), evaluator={"kind": "combined", "parts": parts})).evaluator == Decimal(
        "0.03"
    )


def test_worst_case_of_an_unknown_model_is_none() -> None:
    with pytest.raises(UnknownPrice):
        worst_case(loop_spec(agent=model(name="openai:unheard-of")))


# --- models ---


def test_an_openai_compatible_server_is_asked_by_its_chat_api(tmp_path: Path) -> None:
    loop = assemble(loop_spec(agent=model()), folder=tmp_path)
    agent = loop.wiring.agent.agent  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    assert type(agent.model).__name__ == "OpenAIChatModel"  # pyright: ignore[reportUnknownMemberType]


async def test_a_providers_own_key_isnt_sent_to_another_address(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("LW_KEY", "k-for-this-server\n")
    for fields, expected in (({}, "Bearer none"), ({"api_key_env": "LW_KEY"}, "Bearer k-for-this-server")):
        endpoint.answers(reply({"error": {"message": "no"}}, status=401))
        spec = loop_spec(
            agent={**model(), "base_url": f"http://{endpoint.host}/v1", **fields}, stop={"max_iterations": 1}
        )
        await assemble(spec, folder=tmp_path).run("g")
        assert endpoint.received[-1].headers["authorization"] == expected
        assert endpoint.received[-1].target == "/v1/chat/completions"


def test_a_fallback_of_another_provider_gets_neither_address_nor_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-anthropic")
    spec = loop_spec(agent=model(fallback_models=["anthropic:claude-haiku-4-5"]))
    agent = assemble(spec, folder=tmp_path).wiring.agent.agent  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    first, second = agent.model.models  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    assert first.base_url == "http://127.0.0.1:1/v1/"  # pyright: ignore[reportUnknownMemberType]
    assert second.base_url == "https://api.anthropic.com"  # pyright: ignore[reportUnknownMemberType]
    assert second.client.api_key == "sk-anthropic"  # pyright: ignore[reportUnknownMemberType]


# --- hosts ---


async def test_hosts_that_the_file_names_may_be_local_and_no_others(
    provider: Provider, endpoint: Endpoint, tmp_path: Path
) -> None:
    async with running_endpoint() as other:
        tool = {"kind": "http", "name": "t", "description": "d", "url": f"http://{other.host}/t"}
        spec = loop_spec(
            agent=model(provider, tools=[tool]),
            evaluator={"kind": "http", "url": endpoint.url},
            stop={"max_iterations": 1},
        )
        endpoint.answers(reply({"score": 0.5}))
        provider.script = [Reply(tools=(("t", {}),)), Reply(text="x")]
        result = await assemble(spec, folder=tmp_path).run("g")
        assert (result.best and result.best.score, len(other.received)) == (0.5, 1)

    async with running_endpoint() as hidden:
        endpoint.answers(reply(b"", status=307, location=f"http://{hidden.host}/"))
        loop = assemble(loop_spec(agent=model(provider), evaluator=spec.evaluator), folder=tmp_path)
        loop.wiring.retry_delays = (0, 0)
        result = await loop.run("g")
        assert hidden.received == []
        assert all("redirects" in str(i.failure) for i in result.iterations)


# --- lifecycle ---


@contextmanager
def provider_in_a_thread() -> Generator[Provider]:
    """A provider whose event loop outlives those of the runs."""
    box = list[Provider]()
    ready, done = Event(), Event()

    async def serve() -> None:
        async with running_provider() as provider:
            box.append(provider)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield box[0]
    finally:
        done.set()
        thread.join()


def busy_loop(provider: Provider, folder: Path, **fields: Any) -> Loop:
    """A loop with everything that holds connections: tools, an inner agent, an MCP server, a judge."""
    (folder / "lw_assembled.py").write_text(
        "from mcp.server import MCPServer\n"
        "server = MCPServer('s')\n"
        "@server.tool()\n"
        "def one() -> int: return 1\n"
        "server.run('stdio')\n"
    )
    tools: list[dict[str, Any]] = [
        {"kind": "agent", "name": "helper", "description": "d", "agent": model(provider)},
        {"kind": "mcp", "name": "server", "command": [sys.executable, "lw_assembled.py"]},
    ]
    judge = {"kind": "judge", "rubric": "r", **model(provider)}
    return assemble(
        loop_spec(agent=model(provider, tools=tools), evaluator=judge, stop={"max_iterations": 2}, **fields),
        folder=folder,
    )


def script(provider: Provider, iterations: int) -> None:
    provider.script = [
        each
        for _ in range(iterations)
        for each in (
            Reply(tools=(("helper", {"question": "?"}),)),
            Reply(text="helped"),
            Reply(tools=(("one", {}),)),
            Reply(text="candidate"),
            Reply(tools=(("final_result", {"score": 0.5, "detail": "d"}),)),
        )
    ]


def test_a_loop_runs_in_one_event_loop_after_another(tmp_path: Path) -> None:
    with provider_in_a_thread() as provider:
        loop = busy_loop(provider, tmp_path)
        for _ in range(2):
            script(provider, 2)
            result = loop.run_sync("g")
            assert (result.stop_reason, result.best and result.best.score) == ("max_iterations", 0.5)
            assert result.cost.by_role == {
                "agent": 6 * ONE_REQUEST,
                "subagent": 2 * ONE_REQUEST,
                "judge": 2 * ONE_REQUEST,
            }
    gc.collect()  # anything left open would warn here, and warnings are errors


def answer_by_what_is_asked(provider: Provider) -> None:
    """Instead of by a script, since two runs ask at once."""
    real = provider.answer

    async def answer(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        tools = {tool["function"]["name"] for tool in body.get("tools", [])}
        used = [m for m in body["messages"] if m["role"] == "tool"]
        if "final_result" in tools:
            said = Reply(tools=(("final_result", {"score": 0.5, "detail": "d"}),))
        elif "helper" in tools and not used:
            said = Reply(tools=(("helper", {"question": "?"}), ("one", {})))
        else:
            said = Reply(text="candidate")
        provider.script = [said]
        return await real(path, body, writer)

    provider.answer = answer  # pyright: ignore[reportAttributeAccessIssue]


async def test_two_runs_of_one_loop_at_once(provider: Provider, tmp_path: Path) -> None:
    loop = busy_loop(provider, tmp_path)
    answer_by_what_is_asked(provider)
    first, second = loop.start("g"), loop.start("g")
    results = await asyncio.gather(first, second)
    for result in results:
        assert (result.stop_reason, len(result.iterations)) == ("max_iterations", 2)
        assert result.iterations[0].tool_calls[0].result == "candidate"
        assert result.cost.by_role["agent"] == 4 * ONE_REQUEST
    assert results[0].run_id != results[1].run_id


async def test_a_run_that_leaves_early_leaves_the_other_its_connections(provider: Provider, tmp_path: Path) -> None:
    loop = busy_loop(provider, tmp_path)
    answer_by_what_is_asked(provider)
    stopped, running = loop.start("g"), loop.start("g")
    async for event in stopped.events():
        if isinstance(event, MoneySettled):
            break
    stopped.cancel()
    assert (await stopped).stop_reason == "cancelled"
    result = await running
    assert (result.stop_reason, len(result.iterations), result.best and result.best.score) == ("max_iterations", 2, 0.5)
    assert result.iterations[1].tool_calls[1].result == "1"


async def test_a_tool_server_that_cant_start_ends_the_run_with_a_reason(provider: Provider, tmp_path: Path) -> None:
    tools = [{"kind": "mcp", "name": "gone", "command": ["./there-is-no-such-server"]}]
    run = assemble(loop_spec(agent=model(provider, tools=tools)), folder=tmp_path).start("g")
    events = [event async for event in run.events()]
    result = await run
    assert (result.stop_reason, result.iterations, provider.seen) == ("error", (), 0)
    assert result.error
    assert "the MCP server 'gone' can't be reached" in result.error
    assert isinstance(events[-1], RunFinished)


async def test_the_agents_settings_reach_the_run(provider: Provider, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    spec = loop_spec(
        agent=model(provider, output_schema=schema, loop_done=False),
        direction="minimize",
        attempts=3,
        history={"policy": "full", "recent": 1},
    )
    loop = assemble(spec, folder=tmp_path)
    assert (loop.direction, loop.attempts, loop.history.policy, loop.name) == ("minimize", 3, "full", "n")
    assert (loop.wiring.has_schema, loop.wiring.model, loop.wiring.free_of_charge) == (True, "openai:a", False)
    provider.default = Reply(tools=(("final_result", {"n": 3}),))
    result = await loop.run("g")
    assert {t["function"]["name"] for t in provider.bodies[0]["tools"]} == {"final_result"}
    assert [i.candidate and i.candidate.data for i in result.iterations] == [{"n": 3}] * 6
