"""The composition root: everything put together into one application."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI

from .api.auth import COOKIE, Gate
from .api.build import build_api
from .api.errors import status_of
from .dashboard.install import add_dashboard
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
    """The application: API, dashboard, live events and, with `engine`, a worker.

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

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        opened = nullcontext(runtime) if runtime else open_runtime(chosen, engine=engine, urls=urls)
        async with opened as found:
            app.state.runtime = found
            app.state.gate = Gate.of(found)
            yield
            found.hub.close()

    return add_dashboard(build_api(chosen, lifespan), chosen, cookie_name=COOKIE, status_of=status_of)
