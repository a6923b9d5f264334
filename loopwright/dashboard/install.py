"""The dashboard as a part of the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ..settings import Settings
from . import (
    activity,
    agents,
    chat,
    compare,
    endpoints,
    evaluators,
    examples,
    loop_form,
    loops,
    run,
    runs,
    schedules,
    session,
    sign_in,
    tools,
    usage,
    webhooks,
    workspace,
)
from .deps import Wiring
from .errors import Handler, for_browsers
from .forms import FormsAsJson
from .render import STATIC

PARTS = (
    loop_form,
    loops,
    compare,
    run,
    runs,
    chat,
    agents,
    tools,
    evaluators,
    schedules,
    usage,
    activity,
    workspace,
    webhooks,
    endpoints,
    session,
    sign_in,
)

YEAR_SECONDS = 31_536_000


class Assets(StaticFiles):
    """Our own scripts, styles and icons: kept by browsers, since their addresses change with them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={YEAR_SECONDS}, immutable"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def add_dashboard(
    app: FastAPI, settings: Settings, *, cookie_name: str, status_of: Callable[[Exception], int]
) -> FastAPI:
    """Add the pages to an application that has the API and its guard."""
    app.state.dashboard = Wiring(cookie_name=cookie_name, status_of=status_of)
    for part in PARTS:
        app.include_router(part.router, include_in_schema=False)
    app.include_router(examples.router)
    app.mount("/static", Assets(directory=STATIC))
    otherwise = cast("Handler", app.exception_handlers[HTTPException])
    app.add_exception_handler(HTTPException, for_browsers(otherwise))
    app.add_middleware(FormsAsJson, max_body_bytes=settings.max_body_bytes)
    return app
