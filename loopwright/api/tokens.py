"""Users' tokens: JWTs of the identity provider, checked against its public keys."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import jwt

from ..core.errors import LoopwrightError, NotSignedIn
from ..egress import EgressClient, EgressPolicy, host_and_port

_log = logging.getLogger(__name__)

ALGORITHMS = ["ES256", "RS256"]
"""What tokens may be signed with. A shared secret (HS256) or `none` never."""

REFETCH_SECONDS = 60.0
"""How often the keys may be fetched again for a token of an unknown key."""

AGAIN_SECONDS = 1.0
"""How soon keys are asked for again that were not to be had at all."""

STALE_SECONDS = 600.0
"""After this, known keys are fetched again too, so that a withdrawn one ends."""

LEEWAY_SECONDS = 10
"""How far clocks may be apart."""


class KeysUnavailable(NotSignedIn):
    """The identity provider's keys can't be fetched at the moment, so tokens can't be checked; try again."""


@dataclass(kw_only=True)
class Tokens:
    """Checks tokens. Belongs to one event loop.

    Args:
        jwks_url: where the public keys lie.
        issuer: the `iss` that tokens must have.
        audience: the `aud` that tokens must have.
    """

    jwks_url: str
    issuer: str
    audience: str
    clock: Callable[[], float] = time.monotonic
    _keys: dict[str, jwt.PyJWK] = field(default_factory=dict[str, jwt.PyJWK])
    _fetched_at: float | None = None
    _failed_at: float | None = None
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def user_of(self, token: str) -> str:
        """The user that a token speaks for.

        Raises:
            NotSignedIn: the token is not good, and why, as far as its sender may know.
        """
        try:
            head = jwt.get_unverified_header(token)
            if head.get("alg") not in ALGORITHMS:
                raise NotSignedIn(f"the token is not signed with {' or '.join(ALGORITHMS)}")
            claims: dict[str, Any] = jwt.decode(
                token,
                await self._key(str(head.get("kid"))),
                algorithms=ALGORITHMS,
                audience=self.audience,
                issuer=self.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise NotSignedIn(f"the token is not valid: {error}") from None
        if claims.get("role") != "authenticated":
            raise NotSignedIn("the token is not that of a signed-in user")
        try:
            return str(UUID(claims["sub"]))
        except ValueError:
            raise NotSignedIn("the token's `sub` is no user id") from None

    async def _key(self, kid: str) -> jwt.PyJWK:
        if kid not in self._keys or self._age() > STALE_SECONDS:
            async with self._fetching:  # those that come meanwhile wait for its answer, and don't ask again
                if self._age() > (STALE_SECONDS if kid in self._keys else REFETCH_SECONDS):
                    await self._fetch()
        if kid not in self._keys:
            raise NotSignedIn("the token was signed with a key that the identity provider does not list")
        return self._keys[kid]

    def _age(self) -> float:
        """Seconds since the keys were asked for."""
        return math.inf if self._fetched_at is None else self.clock() - self._fetched_at

    async def _fetch(self) -> None:
        if self._failed_at is not None and self.clock() - self._failed_at < AGAIN_SECONDS:
            raise KeysUnavailable
        self._fetched_at = self.clock()
        policy = EgressPolicy(allow_hosts=frozenset({host_and_port(self.jwks_url)}), timeout_seconds=5)
        try:
            async with EgressClient(policy) as client:
                answer = await client.request("GET", self.jwks_url)
            keys = jwt.PyJWKSet.from_dict(json.loads(answer.body)).keys
        except (LoopwrightError, ValueError, jwt.PyJWTError) as error:
            _log.warning("the keys at %s can't be fetched: %s", self.jwks_url, error)
            if not self._keys:
                self._fetched_at, self._failed_at = None, self.clock()
                raise KeysUnavailable from None
            return
        self._keys = {key.key_id: key for key in keys if key.key_id}
