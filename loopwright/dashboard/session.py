"""Signing in, and coming back to where one was."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from ..core.errors import InvalidInput, NotMember
from ..service.runtime import Runtime
from .deps import Form, Gate, Rt, TheGate, TheWiring
from .errors import PageRoute
from .render import Context, page

router = APIRouter(route_class=PageRoute)

MONTH_SECONDS = 30 * 24 * 3600

NO_STORE = {"Cache-Control": "no-store"}

Next = Annotated[str, Query(max_length=2000)]


@dataclass(frozen=True, kw_only=True)
class SignInContext(Context):
    """The page to sign in on."""

    back: str
    local: bool
    """Whether there is one owner, who signs in with the printed address."""
    here: bool
    """Whether users sign in on this page."""
    providers: Sequence[tuple[str, str]]
    """Where else one may sign in: names, and how they are written."""
    email: str
    """What was typed."""
    sent: bool
    """Whether a mail was sent."""
    wrong: str


def sign_in_form(
    request: Request, rt: Runtime, back: str, *, wrong: str = "", email: str = "", sent: bool = False
) -> Response:
    """The page to sign in on."""
    context = SignInContext(
        title="Sign in",
        back=back,
        local=rt.settings.mode == "local",
        here=rt.settings.signs_in,
        providers=[(name, name.replace("_", " ").title()) for name in sorted(rt.settings.sign_in_with)],
        email=email,
        sent=sent,
        wrong=wrong,
    )
    return page(request, "sign_in.html", context, 422 if wrong else 200)


@router.get("/sign-in")
async def sign_in_page(request: Request, rt: Rt, next: Next = "/") -> Response:
    """Ask who it is."""
    return sign_in_form(request, rt, own(next))


@router.post("/sign-in")
async def sign_in(request: Request, rt: Rt, gate: TheGate, wired: TheWiring, form: Form) -> Response:
    """Swap the token, or an address and a password, for a cookie, and go back."""
    back = own(form.text("next"))
    if gate.sign_in:
        email = form.short("email")
        try:
            cookie = await gate.sign_in.by_password(email, form.text("password")[:1000])
        except (InvalidInput, NotMember) as error:
            return sign_in_form(request, rt, back, wrong=sentence(error), email=email)
        return signed_in(gate, cookie, back)
    if not gate.knows_token(token_in(form.short("token"))):
        wrong = "This is not the token of this installation. `loopwright serve` prints the address that holds it."
        return sign_in_form(request, rt, back, wrong=wrong)
    response = RedirectResponse(back, 303, headers=NO_STORE)
    response.set_cookie(wired.cookie_name, gate.cookie(), max_age=MONTH_SECONDS, httponly=True, samesite="lax")
    return response


def signed_in(gate: Gate, cookie: str, back: str) -> Response:
    """Go back, with a cookie."""
    response = RedirectResponse(back, 303, headers=NO_STORE)
    response.set_cookie(
        gate.cookie_name, cookie, max_age=MONTH_SECONDS, httponly=True, samesite="lax", secure=gate.secure
    )
    return response


def sentence(error: Exception) -> str:
    """What went wrong, as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def token_in(text: str) -> str:
    """The token in what was pasted: itself, or the address that holds it."""
    return (parse_qs(urlsplit(text).query).get("token") or [text])[0]


_OWN = re.compile(r"/(?![/\\])[!-\[\]-~]*")


def own(address: str) -> str:
    """An address of this server; anything else becomes the first page."""
    return address if _OWN.fullmatch(address) else "/"
