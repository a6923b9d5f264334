"""What the routes of pages ask for: the runtime, who looks, and what was typed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from fastapi import Depends, Path, Query, Request

from ..core.caller import Caller
from ..service.once import Once
from ..service.runtime import Runtime
from ..service.sign_in import SignIn
from .forms import Fields


class Gate(Protocol):
    """Tells callers by their requests. The API has one; the composition root gives it to both."""

    async def caller(self, request: Request) -> Caller:
        """The caller of a request."""
        ...

    @property
    def sign_in(self) -> SignIn | None:
        """How people sign in with the browser, where there are more than one."""
        ...

    @property
    def cookie_name(self) -> str:
        """The name of the browser's cookie."""
        ...

    @property
    def secure(self) -> bool:
        """Whether people come over HTTPS."""
        ...

    def cookie(self) -> str:
        """What the browser keeps in place of the token."""
        ...

    def knows_token(self, value: str) -> bool:
        """Whether a token is that of this installation."""
        ...


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What pages share with the API, put together by the composition root."""

    cookie_name: str
    status_of: Callable[[Exception], int]
    """The status of an error."""


def wiring(request: Request) -> Wiring:
    """What pages share with the API."""
    return request.app.state.dashboard


def _runtime(request: Request) -> Runtime:
    return request.app.state.runtime


def _gate(request: Request) -> Gate:
    return request.app.state.gate


async def _caller(request: Request, gate: Annotated[Gate, Depends(_gate)]) -> Caller:
    return replace(await gate.caller(request), door="ui")


async def _fields(request: Request) -> Fields:
    return await Fields.of(request)


Rt = Annotated[Runtime, Depends(_runtime)]
TheGate = Annotated[Gate, Depends(_gate)]
TheWiring = Annotated[Wiring, Depends(wiring)]
Me = Annotated[Caller, Depends(_caller)]
Form = Annotated[Fields, Depends(_fields)]
Cursor = Annotated[str | None, Query(max_length=160)]
"""Where a page of a list begins."""
RunId = Annotated[str, Path(pattern=r"^run_[0-9a-f]{8,40}$")]


def new_key() -> str:
    """A key for a form that starts something: sent twice, it starts it once."""
    return secrets.token_hex(12)


def once(form: Fields) -> Once | None:
    """The key of a form that starts something."""
    key = form.short("once")
    if not (key.isalnum() and key.isascii() and len(key) <= 64):
        return None
    typed = repr(sorted((name, list(values)) for name, values in form.values.items()))
    return Once(key=f"form-{key}", sha256=hashlib.sha256(typed.encode()).digest())
