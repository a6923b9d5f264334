"""The MCP server over both of its transports, with the official client in front."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from loopwright.service.agents import AgentChange, create_agent
from loopwright.service.loops import LoopChange, create_loop
from loopwright.service.runtime import open_runtime
from loopwright.settings import Settings
from loopwright.store.database import Urls
from tests.api.world import AGENT, LOOP, SERVICE_KEY, Api
from tests.postgres import OWNER


@asynccontextmanager
async def served(api: Api) -> AsyncGenerator[str]:
    """The application on a port of this machine; gives the address."""
    config = uvicorn.Config(api.app, port=0, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def over_http(address: str, user: str = OWNER, **headers: str) -> AsyncGenerator[Client]:
    """A client of the service over HTTP, acting for a user."""
    sent = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": user, **headers}
    async with (
        httpx2.AsyncClient(headers=sent, timeout=60) as http,
        Client(streamable_http_client(f"{address}/mcp", http_client=http)) as client,
    ):
        yield client


def stdio_environment(urls: Urls, home: Path) -> dict[str, str]:
    """What the server is started with: the test's database instead of the one in the data folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOOPWRIGHT_")}
    return {
        **kept,
        "DATABASE_URL": urls.app,
        "DATABASE_URL_DIRECT": urls.direct,
        "LOOPWRIGHT_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


@asynccontextmanager
async def over_stdio(urls: Urls, home: Path) -> AsyncGenerator[Client]:
    """A client that starts the server itself, as desktop clients do."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "loopwright", "mcp"], env=stdio_environment(urls, home), cwd=home
    )
    async with Client(stdio_client(command)) as client:
        yield client


async def make_own_loop(urls: Urls, home: Path, name: str = "codes", **agent: Any) -> str:
    """A loop of the owner of a local installation; gives its id."""
    async with open_runtime(Settings(home=home, _env_file=None), engine=False, urls=urls) as runtime:  # pyright: ignore[reportCallIssue]
        made = await create_agent(runtime, runtime.owner(), AgentChange(name=name, spec={**AGENT, **agent}))
        loop = LoopChange(name=name, agent_id=made.id, spec=LOOP)
        return str((await create_loop(runtime, runtime.owner(), loop)).id)


def structured(result: CallToolResult) -> dict[str, Any]:
    """What a tool answered."""
    assert not result.is_error, text(result)
    assert result.structured_content is not None
    return result.structured_content


def text(result: CallToolResult) -> str:
    """The same for clients that know no types; or what went wrong."""
    (part,) = result.content
    assert isinstance(part, TextContent)
    return part.text
