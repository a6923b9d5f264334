"""The dashboard as a part of the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ..settings import Settings
from .deps import Wiring
from .forms import FormsAsJson

if TYPE_CHECKING:
    from fastapi.routing import APIRoute

    from .errors import Handler

STATIC = Path(__file__).parent / "static"

YEAR_SECONDS = 31_536_000


class Assets(StaticFiles):
    """Our own scripts, styles and icons: kept by browsers, since their addresses change with them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = f"public, max-age={YEAR_SECONDS}, immutable"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


class Pages:
    """Brings the pages in: at the first request that nothing else answers, if nobody has asked for them before. They
    are a third of what a server has to import, and the API need not wait for them."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._otherwise = app.router.default
        self._turn = asyncio.Lock()
        app.router.default = self

    async def load(self) -> None:
        """Add the pages to the application; doing it twice is doing it once."""
        async with self._turn:
            if self._app.router.default is self:
                self._app.router.routes.extend(await asyncio.to_thread(_routes))
                self._app.router.default = self._otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what no route has answered, once the pages are there."""
        await self.load()
        await self._app.router(scope, receive, send)


def _routes() -> list[BaseRoute]:
    """The routes of the pages, as they are: `include_router` would build each once more."""
    from .pages import PARTS

    routes = [route for part in PARTS for route in part.router.routes]
    for route in routes:
        cast("APIRoute", route).include_in_schema = False
    return routes


def add_dashboard(
    app: FastAPI, settings: Settings, *, cookie_name: str, status_of: Callable[[Exception], int]
) -> FastAPI:
    """Add the pages to an application that has the API and its guard."""
    app.state.dashboard = Wiring(cookie_name=cookie_name, status_of=status_of)
    app.state.pages = Pages(app)
    app.mount("/static", Assets(directory=STATIC))
    otherwise = cast("Handler", app.exception_handlers[HTTPException])

    async def handle(request: Request, error: Exception) -> Response:
        from .errors import for_browsers  # with the templates

        return await for_browsers(otherwise)(request, error)

    app.add_exception_handler(HTTPException, handle)
    app.add_middleware(FormsAsJson, max_body_bytes=settings.max_body_bytes)
    return app
