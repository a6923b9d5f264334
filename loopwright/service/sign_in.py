"""Signing in through Supabase Auth, and what a browser's cookie stands for afterwards.

The browser gets a random secret and nothing else; the tokens of Supabase Auth stay here, sealed. So no script and no
other machine can have them, and signing out ends a sign-in at once, for all servers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, cast, get_args
from uuid import UUID

from ..core.errors import InvalidInput, NotMember, Problem, SignInUnavailable
from ..settings import Settings
from ..store import sign_ins
from ..store.database import Database
from ..store.sign_ins import SignedIn
from .people import caller_of
from .secrets import Vault

if TYPE_CHECKING:
    from supabase_auth import AsyncGoTrueClient
    from supabase_auth.types import AuthResponse, Provider, Session, SignInWithOAuthCredentialsOptions

_log = logging.getLogger(__name__)

REFRESH_SECONDS = 90
"""How long before its end an access token is refreshed."""

DAYS = 30
"""How long a sign-in lasts at most."""

TIMEOUT_SECONDS = 10.0

GONE = frozenset({400, 401, 403, 404})
"""What Supabase Auth answers when a refresh token is no longer good: withdrawn, banned, deleted."""

LinkKind = Literal["email", "invite", "magiclink", "recovery", "signup"]
"""What a link in a mail from Supabase Auth may be for."""

LINK_KINDS: frozenset[str] = frozenset(get_args(LinkKind))


@dataclass(frozen=True, kw_only=True)
class SignIn:
    """Signs people in with a Supabase project. Each sign-in has a client of its own, which holds its session."""

    url: str
    key: str
    """The project's publishable key."""
    database: Database
    vault: Vault

    @classmethod
    def of(cls, settings: Settings, database: Database, vault: Vault) -> SignIn | None:
        """What the settings ask for; `None` where nobody signs in with a browser so."""
        if not settings.supabase_url or not settings.supabase_publishable_key:
            return None
        return cls(url=settings.supabase_url, key=settings.supabase_publishable_key, database=database, vault=vault)

    # --- in ---

    async def by_password(self, email: str, password: str) -> str:
        """Sign in with a password; returns what the cookie is to hold.

        Raises:
            InvalidInput: it is wrong, and why.
            NotMember: the user is not of this workspace.
            SignInUnavailable: Supabase Auth can't be asked.
        """
        async with self._client() as auth:
            return await self._keep(await auth.sign_in_with_password({"email": email, "password": password}), auth)

    async def send_link(self, email: str, back: str) -> str:
        """Mail a link and a code to a user, if there is one of this address; returns what proves that it was asked for.

        Args:
            email: the address.
            back: the address here that the link leads to.

        Raises:
            InvalidInput: too many were sent.
            SignInUnavailable: Supabase Auth can't be asked.
        """
        from supabase_auth.errors import AuthApiError

        kept: dict[str, str] = {}
        async with self._client(kept) as auth:
            try:
                await auth.sign_in_with_otp(
                    {"email": email, "options": {"email_redirect_to": back, "should_create_user": False}}
                )
            except AuthApiError as error:
                # That there is no such user isn't told to everybody who asks.
                if error.code not in ("otp_disabled", "signup_disabled", "user_not_found"):
                    raise
        return _verifier(kept)

    async def by_code(self, email: str, code: str) -> str:
        """Sign in with the code of a mail.

        Raises:
            InvalidInput, NotMember, SignInUnavailable: as with a password.
        """
        async with self._client() as auth:
            return await self._keep(await auth.verify_otp({"email": email, "token": code, "type": "email"}), auth)

    async def by_link(self, token_hash: str, kind: LinkKind) -> str:
        """Sign in with what a link of a mail holds, on whatever machine it is opened.

        Raises:
            InvalidInput, NotMember, SignInUnavailable: as with a password.
        """
        async with self._client() as auth:
            return await self._keep(await auth.verify_otp({"token_hash": token_hash, "type": kind}), auth)

    async def at_provider(self, provider: str, back: str) -> tuple[str, str]:
        """Where to sign in with a provider, and what proves that it was asked for here (PKCE)."""
        kept: dict[str, str] = {}
        async with self._client(kept) as auth:
            options: SignInWithOAuthCredentialsOptions = {"redirect_to": back}
            found = await auth.sign_in_with_oauth({"provider": cast("Provider", provider), "options": options})
        return found.url, _verifier(kept)

    async def by_exchange(self, code: str, verifier: str) -> str:
        """Sign in with what a provider or a link came back with.

        Raises:
            InvalidInput, NotMember, SignInUnavailable: as with a password.
        """
        async with self._client() as auth:
            params = {"auth_code": code, "code_verifier": verifier, "redirect_to": ""}
            return await self._keep(await auth.exchange_code_for_session(params), auth)  # pyright: ignore[reportArgumentType]

    async def _keep(self, answer: AuthResponse, auth: AsyncGoTrueClient) -> str:
        session = answer.session
        if session is None:
            raise InvalidInput(Problem(field="", message="there is no session yet; confirm your address first"))
        user_id = str(UUID(session.user.id))
        if await caller_of(self.database, user_id, "ui") is None:
            await auth.sign_out({"scope": "local"})
            raise NotMember
        cookie = secrets.token_urlsafe(32)
        ends = datetime.now(UTC) + timedelta(days=DAYS)
        async with self.database.as_service() as connection:
            sealed = self.vault.seal(user_id, _name(_id(cookie)), _tokens(session))
            await sign_ins.add(
                connection, _id(cookie), user_id, sealed, fresh_until=_fresh_until(session), ends_at=ends
            )
        return cookie

    # --- while one is ---

    async def user_of(self, cookie: str) -> str | None:
        """The user whom a cookie stands for; `None` if it is none, or no longer one.

        Raises:
            SignInUnavailable: the sign-in must be refreshed, and Supabase Auth can't be asked.
        """
        async with self.database.service_session() as connection:
            found = await sign_ins.get(connection, _id(cookie))
        if found is None:
            return None
        now = datetime.now(UTC)
        if found.fresh_until > now + timedelta(seconds=REFRESH_SECONDS):
            return str(found.user_id)
        good = found.fresh_until > now
        return str(found.user_id) if await self._refresh(_id(cookie), good=good) else None

    async def _refresh(self, sign_in: bytes, *, good: bool) -> bool:
        """Refresh a sign-in, once however many tabs and servers ask for it; false if it is over.

        While the access token is `good` still, nobody waits for the one that refreshes. A process that dies between
        Supabase's answer and ours keeps the refresh token before the last: Supabase Auth takes that one once more.
        """
        async with self.database.as_service() as connection:
            found = await sign_ins.lock(connection, sign_in, wait=not good)
            if found is None:
                return good
            if found.fresh_until > datetime.now(UTC) + timedelta(seconds=REFRESH_SECONDS):
                return True
            try:
                session = await self._refreshed(found, sign_in)
            except SignInUnavailable:
                if good:
                    return True
                raise
            if session is None:
                await sign_ins.remove(connection, sign_in)
                return False
            sealed = self.vault.seal(str(found.user_id), _name(sign_in), _tokens(session))
            await sign_ins.refresh(connection, sign_in, sealed, _fresh_until(session))
            return True

    async def _refreshed(self, found: SignedIn, sign_in: bytes) -> Session | None:
        from supabase_auth.errors import AuthApiError

        try:
            tokens = self._open(found, sign_in)
        except InvalidInput:
            _log.warning("a sign-in was sealed under another key: give all servers the same LOOPWRIGHT_SECRET_KEY")
            return None
        async with self._client() as auth:
            try:
                session = (await auth.refresh_session(tokens["refresh"])).session
            except AuthApiError as error:
                if error.status in GONE:
                    return None
                raise SignInUnavailable from error
        return session if session and session.user.id == str(found.user_id) else None

    # --- out ---

    async def out(self, cookie: str, *, everywhere: bool = False) -> None:
        """Sign out; with `everywhere` on all devices. It holds here even when Supabase Auth can't be asked."""
        sign_in = _id(cookie)
        async with self.database.as_service() as connection:
            found = await sign_ins.lock(connection, sign_in, wait=True)
            if found is None:
                return
            if everywhere:
                await sign_ins.remove_all(connection, str(found.user_id))
            else:
                await sign_ins.remove(connection, sign_in)
        try:
            tokens = self._open(found, sign_in)
            async with self._client() as auth:
                access = tokens["access"]
                if found.fresh_until <= datetime.now(UTC):
                    session = (await auth.refresh_session(tokens["refresh"])).session
                    access = session.access_token if session else access
                await auth.admin.sign_out(access, "global" if everywhere else "local")
        except (InvalidInput, SignInUnavailable) as error:
            _log.warning("Supabase Auth was not told that somebody signed out: %s", error)

    # --- Supabase Auth ---

    def _open(self, found: SignedIn, sign_in: bytes) -> dict[str, str]:
        return json.loads(self.vault.open(str(found.user_id), found.tokens(_name(sign_in))))

    @asynccontextmanager
    async def _client(self, kept: dict[str, str] | None = None) -> AsyncGenerator[AsyncGoTrueClient]:
        """A client of its own for one sign-in; its errors are ours. What it keeps is put into `kept`."""
        import httpx
        from supabase_auth import AsyncMemoryStorage
        from supabase_auth.errors import AuthApiError, AuthError

        from supabase import AsyncClient, AsyncClientOptions

        storage = AsyncMemoryStorage()
        if kept is not None:
            storage.storage = kept
        async with httpx.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False) as http:
            options = AsyncClientOptions(storage=storage, httpx_client=http, flow_type="pkce", auto_refresh_token=False)
            try:
                yield (await AsyncClient.create(self.url, self.key, options)).auth
            except AuthApiError as error:
                if error.status >= 500:
                    _log.warning("Supabase Auth answered %s: %s", error.status, error.message)
                    raise SignInUnavailable from error
                raise InvalidInput(Problem(field="", message=_words(error))) from error
            except AuthError as error:
                _log.warning("Supabase Auth can't be asked: %s", error.message)
                raise SignInUnavailable from error


WORDS = {
    "invalid_credentials": "the address or the password is wrong",
    "email_not_confirmed": "confirm your address first: a mail with a link was sent to you",
    "user_banned": "this user may not sign in any more",
    "otp_expired": "this link or code is wrong, used or too old; ask for a new one",
    "flow_state_not_found": "this sign-in is too old or was begun in another browser; begin again",
    "flow_state_expired": "this sign-in is too old; begin again",
    "bad_code_verifier": "this sign-in was begun in another browser; begin again",
    "over_request_rate_limit": "there were too many tries; wait a minute",
    "over_email_send_rate_limit": "too many mails were sent; wait a minute",
    "signup_disabled": "you are not a member of this workspace; ask one of its admins to add you",
    "provider_disabled": "this way to sign in is switched off in the Supabase project",
}


def _words(error: object) -> str:
    code = getattr(error, "code", None)
    return WORDS.get(str(code), f"signing in did not work: {getattr(error, 'message', error)}")


def _verifier(kept: dict[str, str]) -> str:
    """What the client keeps to prove that a sign-in was begun with it."""
    return next(value for name, value in kept.items() if name.endswith("-code-verifier"))


def _id(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()


def _name(sign_in: bytes) -> str:
    return f"sign_in:{sign_in.hex()}"


def _tokens(session: Session) -> str:
    return json.dumps({"access": session.access_token, "refresh": session.refresh_token})


def _fresh_until(session: Session) -> datetime:
    if session.expires_at:
        return datetime.fromtimestamp(session.expires_at, UTC)
    return datetime.now(UTC) + timedelta(seconds=session.expires_in)
