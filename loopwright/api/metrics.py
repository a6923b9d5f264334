"""The route of metrics, and the counting of requests."""

from __future__ import annotations

import time

from fastapi import APIRouter, Depends, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..service.metrics import Metrics
from .deps import Rt, TheGate
from .docs import problems

router = APIRouter(prefix="/api/metrics", tags=["health"])

TEXT = "text/plain; version=0.0.4; charset=utf-8"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


async def _monitor(request: Request, gate: TheGate) -> None:
    await gate.check_monitor(request)


@router.get(
    "",
    dependencies=[Depends(_monitor)],
    response_class=Response,
    responses={**problems(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_metrics(request: Request, rt: Rt) -> Response:
    """Figures for Prometheus. For admins, and for who has the service key."""
    metrics: Metrics = request.app.state.metrics
    return Response(await metrics.text(rt), media_type=TEXT)


class Counted:
    """Counts requests by route, and measures how long their answers take to begin: a live stream has no end."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else "other"
                self.metrics.answered(method, _route(scope), message["status"], time.monotonic() - began)
            await send(message)

        await self.app(scope, receive, counted)


def _route(scope: Scope) -> str:
    """The route that a request met, `none` if none: never the address itself, which could be any."""
    route = scope.get("route")
    if route is None:
        return "none"
    path = str(route.path)  # as its own router has it, without the prefix that all of the API has
    return f"/api{path}" if scope["path"].startswith("/api/") and not path.startswith("/api") else path
