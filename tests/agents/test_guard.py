"""Tool calls are judged before they are made, whatever kind of tool it is and whoever calls it."""

from __future__ import annotations

import sys
from typing import Any

from loopwright.agents.guard import Guardrails
from loopwright.core.events import GuardrailRefusal, ToolCalled
from loopwright.core.guardrails import Rule, Subject

from ..feedback.endpoint import Endpoint
from .provider import Reply
from .test_tools import SERVER, STRING, http_tool, parameters
from .turns import World, call, write

NOTE = """
def note(text: str) -> str:
    "Notes a text."
    with open("noted", "a") as file:
        file.write(text)
    return "noted"
"""


NO_SWORDS = {"kind": "deny_pattern", "pattern": "sword|^die$", "scope": "tools"}


def guard(world: World, spec: dict[str, Any]) -> None:
    """Give the world a rule for tool calls."""
    rule = Rule.of({"id": "1", "name": "No swords", "version": 1, "spec": spec})
    world.guard = Guardrails(rules=[rule], loop=Subject(what="goal", text="")).of_run(world.store)


async def test_every_kind_of_tool(world: World, endpoint: Endpoint) -> None:
    guard(world, NO_SWORDS)
    write(world.folder, "lw_judged.py", NOTE.replace('noted", "a', f'{world.folder}/noted", "a'))
    write(world.folder, "lw_server.py", SERVER)
    agent = world.agent(
        tools=[
            http_tool(endpoint, parameters=parameters(q=STRING)),
            {"kind": "python", "function": "lw_judged:note"},
            {"kind": "mcp", "name": "numbers", "command": [sys.executable, "lw_server.py"]},
            {"kind": "agent", "name": "helper", "description": "Helps.", "agent": world.spec()},
        ]
    )
    calls = (
        ("find", {"q": "a sword"}),
        ("note", {"text": "a SW\u200bORD"}),
        ("die", {}),
        ("helper", {"question": "a sword?"}),
        ("note", {"text": "a rose"}),
    )
    turn = await world.take(agent, Reply(tools=calls), Reply(text="done"))
    assert turn.candidate.text == "done"
    told = world.told()
    for name, words in zip(("find", "note", "die", "helper"), told, strict=False):
        assert f"the guardrail 'No swords' refuses this tool call `{name}`" in words
    assert told[4] == "noted"
    assert endpoint.received == []
    assert (world.folder / "noted").read_text() == "a rose"
    assert len(world.provider.bodies) == 2, "the helper was not asked"
    assert {event.tool for event in world.journal.of(GuardrailRefusal)} == {"find", "note", "die", "helper"}
    assert [event.name for event in world.journal.of(ToolCalled)] == ["note"]


async def test_the_calls_of_an_agent_that_is_a_tool(world: World, endpoint: Endpoint) -> None:
    guard(world, NO_SWORDS)
    inner = world.spec(tools=[http_tool(endpoint, parameters=parameters(q=STRING))])
    helper = {"kind": "agent", "name": "helper", "description": "Helps.", "agent": inner}
    agent = world.agent(tools=[helper])
    replies = (call("helper", question="fine"), call("find", q="a sword"), Reply(text="no"), Reply(text="done"))
    await world.take(agent, *replies)
    assert endpoint.received == []
    assert "refuses this tool call `find`" in world.told(2)[0]
    assert world.told(3) == ["no"]


async def test_a_host_in_the_arguments(world: World, endpoint: Endpoint) -> None:
    guard(world, {"kind": "allowed_hosts", "hosts": ["good.example.com"]})
    agent = world.agent(tools=[http_tool(endpoint, parameters=parameters(q=STRING))])
    fine, bad = "https://good.example.com/a", "https://good.example.com.bad.example/a"
    await world.take(agent, call("find", q=f"see {fine}"), call("find", q=f"see {fine} and {bad}"), Reply(text="done"))
    assert [each.json for each in endpoint.received] == [{"q": f"see {fine}"}]
    assert "the host 'good.example.com.bad.example' is not among those" in world.told()[1]
