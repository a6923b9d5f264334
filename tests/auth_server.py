"""A contract fake of Supabase Auth: the addresses, words and statuses of the real one that Loopwright depends on.

Tokens are signed with ES256 and their key is listed; a refresh token works once (its parent works as long as its child
is unused, as the real server allows for an answer that got lost); links, codes and PKCE exchanges work once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

KEY = "sb_publishable_of_the_tests"
PASSWORD = "correct horse battery staple"


class Refused(Exception):
    """An answer of the Auth server that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code, self.message = status, code, message


@dataclass
class Session:
    """A sign-in as the Auth server knows it."""

    user: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    tokens: list[str] = field(default_factory=list[str])
    """Refresh tokens, the newest last."""


@dataclass
class Flow:
    """A sign-in that was begun with a challenge."""

    user: str
    challenge: str


@dataclass
class Mail:
    """What was sent to somebody."""

    to: str
    link: str
    code: str
    token_hash: str


@dataclass
class AuthServer:
    """The server and all that it knows."""

    users: dict[str, str]
    """Ids by address."""
    port: int = 0
    lifetime: int = 3600
    """Seconds that access tokens last."""
    broken: bool = False
    """Whether it answers 503."""
    pace: float = 0.0
    """Seconds that a refresh takes."""
    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    sessions: dict[str, Session] = field(default_factory=dict[str, Session])
    flows: dict[str, Flow] = field(default_factory=dict[str, Flow])
    mails: list[Mail] = field(default_factory=list[Mail])
    banned: set[str] = field(default_factory=set[str])
    asked: Counter[str] = field(default_factory=Counter[str])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, user: str, **changed: object) -> str:
        """An access token."""
        now = int(time.time())
        claims: dict[str, object] = {
            "iss": f"{self.url}/auth/v1", "sub": user, "aud": "authenticated", "role": "authenticated",
            "iat": now, "exp": now + self.lifetime, "is_anonymous": False, "aal": "aal1",
            "app_metadata": {"provider": "email"}, "user_metadata": {}, **changed,
        }  # fmt: skip
        return jwt.encode(claims, self.private, "ES256", headers={"kid": "of-the-tests"})

    # --- what it does ---

    def begin(self, user: str) -> dict[str, Any]:
        session = Session(user)
        self.sessions[session.id] = session
        return self.grant(session)

    def grant(self, session: Session) -> dict[str, Any]:
        session.tokens.append(secrets.token_urlsafe(9))
        return {
            "access_token": self.token(session.user, session_id=session.id),
            "token_type": "bearer",
            "expires_in": self.lifetime,
            "expires_at": int(time.time()) + self.lifetime,
            "refresh_token": session.tokens[-1],
            "user": self.user(session.user),
        }

    def user(self, user: str) -> dict[str, Any]:
        email = next(email for email, each in self.users.items() if each == user)
        return {
            "id": user, "aud": "authenticated", "role": "authenticated", "email": email, "app_metadata": {},
            "user_metadata": {"role": "admin"}, "created_at": "2026-01-01T00:00:00Z", "identities": [],
        }  # fmt: skip

    def refresh(self, token: str) -> dict[str, Any]:
        session = next((each for each in self.sessions.values() if token in each.tokens), None)
        if session is None:
            raise Refused(400, "refresh_token_not_found", "Invalid Refresh Token: Refresh Token Not Found")
        if session.user in self.banned:
            raise Refused(403, "user_banned", "User is banned")
        if token not in session.tokens[-2:]:
            del self.sessions[session.id]
            raise Refused(400, "refresh_token_already_used", "Invalid Refresh Token: Already Used")
        return self.grant(session)

    def flow(self, user: str, challenge: str) -> str:
        code = str(uuid.uuid4())
        self.flows[code] = Flow(user, challenge)
        return code

    def exchange(self, code: str, verifier: str) -> dict[str, Any]:
        flow = self.flows.pop(code, None)
        if flow is None:
            raise Refused(404, "flow_state_not_found", "invalid flow state, no valid flow state found")
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        if digest != flow.challenge:
            raise Refused(400, "bad_code_verifier", "code challenge does not match previously saved code verifier")
        return self.begin(flow.user)

    # --- its addresses ---

    async def jwks(self, _: Request) -> Response:
        key = {**json.loads(ECAlgorithm.to_jwk(self.private.public_key())), "kid": "of-the-tests", "alg": "ES256"}
        return JSONResponse({"keys": [key]})

    async def grants(self, request: Request) -> Response:
        kind, body = request.query_params["grant_type"], await request.json()
        self.asked[kind] += 1
        if kind == "password":
            user = self.users.get(body["email"])
            if user is None or body["password"] != PASSWORD:
                raise Refused(400, "invalid_credentials", "Invalid login credentials")
            if user in self.banned:
                raise Refused(400, "user_banned", "User is banned")
            return JSONResponse(self.begin(user))
        if kind == "pkce":
            return JSONResponse(self.exchange(body["auth_code"], body["code_verifier"]))
        import asyncio

        await asyncio.sleep(self.pace)
        return JSONResponse(self.refresh(body["refresh_token"]))

    async def otp(self, request: Request) -> Response:
        body = await request.json()
        user = self.users.get(body["email"])
        if user is None and not body["create_user"]:
            raise Refused(422, "otp_disabled", "Signups not allowed for otp")
        assert user is not None and body["code_challenge_method"] == "s256"
        code = self.flow(user, body["code_challenge"])
        back = request.query_params["redirect_to"]
        mail = Mail(body["email"], f"{back}?code={code}", f"{secrets.randbelow(10**6):06}", secrets.token_hex(28))
        self.mails.append(mail)
        return JSONResponse({})

    async def verify(self, request: Request) -> Response:
        body = await request.json()
        for mail in self.mails:
            by_code = body.get("email") == mail.to and body.get("token") == mail.code
            if by_code or body.get("token_hash") == mail.token_hash:
                self.mails.remove(mail)
                return JSONResponse(self.begin(self.users[mail.to]))
        raise Refused(403, "otp_expired", "Token has expired or is invalid")

    async def authorize(self, request: Request) -> Response:
        """A provider where somebody is signed in already: it sends the browser back at once."""
        asked = request.query_params
        assert asked["code_challenge_method"] == "s256"
        back, user = asked["redirect_to"], next(iter(self.users.values()))
        if asked["provider"] == "gitlab":
            query = urlencode({"error": "access_denied", "error_description": "Signups not allowed"})
        else:
            query = urlencode({"code": self.flow(user, asked["code_challenge"])})
        return RedirectResponse(f"{back}?{query}", 302)

    async def me(self, request: Request) -> Response:
        return JSONResponse(self.user(self._session(request).user))

    async def logout(self, request: Request) -> Response:
        session = self._session(request)
        scope = request.query_params["scope"]
        self.asked[f"logout {scope}"] += 1
        for each in list(self.sessions.values()):
            if each.id == session.id or (scope == "global" and each.user == session.user):
                del self.sessions[each.id]
        return Response(status_code=204)

    def _session(self, request: Request) -> Session:
        token = request.headers["authorization"].removeprefix("Bearer ")
        try:
            claims = jwt.decode(token, self.private.public_key(), ["ES256"], audience="authenticated")
        except jwt.PyJWTError as error:
            raise Refused(403, "bad_jwt", f"invalid JWT: {error}") from None
        if claims["session_id"] not in self.sessions:
            raise Refused(403, "session_not_found", "Session from session_id claim in JWT does not exist")
        return self.sessions[claims["session_id"]]

    def app(self) -> Starlette:
        """The server as an application."""
        app = Starlette(
            routes=[
                Route("/auth/v1/.well-known/jwks.json", self.jwks),
                Route("/auth/v1/token", self.grants, methods=["POST"]),
                Route("/auth/v1/otp", self.otp, methods=["POST"]),
                Route("/auth/v1/verify", self.verify, methods=["POST"]),
                Route("/auth/v1/authorize", self.authorize),
                Route("/auth/v1/user", self.me),
                Route("/auth/v1/logout", self.logout, methods=["POST"]),
            ],
            exception_handlers={Refused: _refused},
        )

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and (self.broken or not self._has_key(scope)):
                status = 503 if self.broken else 401
                await JSONResponse({"message": "no"}, status)(scope, receive, send)
                return
            await app(scope, receive, send)

        return guarded  # pyright: ignore[reportReturnType]

    def _has_key(self, scope: Any) -> bool:
        free = ("/auth/v1/.well-known/jwks.json", "/auth/v1/authorize")  # browsers and key readers have none
        keys = [value for name, value in scope["headers"] if name == b"apikey"]
        return scope["path"] in free or keys == [KEY.encode()]


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    body = {"code": error.code, "message": error.message}
    return JSONResponse(body, error.status, headers={"x-supabase-api-version": "2024-01-01"})


def code_of(address: str) -> str:
    """The code in an address that leads back."""
    return parse_qs(address.partition("?")[2])["code"][0]


@contextmanager
def auth_server(users: dict[str, str]) -> Generator[AuthServer]:
    """The server, in a thread of its own."""
    made = AuthServer(users)
    server = uvicorn.Server(uvicorn.Config(made.app(), port=0, lifespan="off", log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    made.port = int(server.servers[0].sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        server.should_exit = True
        thread.join()
