"""Signing in, and coming back to where one was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from .deps import Form, Gate, Rt, TheGate, TheWiring
from .errors import PageRoute
from .render import Context, page

router = APIRouter(route_class=PageRoute)

MONTH_SECONDS = 30 * 24 * 3600


@dataclass(frozen=True, kw_only=True)
class SignInContext(Context):
    """The page to sign in on."""

    back: str
    local: bool
    """Whether there is one owner, who signs in with the printed address."""
    wrong: str


@router.get("/sign-in")
async def sign_in_page(request: Request, rt: Rt, next: Annotated[str, Query(max_length=2000)] = "/") -> Response:
    """Ask for the token."""
    local = rt.settings.mode == "local"
    return page(request, "sign_in.html", SignInContext(title="Sign in", back=own(next), local=local, wrong=""))


@router.post("/sign-in")
async def sign_in(request: Request, rt: Rt, gate: TheGate, wired: TheWiring, form: Form) -> Response:
    """Swap the token for a cookie, and go back."""
    back = own(form.text("next"))
    if not gate.knows_token(token_in(form.short("token"))):
        wrong = "This is not the token of this installation. `loopwright serve` prints the address that holds it."
        context = SignInContext(title="Sign in", back=back, local=rt.settings.mode == "local", wrong=wrong)
        return page(request, "sign_in.html", context, 422)
    return _signed_in(gate, wired.cookie_name, back)


def _signed_in(gate: Gate, cookie_name: str, back: str) -> Response:
    response = RedirectResponse(back, 303, headers={"Cache-Control": "no-store"})
    response.set_cookie(cookie_name, gate.cookie(), max_age=MONTH_SECONDS, httponly=True, samesite="lax")
    return response


def token_in(text: str) -> str:
    """The token in what was pasted: itself, or the address that holds it."""
    return (parse_qs(urlsplit(text).query).get("token") or [text])[0]


def own(address: str) -> str:
    """An address of this server; anything else becomes the first page."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) and "\n" not in address else "/"
