"""An agent's tools, from their specs. A tool that isn't granted is never registered with the agent."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote, urlencode

import httpx2
from pydantic import BaseModel, JsonValue
from pydantic_ai import FunctionToolset, ModelRetry, RunContext, Tool, ToolReturn, UsageLimits
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import is_multi_modal_content
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_json

from ..core.errors import AgentFailed, EgressRefused, InvalidInput, Problem, Problems
from ..core.spec import AgentSpec, AgentTool, HttpTool, McpTool, PythonTool, ToolSpec
from ..egress import (
    EgressClient,
    EgressFailed,
    check_headers,
    checked_url,
    data_without_secrets,
    referred_to,
    resolve_headers,
    without_secrets,
)
from ..functions import load_function
from .failures import our_error
from .reach import egress_http_client
from .schemas import ObjectSchema
from .turn import DONE_TOOL

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset

_log = logging.getLogger(__name__)

MAX_RESULT_BYTES: Final = 100_000
"""A longer tool result is cut before the model sees it."""

MCP_START_SECONDS: Final = 30.0
"""How long an MCP server may take to start: some are installed by the command that runs them."""

BuildAgent = Callable[[AgentSpec, str], "Agent[object, object]"]
"""Makes the agent behind a tool of kind `agent`, given its spec and its place in the loop file."""

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_DOTS = re.compile(r"(^|[/\\])\.+([/\\]|$)")


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
        InvalidInput: all tools that can't work, and why.
    """
    functions: list[Tool[object]] = []
    servers: list[AbstractToolset[object]] = []
    problems = Problems(_clashes(tools, where))
    for number, spec in enumerate(tools):
        place = f"{where}.tools.{number}"
        with problems.collecting():
            match spec:
                case HttpTool():
                    functions.append(_http_tool(spec, egress, place))
                case PythonTool():
                    functions.append(_python_tool(spec, folder, f"{place}.function"))
                case AgentTool():
                    functions.append(_agent_tool(spec, build_agent, f"{place}.agent"))
                case McpTool():
                    servers.append(_mcp_toolset(spec, egress, folder, place))
    problems.refuse()
    own = [ToolErrors(FunctionToolset(functions, id="tools"))] if functions else []
    return [*own, *servers]


def _clashes(tools: Sequence[ToolSpec], where: str) -> list[Problem]:
    """Names that are taken. Those of an MCP server's tools are known only when the run starts."""
    problems: list[Problem] = []
    seen = Counter[str]()
    for number, spec in enumerate(tools):
        python = isinstance(spec, PythonTool)
        name = spec.function.rpartition(":")[2].rpartition(".")[2] if python else spec.name
        field = f"{where}.tools.{number}.{'function' if python else 'name'}"
        seen[name] += 1
        if name == DONE_TOOL:
            message = f"`{DONE_TOOL}` is the builtin that ends a run; give your tool another name"
            problems.append(Problem(field=field, message=message))
        elif seen[name] == 2:
            problems.append(Problem(field=field, message=f"two tools are called `{name}`; give each its own name"))
    return problems


@dataclass
class ToolErrors(WrapperToolset[object]):
    """Tells the model what went wrong in a tool, so that it can act on it. Errors of ours end the turn."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[object], tool: ToolsetTool[object]
    ) -> Any:
        """Call a tool; a result that is too long is cut."""
        try:
            return _cut(self.shown(await super().call_tool(name, tool_args, ctx, tool)))
        except (ModelRetry, ToolFailed, CallDeferred, ApprovalRequired):
            raise
        except AgentFailed as error:
            raise ToolFailed(str(error)) from error
        except Exception as error:
            raise our_error(error, lambda text: ToolFailed(f"{name} failed: {text}")) from error

    def shown(self, result: object) -> object:
        """What the model may see of a result, before it is cut."""
        return result


@dataclass
class McpServer(ToolErrors):
    """The tools of an MCP server, of which an agent gets those that it is allowed."""

    server: MCPToolset[object]
    name: str
    allow: frozenset[str] | None = None
    """Names of the tools that the agent gets; `None` for all."""
    log: Path | None = None
    """Where the server's stderr goes."""
    secrets: frozenset[str] = frozenset()
    """Names of the values that are sent to the server; where it sends one back, the model doesn't see it."""

    async def __aenter__(self) -> McpServer:
        """Connect.

        Raises:
            AgentFailed: the server can't be reached, or does not have the tools that the agent is to get.
        """
        try:
            if self.log is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
            await super().__aenter__()
        except Exception as error:
            see = f"; what it wrote is in {self.log.name}" if self.log is not None and self.log.exists() else ""
            raise our_error(
                error,
                lambda text: AgentFailed(
                    f"the MCP server {self.name!r} can't be reached ({without_secrets(text, self.secrets)}){see}"
                ),
            ) from error
        try:
            await self._check_tools()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *args: Any) -> bool | None:
        """Disconnect. A connection that is broken already takes nothing from what was done over it."""
        try:
            return await super().__aexit__(*args)
        except Exception:  # noqa: BLE001 - logged
            _log.warning("the connection to the MCP server %r was not closed cleanly", self.name, exc_info=True)
            return None

    async def _check_tools(self) -> None:
        names = {tool.name for tool in await self.server.list_tools()}
        if missing := sorted((self.allow or frozenset()) - names):
            has = ", ".join(sorted(names)) or "none"
            raise AgentFailed(f"the MCP server {self.name!r} has no tool {', '.join(missing)}; it has {has}")

    async def get_tools(self, ctx: RunContext[object]) -> dict[str, ToolsetTool[object]]:
        """The tools that the agent may use."""
        tools = await super().get_tools(ctx)
        return {name: tool for name, tool in tools.items() if self.allow is None or name in self.allow}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[object], tool: ToolsetTool[object]
    ) -> Any:
        """Call a tool. Asking again is up to the model: a server that is gone stays gone."""
        try:
            return await super().call_tool(name, tool_args, ctx, tool)
        except (ModelRetry, ToolFailed) as error:
            raise ToolFailed(without_secrets(error.message, self.secrets)) from error

    def shown(self, result: object) -> object:
        """A result without the secrets that the server was sent."""
        return data_without_secrets(result, self.secrets)


def _cut(result: object) -> object:
    if isinstance(result, ToolReturn):
        returned = cast("ToolReturn[object]", result)
        return replace(returned, return_value=_cut(returned.return_value))
    raw = _as_sent(result)
    if len(raw) <= MAX_RESULT_BYTES:
        return result
    return f"{raw[:MAX_RESULT_BYTES].decode(errors='ignore')}\n[cut here: the whole result has {len(raw):,} bytes]"


def _as_sent(result: object) -> bytes:
    """What a result comes to where it can be long and be cut; pictures and other files can't."""
    if isinstance(result, str):
        return result.encode(errors="replace")
    record = is_dataclass(result) and not isinstance(result, type) and not is_multi_modal_content(result)
    if record or isinstance(result, dict | list | tuple | set | frozenset | BaseModel):
        return to_json(cast(object, result), fallback=str, inf_nan_mode="constants")
    return b""


# --- http ---


def _http_tool(spec: HttpTool, egress: EgressClient, place: str) -> Tool[object]:
    problems = Problems()
    schema: ObjectSchema | None = None
    with problems.collecting():
        schema = ObjectSchema(spec.parameters, f"{place}.parameters")
    with problems.collecting():
        _check_url(spec, f"{place}.url")
    with problems.collecting():
        check_headers(resolve_headers(spec.headers, where=f"{place}.headers"), where=f"{place}.headers")
    problems.refuse()
    in_path = tuple(dict.fromkeys(_PLACEHOLDER.findall(spec.url)))
    secrets = referred_to(spec.headers)

    async def call(**arguments: JsonValue) -> str:
        if schema and (mistake := schema.mistake(arguments)):
            raise ModelRetry(f"the arguments don't follow the schema: {mistake}")
        url = _filled(spec.url, arguments)
        rest = {name: value for name, value in arguments.items() if name not in in_path}
        headers, content = resolve_headers(spec.headers, where=f"{place}.headers"), b""
        if spec.method in ("GET", "DELETE"):
            url = _with_query(url, rest)
        else:
            headers, content = {"Content-Type": "application/json", **headers}, json.dumps(rest).encode()
        try:
            answer = await egress.request(
                spec.method, url, headers=headers, content=content, timeout_seconds=spec.timeout_seconds
            )
        except (EgressFailed, EgressRefused) as error:
            raise ToolFailed(f"the request failed: {without_secrets(str(error), secrets)}") from None
        text = without_secrets(answer.body.decode(errors="replace"), secrets)
        if answer.status >= 400:
            raise ToolFailed(f"HTTP {answer.status}: {_cut(text)}")
        return text or f"HTTP {answer.status}, with nothing in it"

    # What stands in the path can't be left out, whatever the schema says of it.
    required = [*cast("list[str]", spec.parameters.get("required") or []), *in_path]
    parameters = {**spec.parameters, "required": list(dict.fromkeys(required))} if in_path else spec.parameters
    return Tool.from_schema(call, name=spec.name, description=spec.description, json_schema=parameters)


def _check_url(spec: HttpTool, field: str) -> None:
    if re.match(r"[^/]*//[^/?#]*\{", spec.url):
        message = "only the path and the query may hold {arguments}, not the host: the model would choose the address"
        raise InvalidInput(Problem(field=field, message=message))
    try:
        checked_url(_PLACEHOLDER.sub("x", spec.url))
    except EgressRefused as error:
        raise InvalidInput(Problem(field=field, message=str(error))) from None
    properties = cast("Mapping[str, JsonValue]", spec.parameters.get("properties") or {})
    if unknown := sorted(set(_PLACEHOLDER.findall(spec.url)) - properties.keys()):
        message = f"names {', '.join(unknown)}, which parameters.properties does not have"
        raise InvalidInput(Problem(field=field, message=message))


def _filled(url: str, arguments: Mapping[str, JsonValue]) -> str:
    """The address with its arguments. Each stays within its place, so that it can't make another address of it."""

    def value_of(place: re.Match[str]) -> str:
        text = _plain(arguments.get(place[1]))
        in_path = "?" not in url[: place.start()]
        if in_path and (not text.strip() or arguments.get(place[1]) is None or _DOTS.search(text)):
            raise ModelRetry(f"{place[1]} must be given and can't be {text!r:.100}: it is a part of an address's path")
        return quote(text.encode(errors="replace"), safe="")

    return _PLACEHOLDER.sub(value_of, url)


def _with_query(url: str, arguments: Mapping[str, JsonValue]) -> str:
    pairs = [
        (name, _plain(item))
        for name, value in arguments.items()
        for item in (value if isinstance(value, list) else [value])
        if item is not None
    ]
    address, sharp, fragment = url.partition("#")
    query = urlencode(pairs, errors="replace")
    return f"{address}{'&' if '?' in address else '?'}{query}{sharp}{fragment}" if query else url


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# --- python ---


def _python_tool(spec: PythonTool, folder: Path, field: str) -> Tool[object]:
    try:
        function = load_function(spec.function, folder)
    except ImportError as error:
        raise InvalidInput(Problem(field=field, message=str(error))) from None
    try:
        return Tool(function)
    except Exception as error:  # whatever a signature can do to pydantic
        message = f"{spec.function} can't be described to a model: {type(error).__name__}: {error}"
        raise InvalidInput(Problem(field=field, message=message[:1000])) from error


# --- agent ---

_QUESTION: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"question": {"type": "string", "description": "What to ask, with all that it needs to know."}},
    "required": ["question"],
    "additionalProperties": False,
}


def _agent_tool(spec: AgentTool, build_agent: BuildAgent, place: str) -> Tool[object]:
    agent = build_agent(spec.agent, place)
    schema = ObjectSchema(_QUESTION, place)
    limits = UsageLimits(request_limit=spec.agent.max_requests)

    async def ask(**arguments: JsonValue) -> str:
        if mistake := schema.mistake(arguments):
            raise ModelRetry(f"the arguments don't follow the schema: {mistake}")
        # The wallet finds its meter by context; usage stays apart, since the outer turn counts only its own requests.
        result = await agent.run(str(arguments["question"]), usage_limits=limits)
        output = result.output
        return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)

    return Tool.from_schema(ask, name=spec.name, description=spec.description, json_schema=_QUESTION)


# --- mcp ---


def _mcp_toolset(spec: McpTool, egress: EgressClient, folder: Path, place: str) -> AbstractToolset[object]:
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
    from pydantic_ai.mcp import MCPToolset

    if bool(spec.url) == bool(spec.command):
        raise InvalidInput(Problem(field=place, message="give either `url` or `command`"))
    transport: StdioTransport | StreamableHttpTransport
    log: Path | None = None
    if spec.url:

        def client(
            headers: dict[str, str] | None = None,
            timeout: httpx2.Timeout | None = None,
            auth: httpx2.Auth | None = None,
            **_: Any,
        ) -> httpx2.AsyncClient:
            return egress_http_client(egress, headers=headers, timeout=timeout, auth=auth)

        url, headers = _mcp_address(spec, spec.url, place)
        transport = StreamableHttpTransport(url, headers, httpx_client_factory=client)
    else:
        command, *arguments = spec.command or []
        log = folder.resolve() / ".loopwright" / f"mcp-{spec.name}.log"
        transport = StdioTransport(command, arguments, cwd=str(folder), keep_alive=False, log_file=log)
    server: MCPToolset[object] = MCPToolset(
        transport, id=spec.name, init_timeout=MCP_START_SECONDS, tool_error_behavior="failed"
    )
    allow = None if spec.allow is None else frozenset(spec.allow)
    return McpServer(server, server=server, name=spec.name, allow=allow, log=log, secrets=referred_to(spec.headers))


def _mcp_address(spec: McpTool, url: str, place: str) -> tuple[str, dict[str, str]]:
    problems, headers = Problems(), dict[str, str]()
    try:
        checked_url(url)
    except EgressRefused as error:
        problems.found.append(Problem(field=f"{place}.url", message=str(error)))
    with problems.collecting():
        headers = resolve_headers(spec.headers, where=f"{place}.headers")
        check_headers(headers, where=f"{place}.headers")
    problems.refuse()
    return url, headers
