"""An agent's tools, from their specs. A tool that isn't granted is never registered with the agent."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode

from pydantic import JsonValue
from pydantic_ai import FunctionToolset, ModelRetry, RunContext, Tool
from pydantic_ai.toolsets import AbstractToolset

from ..core.errors import EgressRefused, InvalidInput, Problem
from ..core.spec import AgentSpec, AgentTool, HttpTool, McpTool, PythonTool, ToolSpec
from ..egress import EgressClient, EgressFailed, checked_url, resolve_headers
from .schemas import ObjectSchema

if TYPE_CHECKING:
    from pydantic_ai import Agent

MAX_RESULT_BYTES = 100_000
"""A longer tool result is cut before the model sees it."""

BuildAgent = Callable[[AgentSpec, str], "Agent[object, object]"]
"""Makes the agent behind a tool of kind `agent`, given its spec and its place in the loop file."""


def build_toolsets(
    tools: Sequence[ToolSpec], *, egress: EgressClient, folder: Path, build_agent: BuildAgent, where: str = "agent"
) -> list[AbstractToolset[object]]:
    """Make the toolsets of an agent.

    Args:
        tools: the specs.
        egress: carries the requests of `http` tools.
        folder: the loop file's, where Python functions are found and MCP servers are started.
        build_agent: makes the agents behind tools of kind `agent`.
        where: dotted path of the agent in the loop file, for messages.

    Raises:
        InvalidInput: a tool that can't work, and why.
    """
    functions: list[Tool[object]] = []
    toolsets: list[AbstractToolset[object]] = []
    for number, spec in enumerate(tools):
        place = f"{where}.tools.{number}"
        match spec:
            case HttpTool():
                functions.append(_http_tool(spec, egress, place))
            case PythonTool():
                functions.append(Tool(import_function(spec.function, folder, f"{place}.function")))
            case AgentTool():
                functions.append(_agent_tool(spec, build_agent, place))
            case McpTool():
                toolsets.append(_mcp_toolset(spec, folder, place))
    names = [tool.name for tool in functions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        message = f"two tools are called {', '.join(twice)}; give each its own name"
        raise InvalidInput(Problem(field=f"{where}.tools", message=message))
    return [FunctionToolset(functions, id="tools"), *toolsets] if functions else toolsets


def import_function(reference: str, folder: Path, field: str) -> Callable[..., object]:
    """Import `module:function`, looking in the loop file's folder first.

    Raises:
        InvalidInput: there is no such module or function, or it isn't callable.
    """
    module_name, _, attribute = reference.partition(":")
    path = str(folder.resolve())
    sys.path.insert(0, path)
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InvalidInput(Problem(field=field, message=f"can't import {reference!r}: {error}")) from None
    finally:
        sys.path.remove(path)
    if not callable(found):
        raise InvalidInput(Problem(field=field, message=f"{reference!r} is not a function"))
    return found


def _http_tool(spec: HttpTool, egress: EgressClient, place: str) -> Tool[object]:
    schema = ObjectSchema(spec.parameters, f"{place}.parameters")
    properties = cast("dict[str, JsonValue]", spec.parameters.get("properties") or {})
    in_path = set(re.findall(r"\{(\w+)\}", spec.url))
    if unknown := sorted(in_path - properties.keys()):
        message = f"names {', '.join(unknown)}, which parameters.properties does not have"
        raise InvalidInput(Problem(field=f"{place}.url", message=message))

    try:
        checked_url(spec.url)
    except EgressRefused as error:
        raise InvalidInput(Problem(field=f"{place}.url", message=str(error))) from None

    async def call(**arguments: JsonValue) -> str:
        if mistake := schema.mistake(arguments):
            raise ModelRetry(f"the arguments don't follow the schema: {mistake}")
        # An argument is one path segment whatever it holds, so that it can't reach another address.
        url = re.sub(r"\{(\w+)\}", lambda m: quote(_plain(arguments.get(m[1])), safe=""), spec.url)
        rest = {name: value for name, value in arguments.items() if name not in in_path}
        headers, content = resolve_headers(spec.headers, where=f"{place}.headers"), b""
        if spec.method in ("GET", "DELETE"):
            query = urlencode({name: _plain(value) for name, value in rest.items()})
            url = f"{url}{'&' if '?' in url else '?'}{query}" if query else url
        else:
            headers, content = {"Content-Type": "application/json", **headers}, json.dumps(rest).encode()
        try:
            answer = await egress.request(
                spec.method, url, headers=headers, content=content, timeout_seconds=spec.timeout_seconds
            )
        except (EgressFailed, EgressRefused) as error:
            raise ModelRetry(f"the request failed: {error}") from None
        text = answer.body[:MAX_RESULT_BYTES].decode(errors="replace")
        return text if answer.status < 400 else f"HTTP {answer.status}: {text}"

    return Tool.from_schema(call, name=spec.name, description=spec.description, json_schema=spec.parameters)


def _agent_tool(spec: AgentTool, build_agent: BuildAgent, place: str) -> Tool[object]:
    agent = build_agent(spec.agent, f"{place}.agent")

    async def ask(ctx: RunContext[object], question: str) -> str:
        # The wallet finds its meter by context; usage stays apart, since the outer turn counts only its own requests.
        result = await agent.run(question)
        output = result.output
        return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)

    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "What to ask, with all that it needs to know."}},
        "required": ["question"],
        "additionalProperties": False,
    }
    return Tool.from_schema(ask, name=spec.name, description=spec.description, json_schema=schema, takes_ctx=True)


def _mcp_toolset(spec: McpTool, folder: Path, place: str) -> AbstractToolset[object]:
    from pydantic_ai.mcp import MCPToolset

    if (spec.url is None) == (spec.command is None):
        raise InvalidInput(Problem(field=place, message="give either `url` or `command`"))
    toolset: MCPToolset[object]
    if spec.url is not None:
        headers = resolve_headers(spec.headers, where=f"{place}.headers")
        toolset = MCPToolset(spec.url, id=spec.name, headers=headers or None)
    else:
        from fastmcp.client.transports import StdioTransport

        command, *arguments = spec.command or []
        toolset = MCPToolset(StdioTransport(command, arguments, cwd=str(folder)), id=spec.name)
    if spec.allow is None:
        return toolset
    allowed = frozenset(spec.allow)
    return toolset.filtered(lambda _, definition: definition.name in allowed)


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
