"""Tools: what they may reach, what the model is told, and that nothing of them escapes the wallet."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from typing import Any

import pytest
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from loopwright.agents.tools import MAX_RESULT_BYTES
from loopwright.core.errors import (
    AgentFailed,
    BudgetExceeded,
    EgressRefused,
    InvalidInput,
    StoreUnavailable,
    UnknownPrice,
)
from loopwright.core.models import ToolCall

from ..feedback.endpoint import Endpoint, disconnect, fifty_megabytes, hang, reply
from .provider import Reply
from .turns import ONE_REQUEST, MakeWorld, World, call, write

STRING = {"type": "string"}


def parameters(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def http_tool(endpoint: Endpoint, path: str = "/find", **fields: Any) -> dict[str, Any]:
    url = f"http://{endpoint.host}{path}"
    return {"kind": "http", "name": "find", "description": "Finds things.", "url": url, **fields}


# --- http: what is sent ---


async def test_an_http_tool_posts_its_arguments_as_json(world: World, endpoint: Endpoint) -> None:
    endpoint.answers(reply({"found": 3}))
    tool = http_tool(endpoint, parameters=parameters("q", q=STRING, deep={"type": "boolean"}))
    turn = await world.take(world.agent(tools=[tool]), call("find", q="sea", deep=True), Reply(text="three"))
    (received,) = endpoint.received
    assert (received.method, received.target, received.json) == ("POST", "/find", {"q": "sea", "deep": True})
    assert received.headers["content-type"] == "application/json"
    assert world.told() == ['{"found": 3}']
    assert turn.candidate.text == "three"
    assert turn.tool_calls == (ToolCall(name="find", arguments='{"q": "sea", "deep": true}', result='{"found": 3}'),)
    assert world.offered()["find"]["description"] == "Finds things."
    assert world.offered()["find"]["parameters"]["properties"]["q"] == STRING


async def test_get_arguments_are_the_query(world: World, endpoint: Endpoint) -> None:
    tool = http_tool(
        endpoint, "/find?key=1#part", method="GET", parameters=parameters(q=STRING, n={}, tags={}, gone={})
    )
    await world.take(world.agent(tools=[tool]), call("find", q="a&b=c d/é", n=2, tags=["x", "y"], gone=None))
    assert endpoint.received[0].target == "/find?key=1&q=a%26b%3Dc+d%2F%C3%A9&n=2&tags=x&tags=y"
    assert endpoint.received[0].body == b""


@pytest.mark.parametrize(
    ("argument", "target"),
    [
        ("7", "/users/7/posts"),
        (7, "/users/7/posts"),
        ("a/b", "/users/a%2Fb/posts"),
        ("x?admin=1", "/users/x%3Fadmin%3D1/posts"),
        ("x#frag", "/users/x%23frag/posts"),
        ("%2e%2e", "/users/%252e%252e/posts"),
        ("a b\n", "/users/a%20b%0A/posts"),
        ("@evil.example", "/users/%40evil.example/posts"),
        ("ünï", "/users/%C3%BCn%C3%AF/posts"),
        ("{id}", "/users/%7Bid%7D/posts"),
    ],
)
async def test_a_path_argument_is_one_segment_whatever_it_holds(
    world: World, endpoint: Endpoint, argument: object, target: str
) -> None:
    tool = http_tool(endpoint, "/users/{id}/posts", method="GET", parameters=parameters(id={}))
    await world.take(world.agent(tools=[tool]), call("find", id=argument))
    assert endpoint.received[0].target == target
    assert endpoint.received[0].headers["host"] == endpoint.host


@pytest.mark.parametrize("argument", ["..", ".", "", "  ", "../admin", "a/../b", "..\\x", "....", None])
async def test_a_path_argument_that_would_change_the_address_is_asked_for_again(
    world: World, endpoint: Endpoint, argument: str | None
) -> None:
    tool = http_tool(endpoint, "/users/{id}", method="DELETE", parameters=parameters(id={}))
    await world.take(world.agent(tools=[tool]), call("find", id=argument), call("find", id="7"))
    assert [r.target for r in endpoint.received] == ["/users/7"]
    assert "id must be given and can't be" in world.told(1)[0]


async def test_path_arguments_are_required_whatever_the_schema_says(world: World, endpoint: Endpoint) -> None:
    tool = http_tool(endpoint, "/users/{id}", parameters=parameters(id=STRING))
    await world.take(world.agent(tools=[tool]), call("find"), call("find", id="7"))
    assert world.offered()["find"]["parameters"]["required"] == ["id"]
    assert [r.target for r in endpoint.received] == ["/users/7"]


async def test_arguments_that_break_the_schema_are_asked_for_again(world: World, endpoint: Endpoint) -> None:
    tool = http_tool(endpoint, parameters=parameters("n", n={"type": "integer", "maximum": 9}))
    turn = await world.take(
        world.agent(tools=[tool]), call("find", n=10), call("find"), call("find", n=3), Reply(text="ok")
    )
    assert [r.json for r in endpoint.received] == [{"n": 3}]
    assert "$.n: 10 is greater than the maximum of 9" in world.told(1)[0]
    assert "'n' is a required property" in world.told(2)[1]
    assert turn.candidate.text == "ok"
    assert len(world.charges) == 4


async def test_a_schema_in_a_circle_is_no_traceback(world: World, endpoint: Endpoint) -> None:
    tool = http_tool(endpoint, parameters=parameters(q={"$ref": "#/properties/q"}))
    await world.take(world.agent(tools=[tool]), call("find", q="x"), Reply(text="I'll do without"))
    assert "refers to itself in a circle" in world.told()[0]
    assert endpoint.received == []


async def test_arguments_that_never_follow_the_schema_fail_the_turn_and_all_of_it_is_paid(
    world: World, endpoint: Endpoint
) -> None:
    tool = http_tool(endpoint, parameters=parameters("n", n={"type": "integer"}))
    with pytest.raises(AgentFailed, match="find"):
        await world.take(world.agent(tools=[tool]), *[call("find", n="x")] * 9)
    assert endpoint.received == []
    assert [c.amount for c in world.charges] == [ONE_REQUEST] * 3


# --- http: what comes back ---


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (reply("no such user", status=404), "HTTP 404: no such user"),
        (reply("boom", status=500), "HTTP 500: boom"),
        (reply(b"", status=302, location="http://169.254.169.254/latest"), "redirects aren't followed"),
        (fifty_megabytes, "larger than 1,000,000 bytes"),
        (disconnect, "broke"),
        (hang, "within 0.05 s"),
    ],
)
async def test_what_goes_wrong_is_told_to_the_model(world: World, endpoint: Endpoint, answer: Any, told: str) -> None:
    endpoint.answers(answer)
    tool = http_tool(endpoint, timeout_seconds=0.05 if answer is hang else 5)
    turn = await world.take(world.agent(tools=[tool]), call("find"), Reply(text="I'll do without"))
    assert told in world.told()[0]
    assert turn.candidate.text == "I'll do without"


async def test_a_tool_that_stays_down_doesnt_fail_the_turn(world: World, endpoint: Endpoint) -> None:
    endpoint.answers(reply("down", status=503))
    turn = await world.take(world.agent(tools=[http_tool(endpoint)]), *[call("find")] * 6, Reply(text="gave up"))
    assert turn.candidate.text == "gave up"
    assert len(world.told()) == 6


async def test_an_address_that_may_not_be_reached_is_told_to_the_model(world: World, endpoint: Endpoint) -> None:
    tool = http_tool(endpoint) | {"url": "http://127.0.0.1:1/x"}
    await world.take(world.agent(tools=[tool]), call("find"), Reply())
    assert "loopback" in world.told()[0]


async def test_long_answers_are_cut_and_binary_ones_are_shown(world: World, endpoint: Endpoint) -> None:
    endpoint.answers(reply("x" * (MAX_RESULT_BYTES + 7)), reply(b"\xff\x00ok"), reply(b"", status=204))
    await world.take(world.agent(tools=[http_tool(endpoint)]), call("find"), call("find"), call("find"), Reply())
    long, binary, empty = world.told()
    assert long == "x" * MAX_RESULT_BYTES + "\n[cut here: the whole result has 100,007 bytes]"
    assert binary == "\ufffd\x00ok"
    assert empty == "HTTP 204, with nothing in it"


async def test_secrets_are_sent_and_never_shown(
    world: World, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LW_TOKEN", "s3cret-value\n")
    endpoint.answers(reply({"you sent": "Bearer s3cret-value"}), reply("bad key s3cret-value", status=401))
    tool = http_tool(endpoint, headers={"Authorization": "Bearer ${LW_TOKEN}"})
    turn = await world.take(world.agent(tools=[tool]), call("find"), call("find"), Reply())
    assert [r.headers["authorization"] for r in endpoint.received] == ["Bearer s3cret-value"] * 2
    assert world.told() == ['{"you sent": "Bearer ${LW_TOKEN}"}', '{"error":"HTTP 401: bad key ${LW_TOKEN}"}']
    everything = json.dumps(world.provider.bodies) + turn.model_dump_json() + repr(world.journal.events)
    assert "s3cret" not in everything


def test_a_missing_secret_is_found_when_the_agent_is_built(world: World, endpoint: Endpoint) -> None:
    tool = http_tool(endpoint, headers={"X-Key": "${LW_NOT_SET_ANYWHERE}"})
    with pytest.raises(InvalidInput) as refused:
        world.agent(tools=[tool])
    assert [p.field for p in refused.value.problems] == ["agent.tools.0.headers.X-Key"]


# --- what is wrong with tools is said at once ---


def test_everything_wrong_with_the_tools_comes_at_once(world: World, endpoint: Endpoint) -> None:
    write(world.folder, "lw_mine.py", "def loop_done(reason: str): ...\ndef fine(x: int) -> int: return x\nNOT = 1\n")
    good = parameters(q=STRING)
    tools = [
        http_tool(endpoint, parameters={"type": "array"}),
        http_tool(endpoint, name="b", parameters=parameters(q={"type": "wrong"})),
        http_tool(endpoint, "/{who}", name="c", parameters=good),
        http_tool(endpoint, name="d", parameters=good) | {"url": "http://{q}.example.com/"},
        http_tool(endpoint, name="e") | {"url": "ftp://example.com/"},
        http_tool(endpoint, name="f", parameters=parameters(q={"$ref": "http://127.0.0.1:1/schema"})),
        http_tool(endpoint, name="b"),
        http_tool(endpoint, name="loop_done"),
        {"kind": "python", "function": "lw_mine:loop_done"},
        {"kind": "python", "function": "lw_mine:missing"},
        {"kind": "python", "function": "lw_mine:NOT"},
        {"kind": "mcp", "name": "m"},
        {"kind": "mcp", "name": "n", "url": "http://127.0.0.1:1/mcp", "command": ["x"]},
        {"kind": "mcp", "name": "o", "url": "file:///etc/passwd", "headers": {"A": "${LW_NOT_SET_ANYWHERE}"}},
        {"kind": "agent", "name": "p", "description": "d", "agent": {"model": "nobody:knows"}},
    ]
    with pytest.raises(InvalidInput) as refused:
        world.agent(tools=tools)
    found = {p.field: p.message for p in refused.value.problems}
    assert found.keys() == {
        "agent.tools.0.parameters",
        "agent.tools.1.parameters",
        "agent.tools.2.url",
        "agent.tools.3.url",
        "agent.tools.4.url",
        "agent.tools.5.parameters",
        "agent.tools.6.name",
        "agent.tools.7.name",
        "agent.tools.8.function",
        "agent.tools.9.function",
        "agent.tools.10.function",
        "agent.tools.11",
        "agent.tools.12",
        "agent.tools.13.url",
        "agent.tools.13.headers.A",
        "agent.tools.14.agent.model",
    }
    assert found["agent.tools.7.name"] == "`loop_done` is the builtin that ends a run; give your tool another name"
    assert "two tools are called `b`" in found["agent.tools.6.name"]
    assert "not the host" in found["agent.tools.3.url"]
    assert world.provider.seen == 0


# --- python ---

FUNCTIONS = '''
import threading
from dataclasses import dataclass
from pydantic import BaseModel
from pydantic_ai import RunContext, ToolReturn

def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b

async def thread(name: str) -> dict[str, str]:
    """Says in which thread it runs."""
    return {"name": name, "thread": threading.current_thread().name}

def sync_thread() -> str:
    return threading.current_thread().name

def breaks(how: str) -> str:
    if how == "stop": raise StopIteration
    if how == "exit": raise SystemExit(3)
    raise KeyError(how)

def big() -> list[str]:
    return ["x" * 1000] * 200

class Model(BaseModel):
    text: str

@dataclass
class Record:
    text: str

def big_model() -> Model:
    return Model(text="x" * 200_000)

def big_record() -> Record:
    return Record("x" * 200_000)

def big_return() -> ToolReturn:
    return ToolReturn(Record("x" * 200_000))

def big_tuple() -> tuple[str, str]:
    return "1234", "x" * 200_000

def with_context(ctx: RunContext[None], word: str) -> str:
    return f"{word} {ctx.tool_name}"

def untyped(x):
    return x

started = threading.Event()

def hangs() -> str:
    started.set()
    threading.Event().wait()
    return ""
'''


def python_tools(world: World, *names: str) -> list[dict[str, Any]]:
    write(world.folder, "lw_tools.py", FUNCTIONS)
    return [{"kind": "python", "function": f"lw_tools:{name}"} for name in names]


async def test_python_functions_describe_themselves(world: World) -> None:
    agent = world.agent(tools=python_tools(world, "add", "thread", "with_context", "untyped"))
    await world.take(
        agent, call("add", a=2), call("thread", name="n"), call("with_context", word="w"), call("untyped", x=[1])
    )
    add = world.offered()["add"]
    assert add["description"].startswith("Add two numbers.")
    assert add["parameters"]["properties"]["a"] == {"type": "integer", "description": "the first number"}
    assert add["parameters"]["required"] == ["a"]
    assert world.offered()["with_context"]["parameters"]["properties"].keys() == {"word"}
    assert world.told() == ["3", '{"name":"n","thread":"MainThread"}', "w with_context", "[1]"]


async def test_a_sync_function_runs_in_a_thread_of_its_own(world: World) -> None:
    await world.take(world.agent(tools=python_tools(world, "sync_thread")), call("sync_thread"))
    assert world.told() == ["loopwright-function"]


@pytest.mark.parametrize(
    ("how", "told"), [("x", "KeyError: 'x'"), ("stop", "raised StopIteration"), ("exit", "raised SystemExit: 3")]
)
async def test_a_function_that_raises_is_told_to_the_model(world: World, how: str, told: str) -> None:
    agent = world.agent(tools=python_tools(world, "breaks"))
    turn = await world.take(agent, call("breaks", how=how), Reply(text="fine"))
    assert told in world.told()[0]
    assert turn.candidate.text == "fine"


async def test_wrong_arguments_are_asked_for_again(world: World) -> None:
    await world.take(world.agent(tools=python_tools(world, "add")), call("add", a="many"), call("add", a=1))
    assert "valid integer" in world.told(1)[0]
    assert world.told(2)[1] == "2"


async def test_a_long_result_that_isnt_text_is_cut_too(world: World) -> None:
    await world.take(world.agent(tools=python_tools(world, "big")), call("big"))
    assert world.told()[0].endswith("[cut here: the whole result has 200,601 bytes]")


@pytest.mark.parametrize("name", ["big_model", "big_record", "big_return", "big_tuple"])
async def test_a_long_result_that_is_an_object_is_cut_too(world: World, name: str) -> None:
    await world.take(world.agent(tools=python_tools(world, name)), call(name))
    assert world.told()[0].endswith("x\n[cut here: the whole result has 200,011 bytes]")


async def test_a_sync_function_that_hangs_doesnt_hold_up_a_cancellation(world: World) -> None:
    agent = world.agent(tools=python_tools(world, "hangs"))
    turn = asyncio.ensure_future(world.take(agent, call("hangs")))
    assert await asyncio.to_thread(sys.modules["lw_tools"].started.wait, 5)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(turn, 5)
    assert (await world.store.wallet()).reserved == 0


# --- mcp ---

SERVER = '''
import os, sys
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("numbers")

@server.tool()
def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n

@server.tool()
def fail() -> str:
    raise ToolError("no luck")

@server.tool()
def die() -> str:
    os._exit(1)

print("started", os.getcwd(), file=sys.stderr)
server.run("stdio")
'''


def stdio_server(world: World, **fields: Any) -> dict[str, Any]:
    write(world.folder, "lw_server.py", SERVER)
    return {"kind": "mcp", "name": "numbers", "command": [sys.executable, "lw_server.py"], **fields}


async def test_an_mcp_server_over_stdio(world: World) -> None:
    agent = world.agent(tools=[stdio_server(world)])
    turn = await world.take(agent, call("double", n=21), call("fail"), call("double", n="x"), Reply(text="42"))
    assert world.offered().keys() == {"double", "fail", "die", "loop_done"}
    assert world.offered()["double"]["description"] == "Doubles a number."
    assert "42" in world.told()[0]
    assert "no luck" in world.told()[1]
    assert "integer" in world.told()[2]
    assert turn.candidate.text == "42"
    log = (world.folder / ".loopwright" / "mcp-numbers.log").read_text()
    assert f"started {world.folder.resolve()}" in log


async def test_the_agent_gets_only_the_tools_that_it_is_allowed(world: World) -> None:
    turn = await world.take(world.agent(tools=[stdio_server(world, allow=["double"])]), call("die"), Reply(text="no"))
    assert world.offered().keys() == {"double", "loop_done"}
    assert "Unknown tool name: 'die'" in world.told()[0]
    assert turn.candidate.text == "no"


async def test_a_tool_that_the_server_doesnt_have_is_found_before_anything_is_paid(world: World) -> None:
    with pytest.raises(AgentFailed, match="has no tool tripel; it has die, double, fail"):
        await world.take(world.agent(tools=[stdio_server(world, allow=["tripel"])]))
    assert world.provider.seen == 0


async def test_a_server_that_dies_is_told_to_the_model(world: World) -> None:
    agent = world.agent(tools=[stdio_server(world)])
    turn = await world.take(agent, call("die"), *[call("double", n=1)] * 4, Reply(text="went on"))
    assert turn.candidate.text == "went on"
    assert len(world.told()) == 5
    assert "closed" in world.told()[0].lower()


async def test_a_server_that_cant_start_ends_in_a_sentence(world: World) -> None:
    for command in (["./there-is-no-such-server"], [sys.executable, "-c", "raise SystemExit('no licence')"]):
        tool = {"kind": "mcp", "name": "numbers", "command": command}
        with pytest.raises(AgentFailed, match="the MCP server 'numbers' can't be reached"):
            await world.take(world.agent(tools=[tool]))
    assert "no licence" in (world.folder / ".loopwright" / "mcp-numbers.log").read_text()
    assert world.provider.seen == 0


class Web(uvicorn.Server):
    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, port=0, log_level="error", ws="none"))
        self.ready = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def http_server() -> AsyncGenerator[tuple[str, list[str]]]:
    seen = list[str]()
    server = MCPServer("numbers")

    @server.tool()
    def triple(n: int) -> int:  # pyright: ignore[reportUnusedFunction]
        return 3 * n

    @server.tool()
    def echo(context: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"you sent {dict(context.headers or {}).get('x-key')} {MAX_RESULT_BYTES * 'x'}"

    @server.tool()
    def refuse(context: Context) -> str:  # pyright: ignore[reportUnusedFunction]
        raise ToolError(f"no such key: {dict(context.headers or {}).get('x-key')}")

    @server.tool()
    def loop_done(reason: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return reason

    app = server.streamable_http_app(stateless_http=True)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value.decode() for name, value in scope.get("headers", []) if name == b"x-key")
        await app(scope, receive, send)

    web = Web(watched)
    serving = asyncio.ensure_future(web.serve())
    await web.ready.wait()
    port = web.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/mcp", seen
    finally:
        web.should_exit = True
        await serving


async def test_an_mcp_server_over_streamable_http(open_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LW_MCP_KEY", "k-123")
    async with http_server() as (url, seen):
        tool = {"kind": "mcp", "name": "n", "url": url, "allow": ["triple"], "headers": {"X-Key": "${LW_MCP_KEY}"}}
        turn = await open_world.take(open_world.agent(tools=[tool]), call("triple", n=5), Reply(text="15"))
    assert "15" in open_world.told()[0]
    assert turn.candidate.text == "15"
    assert set(seen) == {"k-123"}


async def test_a_secret_that_a_server_sends_back_is_not_shown(
    open_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LW_MCP_KEY", "mcp-secret-1")
    async with http_server() as (url, seen):
        tool = {
            "kind": "mcp",
            "name": "n",
            "url": url,
            "allow": ["echo", "refuse"],
            "headers": {"X-Key": "${LW_MCP_KEY}"},
        }
        await open_world.take(open_world.agent(tools=[tool]), call("echo"), call("refuse"), Reply())
    assert set(seen) == {"mcp-secret-1"}
    echoed, refused = open_world.told()
    assert echoed.startswith("you sent ${LW_MCP_KEY} xxx")
    assert "[cut here" in echoed
    assert "no such key: ${LW_MCP_KEY}" in refused
    assert "mcp-secret" not in json.dumps(open_world.provider.bodies) + repr(open_world.journal.events)


@pytest.mark.parametrize("kind", ["mcp", "http"])
def test_a_secret_that_can_not_be_sent_is_refused_and_not_shown(
    world: World, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("LW_MCP_KEY", "first-line\nSECOND")
    tool = http_tool(endpoint) if kind == "http" else {"kind": "mcp", "name": "n", "url": f"http://{endpoint.host}/"}
    with pytest.raises(InvalidInput) as refused:
        world.agent(tools=[tool | {"headers": {"X-Key": "${LW_MCP_KEY}"}}])
    (problem,) = refused.value.problems
    assert problem.field == "agent.tools.0.headers.X-Key"
    assert problem.message == "its value holds control characters and can't be sent"


async def test_a_server_with_a_tool_called_loop_done_is_refused_with_a_sentence(open_world: World) -> None:
    async with http_server() as (url, _):
        with pytest.raises(InvalidInput, match="loop_done"):
            await open_world.take(open_world.agent(tools=[{"kind": "mcp", "name": "n", "url": url}]))
    assert open_world.provider.seen == 0


async def test_an_http_server_that_goes_away_is_told_to_the_model(open_world: World) -> None:
    async with AsyncExitStack() as stack:
        async with http_server() as (url, _):
            agent = open_world.agent(tools=[{"kind": "mcp", "name": "n", "url": url, "allow": ["triple"]}])
            await stack.enter_async_context(agent)
        turn = await open_world.take(agent, call("triple", n=1), Reply(text="went on"))
    assert open_world.told() == ['{"error":"Connection closed"}']
    assert turn.candidate.text == "went on"


async def test_a_server_that_may_not_be_reached_is_refused_by_its_address(world: World) -> None:
    async with http_server() as (url, seen):
        tool = {"kind": "mcp", "name": "n", "url": url, "headers": {"X-Key": "secret"}}
        with pytest.raises(EgressRefused, match="loopback"):
            await world.take(world.agent(tools=[tool]))
    assert seen == []
    assert world.provider.seen == 0


async def test_a_server_that_redirects_elsewhere_is_not_followed(world: World, endpoint: Endpoint) -> None:
    endpoint.answers(reply(b"", status=307, location="http://169.254.169.254/mcp"))
    with pytest.raises(AgentFailed, match="can't be reached"):
        await world.take(world.agent(tools=[{"kind": "mcp", "name": "n", "url": f"http://{endpoint.host}/mcp"}]))
    assert world.provider.seen == 0


# --- agents as tools ---


def agent_tool(world: World, name: str = "helper", **fields: Any) -> dict[str, Any]:
    return {"kind": "agent", "name": name, "description": "Helps.", "agent": world.spec(**fields)}


async def test_an_agent_as_a_tool_spends_from_the_same_wallet(world: World) -> None:
    agent = world.agent(tools=[agent_tool(world, instructions="Be brief.")])
    turn = await world.take(
        agent, call("helper", question="How deep?"), Reply(text="very", tokens=(50, 5)), Reply(text="very deep")
    )
    assert turn.candidate.text == "very deep"
    assert [m["content"] for m in world.messages(1)] == ["Be brief.", "How deep?"]
    assert world.told() == ["very"]
    cost = await world.store.cost()
    assert cost.by_role == {"agent": 2 * ONE_REQUEST, "subagent": Decimal("0.0001")}
    assert [c.reservation.role for c in world.charges] == ["agent", "subagent", "agent"]
    assert all(c.reservation.iteration == 1 for c in world.charges)


async def test_an_inner_agent_may_answer_in_a_schema(world: World) -> None:
    schema = parameters("depth", depth={"type": "integer"})
    agent = world.agent(tools=[agent_tool(world, output_schema=schema)])
    await world.take(agent, call("helper", question="?"), call("final_result", depth=11), Reply())
    assert world.told() == ['{"depth": 11}']


async def test_loop_done_is_the_outer_agents_own(world: World) -> None:
    agent = world.agent(tools=[agent_tool(world)])
    turn = await world.take(
        agent, call("helper", question="?"), call("loop_done", reason="inner"), Reply(text="i"), Reply(text="outer")
    )
    assert "loop_done" not in world.offered(1)
    assert turn.done_reason is None
    assert turn.candidate.text == "outer"


async def test_wrong_arguments_to_an_agent_are_asked_for_again(world: World) -> None:
    await world.take(world.agent(tools=[agent_tool(world)]), call("helper", q="?"), call("helper", question="?"))
    assert "'question' is a required property" in world.told(1)[0]


async def test_two_deep_all_of_it_is_paid(world: World) -> None:
    inner = agent_tool(world, "inner", instructions="I")
    middle = agent_tool(world, "middle", instructions="M", tools=[inner])
    turn = await world.take(
        world.agent(tools=[middle]),
        call("middle", question="a"),
        call("inner", question="b"),
        Reply(text="from inner"),
        Reply(text="from middle"),
        Reply(text="from outer"),
    )
    assert turn.candidate.text == "from outer"
    assert (await world.store.cost()).by_role == {"agent": 2 * ONE_REQUEST, "subagent": 3 * ONE_REQUEST}


async def test_an_inner_agent_stops_after_its_own_most_requests(world: World) -> None:
    write(world.folder, "lw_tools.py", FUNCTIONS)
    inner = agent_tool(world, max_requests=2, tools=[{"kind": "python", "function": "lw_tools:sync_thread"}])
    agent = world.agent(tools=[inner])
    turn = await world.take(agent, call("helper", question="?"), *[call("sync_thread")] * 2, Reply(text="done"))
    assert "request_limit of 2" in world.told()[0]
    assert turn.candidate.text == "done"
    assert world.provider.seen == 4


async def test_an_inner_agent_that_fails_is_told_to_the_outer_one(world: World) -> None:
    agent = world.agent(tools=[agent_tool(world)])
    turn = await world.take(agent, call("helper", question="?"), Reply(status=400), Reply(text="alone"))
    assert "helper failed: ModelRequestRejectedError: status_code: 400" in world.told()[0]
    assert turn.candidate.text == "alone"


async def test_a_budget_that_trips_inside_ends_the_turn(make_world: MakeWorld) -> None:
    world = make_world(cap="0.05")
    inner = agent_tool(world, max_output_tokens=100_000, instructions="x" * 60_000)
    with pytest.raises(BudgetExceeded) as refused:
        await asyncio.wait_for(world.take(world.agent(tools=[inner]), call("helper", question="?")), 5)
    assert refused.value.needed > Decimal("0.05")
    assert world.provider.seen == 1
    wallet = await world.store.wallet()
    assert (wallet.spent, wallet.reserved) == (ONE_REQUEST, 0)


async def test_a_run_that_cant_be_recorded_ends_inside_too(world: World) -> None:
    agent = world.agent(tools=[agent_tool(world)])

    def full(event: object) -> None:
        if world.provider.seen == 2:
            raise OSError("no space left")

    world.store.__init__("run-1", cap=None, clock=world.clock, sinks=[full])
    with pytest.raises(StoreUnavailable, match="no space left"):
        await world.take(agent, call("helper", question="?"))


async def test_an_inner_model_without_a_price_is_refused_before_it_is_asked(world: World) -> None:
    agent = world.agent(tools=[agent_tool(world, model="openai:gpt-4o-mini-homemade")])
    with pytest.raises(UnknownPrice, match="gpt-4o-mini-homemade"):
        await world.take(agent, call("helper", question="?"))
    assert world.provider.seen == 1
