"""The composition root: everything put together into one application."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from .api.auth import COOKIE, Gate
from .api.build import build_api
from .api.errors import status_of
from .dashboard.install import add_dashboard
from .mcp_server.http import McpDoor
from .service.runtime import Runtime, open_runtime
from .settings import Settings
from .store.database import Urls


def create_app(
    settings: Settings | None = None,
    *,
    urls: Urls | None = None,
    engine: bool = True,
    runtime: Runtime | None = None,
) -> FastAPI:
    """The application: API, dashboard, MCP server, live events and, with `engine`, a worker.

    Args:
        settings: by default those of the environment.
        urls: a database that is up already, instead of the one that the settings name.
        engine: whether this process executes runs.
        runtime: one that is open already; then the other arguments but the settings count for nothing.

    Raises:
        InvalidInput: a setting can't be used.
    """
    chosen = settings or Settings()
    chosen.check()
    mcp = McpDoor()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        opened = nullcontext(runtime) if runtime else open_runtime(chosen, engine=engine, urls=urls)
        async with opened as found, app.state.metrics.measuring():
            app.state.runtime = found
            gate = app.state.gate = Gate.of(found)
            async with mcp.open(found, gate.caller):
                yield
            found.hub.close()

    app = build_api(chosen, lifespan)
    mcp.add_to(app)
    return add_dashboard(app, chosen, cookie_name=COOKIE, status_of=status_of)
