"""Signing in through Supabase otherwise than by a password: with a link or a code from a mail, or at a provider.

What was begun in this browser is kept in a cookie of its own until it comes back: without that, nobody can make
somebody else's browser sign in as him.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from ..core.errors import InvalidInput, NotFound, NotMember
from ..service.runtime import Runtime
from ..service.sign_in import LINK_KINDS, LinkKind, SignIn
from .deps import Form, Gate, Rt, TheGate
from .errors import PageRoute
from .render import Context, page
from .session import NO_STORE, Next, own, sentence, sign_in_form, signed_in

router = APIRouter(route_class=PageRoute)

BEGUN_SECONDS = 900
"""How long a link or a provider may take."""

Text = Annotated[str, Query(max_length=2000)]


@dataclass(frozen=True, kw_only=True)
class ConfirmContext(Context):
    """The page on which a link of a mail is confirmed: programs that look into mails open links, and sign nobody in."""

    token_hash: str
    kind: str
    back: str


def _sign_in(gate: Gate) -> SignIn:
    if gate.sign_in is None:
        raise NotFound
    return gate.sign_in


@router.post("/sign-in/link")
async def send_link(request: Request, rt: Rt, gate: TheGate, form: Form) -> Response:
    """Mail a link and a code, whether or not there is such a user."""
    back, email = own(form.text("next")), form.short("email")
    try:
        verifier = await _sign_in(gate).send_link(email, _callback(request, rt))
    except InvalidInput as error:
        return sign_in_form(request, rt, back, wrong=sentence(error), email=email)
    return _begin(gate, sign_in_form(request, rt, back, email=email, sent=True), verifier, back)


@router.post("/sign-in/code")
async def by_code(request: Request, rt: Rt, gate: TheGate, form: Form) -> Response:
    """Sign in with the code of the mail."""
    back, email = own(form.text("next")), form.short("email")
    try:
        cookie = await _sign_in(gate).by_code(email, "".join(form.short("code").split())[:20])
    except (InvalidInput, NotMember) as error:
        return sign_in_form(request, rt, back, wrong=sentence(error), email=email, sent=True)
    return _come_in(gate, cookie, back)


@router.get("/sign-in/with/{provider}")
async def at_provider(request: Request, rt: Rt, gate: TheGate, provider: str, next: Next = "/") -> Response:
    """Go to a provider to sign in there."""
    if provider not in rt.settings.sign_in_with:
        raise NotFound
    address, verifier = await _sign_in(gate).at_provider(provider, _callback(request, rt))
    return _begin(gate, RedirectResponse(address, 303, headers=NO_STORE), verifier, own(next))


@router.get("/auth/callback")
async def come_back(
    request: Request,
    rt: Rt,
    gate: TheGate,
    code: Text = "",
    error_description: Text = "",
    token_hash: Text = "",
    type: Text = "",
) -> Response:
    """Where a provider or a link of a mail leads to."""
    back = _begun(request, gate)[1]
    if token_hash and type in LINK_KINDS:
        context = ConfirmContext(title="Sign in", token_hash=token_hash, kind=type, back=back)
        return page(request, "confirm.html", context)
    if not code:
        wrong = f"Signing in did not work: {error_description or 'nothing came back'}"
        return sign_in_form(request, rt, back, wrong=wrong)
    return await _exchange(request, rt, gate, code)


async def _exchange(request: Request, rt: Runtime, gate: Gate, code: str) -> Response:
    verifier, back = _begun(request, gate)
    if not verifier:
        wrong = "This sign-in was begun in another browser, or is too old. Begin again."
        return sign_in_form(request, rt, back, wrong=wrong)
    try:
        cookie = await _sign_in(gate).by_exchange(code, verifier)
    except (InvalidInput, NotMember) as error:
        return sign_in_form(request, rt, back, wrong=sentence(error))
    return _come_in(gate, cookie, back)


@router.post("/auth/callback")
async def confirm(request: Request, rt: Rt, gate: TheGate, form: Form) -> Response:
    """Sign in with a link of a mail, now that a person asks for it."""
    back, kind = own(form.text("next")), form.short("kind")
    if kind not in LINK_KINDS:
        raise NotFound
    try:
        cookie = await _sign_in(gate).by_link(form.short("token_hash"), cast("LinkKind", kind))
    except (InvalidInput, NotMember) as error:
        return sign_in_form(request, rt, back, wrong=sentence(error))
    return _come_in(gate, cookie, back)


def _callback(request: Request, rt: Runtime) -> str:
    return f"{rt.settings.public_url or str(request.base_url).rstrip('/')}/auth/callback"


# --- what was begun in this browser ---


def _begun_name(gate: Gate) -> str:
    return f"{gate.cookie_name}-begun"


def _begin(gate: Gate, response: Response, verifier: str, back: str) -> Response:
    value = base64.urlsafe_b64encode(json.dumps([verifier, back]).encode()).decode()
    response.set_cookie(
        _begun_name(gate), value, max_age=BEGUN_SECONDS, httponly=True, samesite="lax", secure=gate.secure
    )
    return response


def _begun(request: Request, gate: Gate) -> tuple[str, str]:
    """What was begun here: its proof, and where to go back to."""
    try:
        value = json.loads(base64.urlsafe_b64decode(request.cookies.get(_begun_name(gate), "")))
        verifier, back = value
        return str(verifier), own(str(back))
    except (ValueError, TypeError):
        return "", "/"


def _come_in(gate: Gate, cookie: str, back: str) -> Response:
    response = signed_in(gate, cookie, back)
    response.delete_cookie(_begun_name(gate), httponly=True, samesite="lax", secure=gate.secure)
    return response
