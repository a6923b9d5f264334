"""Who may come in at `/mcp`, and what the server on stdio leaves alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jwt
import pytest

from loopwright.store.database import Urls
from tests.api.test_auth import BAD, ISSUER, Keys, claims, keys, signed
from tests.api.world import SERVICE_KEY, Api, open_api
from tests.postgres import ADMIN, OTHER, OWNER

from .world import over_http, served, stdio_environment, structured

__all__ = ["keys"]

ASK: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_loops"}}
LOCAL = "127.0.0.1:8700"


async def ask(api: Api, body: object = ASK, **headers: str) -> Any:
    return await api.call("POST", "/mcp", body, user=None, accept="application/json, text/event-stream", **headers)


async def test_nobody_comes_in_without_a_token(api: Api) -> None:
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Bearer {SERVICE_KEY}"}, 422),
        ({"authorization": f"Bearer {SERVICE_KEY}", "x_triggered_by": "somebody"}, 422),
        ({"authorization": f"Bearer {SERVICE_KEY}", "x_triggered_by": OWNER[:-1] + "9"}, 403),
        ({"authorization": f"Bearer {SERVICE_KEY}", "x_triggered_by": OWNER}, 200),
    ):
        answer = await ask(api, **headers)
        assert answer.status_code == status, answer.text
        if status != 200:
            assert answer.headers["content-type"] == "application/problem+json"
    assert (await ask(api)).headers["www-authenticate"] == "Bearer"


async def test_the_rules_for_requests_hold_here_too(api: Api) -> None:
    known = {"authorization": f"Bearer {SERVICE_KEY}", "x_triggered_by": OWNER}
    for headers, status in (
        ({"host": "rebound.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"host": "localhost:8700", "origin": "http://localhost:8700"}, 200),
        ({"host": LOCAL}, 200),
    ):
        assert (await ask(api, **known, **headers)).status_code == status, headers
    large = {**ASK, "params": {"name": "x" * 2_000_000}}
    assert (await ask(api, large, **known)).status_code == 413
    # A service names its user in the header; what stands in a message names nobody.
    named = await ask(api, {**ASK, "triggered_by": OWNER}, authorization=f"Bearer {SERVICE_KEY}")
    assert named.status_code == 422


async def test_a_member_stays_a_member_whomever_it_names(urls: Urls, tmp_path: Path, keys: Keys) -> None:
    async with open_api(urls, tmp_path, engine=False, jwks_url=keys.url, jwt_issuer=ISSUER) as api, served(api) as at:
        await api.make_loop()
        await api.make_loop(user=OTHER, name="others")
        async with over_http(at, OWNER, authorization=f"Bearer {signed()}") as client:
            loops = structured(await client.call_tool("list_loops", {}))["loops"]
            assert [loop["name"] for loop in loops] == ["others"]
        for name, changed in BAD:
            answer = await ask(api, authorization=f"Bearer {signed(**changed)}")
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), name
        unsigned = jwt.encode(claims(), None, "none", headers={"kid": "k1"})  # pyright: ignore[reportArgumentType]
        assert (await ask(api, authorization=f"Bearer {unsigned}")).status_code == 401
        for number in range(20):
            assert (await ask(api, authorization=f"Bearer {signed(f'k{number + 9}')}")).status_code == 401
        assert keys.asked <= 2, "a flood of unknown keys has them fetched once a minute"
        async with api.runtime.database.as_service() as connection:
            await connection.execute("delete from public.profiles where id = %s", (OTHER,))
        assert (await ask(api, authorization=f"Bearer {signed()}")).status_code == 403


async def test_who_is_no_admin_any_more_sees_what_a_member_sees_at_once(api: Api) -> None:
    await api.make_loop()
    async with served(api) as at, over_http(at, ADMIN) as client:
        assert len(structured(await client.call_tool("list_loops", {}))["loops"]) == 1
        async with api.runtime.database.as_service() as connection:
            await connection.execute("update public.profiles set role = 'member' where id = %s", (ADMIN,))
        assert structured(await client.call_tool("list_loops", {}))["loops"] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_on_stdio_leaves_when_told_to(urls: Urls, tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "loopwright", "mcp"],
        env=stdio_environment(urls, tmp_path),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert answer["result"]["serverInfo"]["name"] == "loopwright"
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stdout.read() == ""  # nothing but messages goes there


def test_where_users_sign_in_stdio_has_no_owner(urls: Urls, tmp_path: Path) -> None:
    env = {**stdio_environment(urls, tmp_path), "LOOPWRIGHT_SERVICE_KEY": SERVICE_KEY}
    command = [sys.executable, "-m", "loopwright", "mcp"]
    ended = subprocess.run(command, env=env, cwd=tmp_path, input="", capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "users sign in here" in ended.stderr
