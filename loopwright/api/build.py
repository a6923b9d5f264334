"""The API as an application: all routes behind the guard, every error a problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI

from ..service.metrics import Metrics
from ..settings import Settings
from . import (
    agents,
    endpoints,
    events,
    guardrails,
    health,
    keys,
    loops,
    metrics,
    runs,
    schedules,
    secrets,
    session,
    threads,
    tools,
    usage,
    webhooks,
    workspace,
)
from .docs import document
from .errors import install
from .guard import Guard
from .numbered import Numbered

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def build_api(settings: Settings, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Make the application. The lifespan puts `runtime` and `gate` into its state."""
    app = FastAPI(
        title="Loopwright",
        version=version("loopwright"),
        lifespan=lifespan,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    for part in (
        agents,
        tools,
        loops,
        schedules,
        webhooks,
        guardrails,
        threads,
        endpoints,
        events,
        runs,
        usage,
        secrets,
        keys,
        workspace,
        health,
        metrics,
    ):
        add_routes(app, part.router, below="/api")
    add_routes(app, webhooks.hooks, below="/hooks")
    add_routes(app, session.router)
    install(app)
    app.state.metrics = Metrics()
    app.add_middleware(Guard, hosts=allowed_hosts(settings), max_body_bytes=settings.max_body_bytes)
    app.add_middleware(metrics.Counted, metrics=app.state.metrics)  # around the guard: its refusals count too
    app.add_middleware(Numbered)  # around all, so that refusals have a number too
    app.openapi = lambda: document(app)
    return app


def add_routes(app: FastAPI, router: APIRouter, *, below: str = "") -> None:
    """Add the routes of a router as they are: `include_router` would build each of them once more, which takes a third
    of a second for all.

    Raises:
        ValueError: the router's prefix is not the whole one.
    """
    if not router.prefix.startswith(below):
        raise ValueError(f"the prefix {router.prefix!r} has to begin with {below!r}")
    app.router.routes.extend(router.routes)


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """The names that requests may be addressed to."""
    listening = {settings.host.strip("[]").lower()} - {"0.0.0.0", "::"}  # noqa: S104 - left out, not listened on
    public = {urlsplit(settings.public_url).hostname or ""} if settings.public_url else set[str]()
    return frozenset({*LOOPBACK_NAMES, *listening, *public, *(name.lower() for name in settings.allowed_hosts)})
