"""Who speaks: over HTTP whoever the request's token stands for, on stdio the owner of this installation."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from starlette.requests import Request

from ..core.caller import Caller
from ..core.errors import NotSignedIn
from .http import SCOPE_KEY

_caller: ContextVar[Caller] = ContextVar("loopwright_mcp_caller")


def me() -> Caller:
    """The caller of the request that is being answered."""
    return _caller.get()


@dataclass(frozen=True)
class KnowsCaller:
    """Middleware of the server: tells whoever answers who asks."""

    owner: Caller | None
    """Who speaks where there is no HTTP request."""

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Answer one message.

        Raises:
            NotSignedIn: nobody speaks.
        """
        token = _caller.set(self._caller_of(ctx.request))
        try:
            return await call_next(ctx)
        finally:
            _caller.reset(token)

    def _caller_of(self, request: object) -> Caller:
        found = request.scope.get(SCOPE_KEY) if isinstance(request, Request) else self.owner
        if found is None:
            raise NotSignedIn
        return cast("Caller", found)
