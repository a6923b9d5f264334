"""Who is calling: a user's token or API key, the service key, or the owner of a local installation."""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from starlette.requests import Request

from ..core.caller import Caller, Door
from ..core.errors import InvalidInput, NotAllowed, NotSignedIn, Problem
from ..service import api_keys
from ..service.people import caller_of
from ..service.runtime import LOCAL_OWNER, Runtime, local_token
from ..service.sign_in import SignIn

if TYPE_CHECKING:
    from .tokens import Tokens

COOKIE = "loopwright"

TRIGGERED_BY = "x-triggered-by"

_FOR_URLS = str.maketrans("+/", "-_")
"""Plain base64 as it is written in addresses."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Tells callers by their requests."""

    runtime: Runtime
    local_token: str | None
    """What the owner signs in with, in local mode."""
    tokens: Tokens | None
    service_key: str | None
    sign_in: SignIn | None
    """How people sign in with the browser, where there are more than one."""

    @classmethod
    def of(cls, runtime: Runtime) -> Gate:
        """The gate that the settings ask for."""
        settings = runtime.settings
        tokens = None
        if settings.jwks and settings.issuer:
            from .tokens import Tokens  # heavy, and not needed where there is one owner

            tokens = Tokens(jwks_url=settings.jwks, issuer=settings.issuer, audience=settings.jwt_audience)
        return cls(
            runtime=runtime,
            local_token=local_token(settings) if settings.mode == "local" else None,
            tokens=tokens,
            service_key=settings.service_key.get_secret_value() if settings.service_key else None,
            sign_in=SignIn.of(settings, runtime.database, runtime.vault),
        )

    @property
    def cookie_name(self) -> str:
        """The name of the browser's cookie. Over HTTPS its prefix keeps other hosts from setting it."""
        return f"__Host-{COOKIE}" if self.secure else COOKIE

    @property
    def secure(self) -> bool:
        """Whether people come over HTTPS."""
        return (self.runtime.settings.public_url or "").startswith("https://")

    async def caller(self, request: Request) -> Caller:
        """The caller of a request.

        Raises:
            NotSignedIn: nobody, or with something that is no longer valid.
            NotAllowed: a user who is not of this workspace.
            InvalidInput: the service key without a user to act for.
            SignInUnavailable: a browser's sign-in must be refreshed and can't be.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            return await self._by_token(token.strip(), request)
        if self.local_token and self.knows_cookie(request.cookies.get(COOKIE, "")):
            return await self._user(LOCAL_OWNER, "ui")
        cookie = request.cookies.get(self.cookie_name)
        if self.sign_in and cookie and (user_id := await self.sign_in.user_of(cookie)):
            return await self._user(user_id, "ui")
        raise NotSignedIn

    async def check_monitor(self, request: Request) -> None:
        """Let admins pass, and who has the service key, for whomever it acts.

        Raises:
            NotSignedIn: nobody.
            NotAllowed: a member.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if self.service_key and scheme.lower() == "bearer" and same(token.strip(), self.service_key):
            return
        if not (await self.caller(request)).is_admin:
            raise NotAllowed("figures of the whole installation are for admins, and for who has the service key")

    async def _by_token(self, token: str, request: Request) -> Caller:
        if self.knows_token(token):
            return await self._user(LOCAL_OWNER, "api")
        if self.service_key and same(token, self.service_key):
            return await self._user(await _acting_user(request), "api")
        if api_keys.is_key(token):
            owner = await api_keys.owner_of(self.runtime.database, token)
            if owner is None:
                raise NotSignedIn("this API key is none, or was revoked; make one under Settings")
            return await self._user(owner, "api")
        if self.tokens is None:
            raise NotSignedIn("the token is not valid; the one of this installation is in the data folder")
        return await self._user(await self.tokens.user_of(token), "api")

    async def _user(self, user_id: str, door: Door) -> Caller:
        caller = await caller_of(self.runtime.database, user_id, door)
        if caller is None:
            raise NotAllowed("this user is not of this workspace")
        return caller

    # --- the browser of a local installation ---

    def cookie(self) -> str:
        """What the browser keeps in place of the token."""
        return hmac.new((self.local_token or "").encode(), b"browser", hashlib.sha256).hexdigest()

    def knows_cookie(self, value: str) -> bool:
        """Whether a cookie is the one that was given out."""
        return same(value, self.cookie())

    def knows_token(self, value: str) -> bool:
        """Whether a token is that of this installation: as it is printed, or as its file has it, in plain base64."""
        return self.local_token is not None and same(value.rstrip("=").translate(_FOR_URLS), self.local_token)


def same(given: str, known: str) -> bool:
    """Whether two secrets are the same, in the same time whatever they are."""
    return hmac.compare_digest(given.encode(), known.encode())


async def _acting_user(request: Request) -> str:
    """The user whom a service names: only who has the service key is asked."""
    named = request.headers.get(TRIGGERED_BY)
    if named is None:
        body: Any = None
        with suppress(ValueError, RecursionError):  # the guard reads no body of a GET: it may be nested without end
            body = json.loads(await request.body() or b"null")
        named = cast("dict[str, Any]", body).get("triggered_by") if isinstance(body, dict) else None
    try:
        return str(UUID(str(named)))
    except ValueError:
        message = "name the user to act for: with the service key it is the header `X-Triggered-By: <user id>`"
        raise InvalidInput(Problem(field="X-Triggered-By", message=message)) from None
