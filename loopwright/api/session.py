"""Signing in with the browser, where there is one owner: the printed address holds a token, which becomes a cookie."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..core.errors import NotSignedIn
from .auth import COOKIE, Gate
from .deps import TheGate

router = APIRouter(include_in_schema=False)

MONTH_SECONDS = 30 * 24 * 3600


@router.get("/login")
async def login(gate: TheGate, token: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Swap the token for a cookie, and leave the address that holds it."""
    if not gate.knows_token(token):
        raise NotSignedIn("this address is no longer valid; open the one that `loopwright serve` prints")
    response = RedirectResponse("/", 303, headers={"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
    response.set_cookie(COOKIE, gate.cookie(), max_age=MONTH_SECONDS, httponly=True, samesite="lax")
    return response


@router.post("/logout")
async def logout(request: Request, gate: TheGate) -> Response:
    """Sign out of this browser."""
    return await _out(request, gate, everywhere=False)


@router.post("/logout/everywhere")
async def logout_everywhere(request: Request, gate: TheGate) -> Response:
    """Sign out of all browsers and devices."""
    return await _out(request, gate, everywhere=True)


async def _out(request: Request, gate: Gate, *, everywhere: bool) -> Response:
    cookie = request.cookies.get(gate.cookie_name)
    if gate.sign_in and cookie:
        await gate.sign_in.out(cookie, everywhere=everywhere)
    response = RedirectResponse("/", 303)
    response.delete_cookie(gate.cookie_name, httponly=True, samesite="lax", secure=gate.secure)
    return response
