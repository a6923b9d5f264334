"""Who is calling: tokens, the service key, the owner of a local installation; and pages of other sites."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import jwt
import pytest
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from loopwright.api.tokens import KeysUnavailable, Tokens
from loopwright.core.errors import InvalidInput, NotSignedIn
from loopwright.service.runtime import LOCAL_OWNER, local_token
from loopwright.settings import Settings
from loopwright.store.database import Urls, connect_direct
from tests.api.world import AGENT, SERVICE_KEY, Api, open_api
from tests.postgres import ADMIN, OTHER, OWNER

ISSUER = "https://project.supabase.co/auth/v1"
KEY, STRANGE = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)


def claims(**changed: object) -> dict[str, Any]:
    base = {"sub": OTHER, "aud": "authenticated", "iss": ISSUER, "role": "authenticated", "exp": int(time.time()) + 60}
    return {name: value for name, value in {**base, **changed}.items() if value is not None}


def signed(kid: str = "k1", key: Any = KEY, algorithm: str = "ES256", **changed: object) -> str:
    return jwt.encode(claims(**changed), key, algorithm, headers={"kid": kid})


class Keys:
    """The identity provider's list of keys, over HTTP."""

    def __init__(self) -> None:
        self.asked = 0
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        keys: list[dict[str, Any]] = [
            {**json.loads(ECAlgorithm.to_jwk(KEY.public_key())), "kid": "k1"},
            {**json.loads(RSAAlgorithm.to_jwk(RSA_KEY.public_key())), "kid": "k2"},
        ]
        body = json.dumps({"keys": keys}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def keys() -> AsyncGenerator[Keys]:
    made = Keys()
    server = uvicorn.Server(uvicorn.Config(made, port=0, lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    made.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/jwks.json"
    yield made
    server.should_exit = True
    await serving


@pytest.fixture
async def shared(urls: Urls, tmp_path: Path, keys: Keys) -> AsyncGenerator[Api]:
    async with open_api(urls, tmp_path, engine=False, jwks_url=keys.url, jwt_issuer=ISSUER) as api:
        yield api


async def test_a_good_token_is_its_user(shared: Api) -> None:
    for token in (signed(), signed("k2", RSA_KEY, "RS256")):
        body = {"name": "a", "spec": AGENT}
        # The user in the token wins over whatever the request names.
        answer = await shared.call(
            "POST", "/api/agents", body, user=None, authorization=f"Bearer {token}", x_triggered_by=OWNER
        )
        assert answer.json()["owner_id"] == OTHER


BAD: list[tuple[str, dict[str, Any]]] = [
    ("expired", {"exp": int(time.time()) - 60}),
    ("no end", {"exp": None}),
    ("another issuer", {"iss": "https://evil.example"}),
    ("no issuer", {"iss": None}),
    ("another audience", {"aud": "somebody"}),
    ("no audience", {"aud": None}),
    ("anon", {"role": "anon"}),
    ("service", {"role": "service_role"}),
    ("no role", {"role": None}),
    ("no user", {"sub": None}),
    ("no id", {"sub": "x' or 1=1"}),
    ("unknown key", {"kid": "k9"}),
    ("another key", {"key": STRANGE}),
    ("a shared secret", {"key": "x" * 32, "algorithm": "HS256"}),
]


@pytest.mark.parametrize(("changed"), [bad[1] for bad in BAD], ids=[bad[0] for bad in BAD])
async def test_bad_tokens_are_nobody(shared: Api, changed: dict[str, Any]) -> None:
    answer = await shared.call("GET", "/api/loops", user=None, authorization=f"Bearer {signed(**changed)}")
    assert answer.status_code == 401, answer.text
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_other_bad_credentials(shared: Api) -> None:
    unsigned = jwt.encode(claims(), None, "none", headers={"kid": "k1"})  # pyright: ignore[reportArgumentType]
    for header in (f"Bearer {unsigned}", "Bearer x.y.z", "Bearer ", "Basic eA==", "Bearer " + "a" * 7_000, "Bearer é"):
        answer = await shared.http.get("/api/loops", headers={b"authorization": header.encode()})
        assert answer.status_code == 401, header
    stranger = "00000000-0000-0000-0000-0000000000ee"
    known_elsewhere = await shared.call("GET", "/api/loops", user=None, authorization=f"Bearer {signed(sub=stranger)}")
    assert known_elsewhere.status_code == 403
    local = local_token(shared.runtime.settings)
    assert (await shared.call("GET", "/api/loops", user=None, authorization=f"Bearer {local}")).status_code == 401


async def test_keys_are_fetched_seldom(keys: Keys) -> None:
    now = 0.0
    tokens = Tokens(jwks_url=keys.url, issuer=ISSUER, audience="authenticated", clock=lambda: now)
    for _ in range(5):
        assert await tokens.user_of(signed()) == OTHER
    for _ in range(20):
        with pytest.raises(NotSignedIn):
            await tokens.user_of(signed("unknown"))
    assert keys.asked == 1
    now = 61.0
    with pytest.raises(NotSignedIn):
        await tokens.user_of(signed("unknown"))
    assert keys.asked == 2
    gone = Tokens(jwks_url="http://127.0.0.1:1/jwks", issuer=ISSUER, audience="authenticated")
    with pytest.raises(NotSignedIn, match="can't be fetched"):
        await gone.user_of(signed())


async def test_those_who_come_while_the_keys_are_fetched_wait_for_them(keys: Keys) -> None:
    tokens = Tokens(jwks_url=keys.url, issuer=ISSUER, audience="authenticated")
    assert await asyncio.gather(*(tokens.user_of(signed()) for _ in range(5))) == [OTHER] * 5
    assert keys.asked == 1
    gone = Tokens(jwks_url="http://127.0.0.1:1/jwks", issuer=ISSUER, audience="authenticated")
    failed = await asyncio.gather(*(gone.user_of(signed()) for _ in range(5)), return_exceptions=True)
    assert {type(each) for each in failed} == {KeysUnavailable}


async def test_who_is_deleted_banned_or_demoted_loses_access_at_once(shared: Api) -> None:
    """Though the token holds for a minute still."""
    await shared.make_loop()

    async def seen(user: str) -> int:
        answer = await shared.call("GET", "/api/loops", user=None, authorization=f"Bearer {signed(sub=user)}")
        return len(answer.json()["items"]) if answer.status_code == 200 else answer.status_code

    async with await connect_direct(shared.runtime.database.urls) as c:
        assert [await seen(user) for user in (OWNER, OTHER, ADMIN)] == [1, 0, 1]
        await c.execute("update profiles set role = 'member' where id = %s", (ADMIN,))
        assert await seen(ADMIN) == 0
        await c.execute("update auth.users set banned_until = now() + interval '1 day' where id = %s", (ADMIN,))
        assert await seen(ADMIN) == 403
        await c.execute("delete from profiles where id = %s", (OWNER,))
        assert await seen(OWNER) == 403, "what is its own is not its to see any more either"
        await c.execute("delete from auth.users where id = %s", (OTHER,))
        assert await seen(OTHER) == 403


async def test_only_the_service_key_acts_for_others(shared: Api) -> None:
    assert (await shared.call("GET", "/api/loops", user=OWNER)).status_code == 200
    nobody = await shared.call("GET", "/api/loops", user=None, authorization=f"Bearer {SERVICE_KEY}")
    assert (nobody.status_code, nobody.json()["errors"][0]["field"]) == (422, "X-Triggered-By")
    nested = await shared.http.request(
        "GET", "/api/loops", content=b"[" * 100_000, headers={"authorization": f"Bearer {SERVICE_KEY}"}
    )
    assert (nested.status_code, nested.json()["errors"][0]["field"]) == (422, "X-Triggered-By")
    wrong = SERVICE_KEY[:-1] + "X"
    answer = await shared.call("GET", "/api/loops", user=None, authorization=f"Bearer {wrong}", x_triggered_by=OWNER)
    assert answer.status_code == 401
    loop = await shared.make_loop()
    started = await shared.call(
        "POST",
        f"/api/loops/{loop['id']}/runs",
        {"triggered_by": OWNER},
        user=None,
        authorization=f"Bearer {SERVICE_KEY}",
    )
    assert started.status_code == 202
    mine = await shared.call("GET", "/api/runs", user=OWNER)
    assert [run["owner_id"] for run in mine.json()["items"]] == [OWNER]
    # To act for a user is to have that user's rights, not the service's.
    assert (await shared.call("GET", f"/api/loops/{loop['id']}", user=OTHER)).status_code == 404


@pytest.fixture
async def local(urls: Urls, tmp_path: Path) -> AsyncGenerator[Api]:
    async with open_api(urls, tmp_path, engine=False, service_key=None) as api:
        yield api


async def test_a_program_signs_in_with_what_the_file_holds(local: Api) -> None:
    file = (local.runtime.settings.data_folder / "token").read_text().strip()
    for token, status in ((file, 200), (local_token(local.runtime.settings), 200), (file[1:], 401), ("=", 401)):
        answer = await local.call("GET", "/api/runs", user=None, authorization=f"Bearer {token}")
        assert answer.status_code == status, token[:2]


async def test_the_owner_signs_in_by_the_printed_address(local: Api) -> None:
    token = local_token(local.runtime.settings)
    assert (await local.call("GET", "/login?token=wrong", user=None)).status_code == 401
    assert (await local.call("GET", "/api/loops", user=None)).status_code == 401
    answer = await local.call("GET", f"/login?token={token}", user=None)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and token not in cookie
    assert (await local.call("GET", "/api/loops", user=None)).status_code == 200  # by the cookie
    local.http.cookies.clear()
    made = await local.call(
        "POST", "/api/agents", {"name": "a", "spec": AGENT}, user=None, authorization=f"Bearer {token}"
    )
    assert made.json()["owner_id"] == LOCAL_OWNER
    for name in ("token", "secret.key"):
        assert (local.runtime.settings.data_folder / name).stat().st_mode & 0o077 == 0


async def test_pages_of_other_sites_change_nothing(local: Api) -> None:
    await local.call("GET", f"/login?token={local_token(local.runtime.settings)}", user=None)
    body = {"name": "a", "spec": AGENT}
    for headers, status in (
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost"}, 201),
        ({"origin": "http://localhost"}, 201),
        ({}, 201),
    ):
        answer = await local.call("POST", "/api/agents", body, user=None, **headers)
        assert answer.status_code == status, (headers, answer.text)
    for host, status in (
        ("localhost:8700", 200), ("127.0.0.1", 200), ("[::1]:8700", 200), ("LOCALHOST.", 200),
        ("rebound.example", 421), ("127.0.0.1.evil.example", 421), ("", 421),
    ):  # fmt: skip
        assert (await local.call("GET", "/api/loops", user=None, host=host)).status_code == status, host


def test_a_network_needs_a_real_sign_in(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.com"):
        with pytest.raises(InvalidInput, match="LOOPWRIGHT_HOST"):
            Settings(home=tmp_path, host=host).check()
    Settings(home=tmp_path, host="0.0.0.0", jwks_url="https://x.example/keys", jwt_issuer="https://x.example").check()
    for host in ("127.0.0.1", "::1", "localhost"):
        Settings(home=tmp_path, host=host).check()
    with pytest.raises(ValueError, match="32 characters"):
        Settings(service_key="short")  # pyright: ignore[reportArgumentType]
