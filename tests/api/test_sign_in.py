"""Signing in through Supabase Auth: in, refreshed, out; by the real package against a fake of the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest

from loopwright.core.errors import InvalidInput
from loopwright.settings import Settings
from loopwright.store.database import Urls
from tests.api.world import Api, open_api
from tests.auth_server import KEY, PASSWORD, AuthServer, auth_server
from tests.postgres import ADMIN, OTHER, OWNER

EMAIL = "a@example.com"
USERS = {EMAIL: OWNER, "b@example.com": OTHER, "c@example.com": ADMIN}


@pytest.fixture
def auth() -> Generator[AuthServer]:
    with auth_server(USERS) as server:
        yield server


@pytest.fixture
async def team(urls: Urls, tmp_path: Path, auth: AuthServer) -> AsyncGenerator[Api]:
    async with open_api(
        urls,
        tmp_path,
        engine=False,
        database_url=urls.app,
        supabase_url=auth.url,
        supabase_publishable_key=KEY,
        sign_in_with="github,gitlab",
    ) as api:
        yield api


async def post(api: Api, path: str, **typed: str) -> httpx.Response:
    return await api.http.post(path, data=typed)


async def sign_in(api: Api, email: str = EMAIL, next: str = "/") -> httpx.Response:
    return await post(api, "/sign-in", email=email, password=PASSWORD, next=next)


async def status(api: Api, path: str = "/api/loops") -> int:
    return (await api.call("GET", path, user=None)).status_code


async def me(api: Api) -> str:
    made = await api.call("POST", "/api/agents", {"name": "a", "spec": {"model": "practice"}}, user=None)
    return made.json()["owner_id"]


def age(urls: Urls, seconds: float) -> None:
    """Let the access tokens of all sign-ins end in so many seconds."""
    with psycopg.connect(urls.direct, autocommit=True) as connection:
        connection.execute("update sign_ins set fresh_until = now() + make_interval(secs => %s)", (seconds,))


async def test_a_password_signs_in_and_leads_back(team: Api) -> None:
    asked = await team.call("GET", "/runs?status=finished", user=None)
    assert asked.status_code == 303
    page = await team.call("GET", asked.headers["location"], user=None)
    assert 'name="password"' in page.text and 'value="/runs?status=finished"' in page.text
    answer = await sign_in(team, next="/runs?status=finished")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?status=finished")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    assert "eyJ" not in cookie  # no token leaves the server
    assert await status(team, "/runs") == 200
    assert await me(team) == OWNER


async def test_wrong_passwords(team: Api, auth: AuthServer) -> None:
    for email, password in ((EMAIL, "mistyped-password"), ("nobody@example.com", PASSWORD)):
        answer = await post(team, "/sign-in", email=email, password=password, next="/runs")
        assert answer.status_code == 422
        assert "The address or the password is wrong." in answer.text
        assert f'value="{email}"' in answer.text and 'value="/runs"' in answer.text
        assert password not in answer.text
    auth.banned.add(OWNER)
    assert "may not sign in any more" in (await sign_in(team)).text
    assert await status(team) == 401


async def test_nobody_is_led_elsewhere(team: Api) -> None:
    for bad in ("//evil.example", "https://evil.example", "/\\evil.example", "/\t/evil.example", "javascript:x", "/é"):
        assert (await sign_in(team, next=bad)).headers["location"] == "/", bad


async def test_a_mail_signs_in(team: Api, auth: AuthServer) -> None:
    sent = await post(team, "/sign-in/link", email=EMAIL, next="/usage")
    unknown = await post(team, "/sign-in/link", email="nobody@example.com", next="/usage")
    assert (sent.status_code, unknown.status_code) == (200, 200)
    assert unknown.text.replace("nobody@example.com", EMAIL) == sent.text  # who is a member isn't told
    team.http.cookies.clear()
    await post(team, "/sign-in/link", email=EMAIL, next="/usage")
    link = urlsplit(auth.mails[-1].link)
    assert (link.netloc, link.path) == ("localhost", "/auth/callback")
    kept = dict(team.http.cookies)
    team.http.cookies.clear()
    elsewhere = await team.call("GET", f"{link.path}?{link.query}", user=None)
    assert "begun in another browser" in elsewhere.text and "set-cookie" not in elsewhere.headers
    team.http.cookies.update(kept)
    answer = await team.call("GET", f"{link.path}?{link.query}", user=None)
    assert (answer.status_code, answer.headers["location"]) == (303, "/usage")
    assert await me(team) == OWNER
    again = await team.call("GET", f"{link.path}?{link.query}", user=None)
    assert again.status_code == 422


async def test_a_code_signs_in_on_another_machine(team: Api, auth: AuthServer) -> None:
    await post(team, "/sign-in/link", email=EMAIL, next="/usage")
    team.http.cookies.clear()
    code = auth.mails[-1].code
    wrong = await post(team, "/sign-in/code", email=EMAIL, code="000000x", next="/usage")
    assert wrong.status_code == 422 and 'name="code"' in wrong.text
    answer = await post(team, "/sign-in/code", email=EMAIL, code=f"{code[:3]} {code[3:]}", next="/usage")
    assert answer.headers["location"] == "/usage"
    assert await me(team) == OWNER


async def test_a_link_without_a_beginning_asks_a_person(team: Api, auth: AuthServer) -> None:
    await post(team, "/sign-in/link", email=EMAIL)
    token = auth.mails[-1].token_hash
    team.http.cookies.clear()
    page = await team.call("GET", f"/auth/callback?token_hash={token}&type=invite", user=None)
    assert page.status_code == 200 and await status(team) == 401  # a program that looks into mails signs nobody in
    answer = await post(team, "/auth/callback", token_hash=token, kind="invite", next="/")
    assert answer.status_code == 303 and await me(team) == OWNER
    assert (await post(team, "/auth/callback", token_hash=token, kind="invite")).status_code == 422
    assert (await post(team, "/auth/callback", token_hash=token, kind="phone_change")).status_code == 404


async def test_a_provider_signs_in(team: Api, auth: AuthServer) -> None:
    page = await team.call("GET", "/sign-in?next=/usage", user=None)
    assert "/sign-in/with/github?next=/usage" in page.text
    away = await team.call("GET", "/sign-in/with/github?next=/usage", user=None)
    address = away.headers["location"]
    asked = parse_qs(urlsplit(address).query)
    assert asked["provider"] == ["github"] and asked["code_challenge_method"] == ["s256"]
    async with httpx.AsyncClient() as browser:
        back = (await browser.get(address)).headers["location"]
        refused = (await browser.get(address.replace("github", "gitlab"))).headers["location"]
    page = await team.call("GET", refused, user=None)
    assert "Signups not allowed" in page.text and await status(team) == 401
    forged = await team.call("GET", "/auth/callback?code=00000000-0000-0000-0000-000000000000", user=None)
    assert forged.status_code == 422 and "begin again" in forged.text
    answer = await team.call("GET", back, user=None)
    assert (answer.status_code, answer.headers["location"]) == (303, "/usage")
    assert await me(team) == OWNER
    assert (await team.call("GET", "/sign-in/with/facebook", user=None)).status_code == 404
    # What somebody else began can't be finished here: his verifier is not in this browser.
    other = auth.flow(OTHER, "the challenge of somebody else")
    kept = (await team.call("GET", "/sign-in/with/github", user=None)).cookies
    assert kept
    assert "another browser" in (await team.call("GET", f"/auth/callback?code={other}", user=None)).text


async def test_refreshed_once_by_many_tabs(team: Api, auth: AuthServer, urls: Urls) -> None:
    await sign_in(team)
    age(urls, 30)
    auth.pace = 0.2
    assert set(await asyncio.gather(*[status(team) for _ in range(20)])) == {200}
    assert auth.asked["refresh_token"] == 1
    age(urls, -5)  # over: now they wait for the one that refreshes
    assert set(await asyncio.gather(*[status(team) for _ in range(20)])) == {200}
    assert auth.asked["refresh_token"] == 2
    assert await status(team) == 200
    assert auth.asked["refresh_token"] == 2


async def test_an_answer_that_got_lost_ends_no_sign_in(team: Api, auth: AuthServer, urls: Urls) -> None:
    await sign_in(team)
    (session,) = auth.sessions.values()
    auth.refresh(session.tokens[-1])  # another process asked, and died before it wrote the answer down
    age(urls, -5)
    assert await status(team) == 200


async def test_while_the_auth_server_is_away(team: Api, auth: AuthServer, urls: Urls) -> None:
    await sign_in(team)
    auth.broken = True
    assert await status(team) == 200
    age(urls, 30)
    assert await status(team) == 200  # the access token is good still
    age(urls, -5)
    answer = await team.call("GET", "/api/loops", user=None)
    assert answer.status_code == 503 and "sign-in service" in answer.json()["detail"]
    page = await team.call("GET", "/runs", user=None)
    assert page.status_code == 503 and "sign-in service" in page.text
    assert (await sign_in(team)).status_code == 503
    auth.broken = False
    assert await status(team) == 200


@pytest.mark.parametrize("how", ["withdrawn", "banned", "sealed under another key"])
async def test_a_sign_in_that_is_no_longer_good_ends(team: Api, auth: AuthServer, urls: Urls, how: str) -> None:
    await sign_in(team)
    if how == "withdrawn":
        auth.sessions.clear()
    elif how == "banned":
        auth.banned.add(OWNER)
    else:
        with psycopg.connect(urls.direct, autocommit=True) as connection:
            connection.execute("update sign_ins set key_id = 'another'")
    age(urls, 30)
    assert await status(team) == 401
    with psycopg.connect(urls.direct) as connection:
        assert connection.execute("select count(*) from sign_ins").fetchone() == (0,)


async def test_signing_out_here_and_everywhere(team: Api, auth: AuthServer) -> None:
    await sign_in(team)
    first = dict(team.http.cookies)
    team.http.cookies.clear()
    await sign_in(team)
    second = dict(team.http.cookies)
    answer = await post(team, "/logout")
    assert answer.status_code == 303 and auth.asked["logout local"] == 1 and len(auth.sessions) == 1
    for cookies, expected in ((second, 401), (first, 200)):  # a stolen cookie ends with it
        team.http.cookies.clear()
        team.http.cookies.update(cookies)
        assert await status(team) == expected
    third = await sign_in(team)
    assert third.status_code == 303
    assert 'action="/logout/everywhere"' in (await team.call("GET", "/settings", user=None)).text
    await post(team, "/logout/everywhere")
    assert auth.asked["logout global"] == 1 and not auth.sessions
    team.http.cookies.clear()
    team.http.cookies.update(first)
    assert await status(team) == 401
    # It holds here even when the Auth server is away.
    team.http.cookies.clear()
    await sign_in(team)
    kept = dict(team.http.cookies)
    auth.broken = True
    assert (await post(team, "/logout")).status_code == 303
    team.http.cookies.update(kept)
    assert await status(team) == 401


async def test_who_is_no_member_does_not_come_in(team: Api, auth: AuthServer, urls: Urls) -> None:
    with psycopg.connect(urls.direct, autocommit=True) as connection:
        connection.execute("delete from profiles where id = %s", (OWNER,))
    answer = await sign_in(team)
    assert answer.status_code == 422 and "not a member of this workspace" in answer.text
    assert not auth.sessions and await status(team) == 401


async def test_the_cookie_of_a_page_over_https(urls: Urls, tmp_path: Path, auth: AuthServer) -> None:
    settings = {"database_url": urls.app, "supabase_url": auth.url, "supabase_publishable_key": KEY}
    public = "https://loops.example.com"
    async with open_api(urls, tmp_path, engine=False, public_url=public, sign_in_with="github", **settings) as api:
        answer = await api.http.post(
            "/sign-in", data={"email": EMAIL, "password": PASSWORD}, headers={"host": "loops.example.com"}
        )
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-loopwright=") and "Secure" in cookie and "Path=/" in cookie
        away = await api.http.get("/sign-in/with/github", headers={"host": "loops.example.com"})
        back = parse_qs(urlsplit(away.headers["location"]).query)["redirect_to"]
        assert back == ["https://loops.example.com/auth/callback"]


async def test_a_token_of_the_auth_server_is_its_user(team: Api, auth: AuthServer) -> None:
    for token, expected in (
        (auth.token(OTHER), 201),
        (auth.token(OTHER, exp=int(time.time()) - 60), 401),
        (auth.token(OTHER, iss="https://evil.example/auth/v1"), 401),
        (auth.token(OTHER, role="service_role"), 401),
    ):
        body = {"name": "a", "spec": {"model": "practice"}}
        answer = await team.call(
            "POST", "/api/agents", body, user=None, authorization=f"Bearer {token}", x_triggered_by=OWNER
        )
        assert answer.status_code == expected
        if expected == 201:
            assert answer.json()["owner_id"] == OTHER


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    url, database = "https://x.supabase.co", "postgresql://x/y"
    for changed, field in (
        ({"supabase_publishable_key": KEY, "database_url": database}, "SUPABASE_URL"),
        ({"supabase_publishable_key": KEY, "supabase_url": url}, "DATABASE_URL"),
        (
            {"supabase_publishable_key": KEY, "supabase_url": url, "database_url": database, "host": "0.0.0.0"},
            "LOOPWRIGHT_PUBLIC_URL",
        ),
    ):
        with pytest.raises(InvalidInput) as refused:
            Settings(home=tmp_path, _env_file=None, **changed).check()  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert refused.value.problems[0].field == field
    with pytest.raises(ValueError, match="must be an address"):
        Settings(public_url="loops.example.com")


async def test_who_is_removed_or_demoted_loses_access_at_once(team: Api, auth: AuthServer, urls: Urls) -> None:
    loop = await team.make_loop()  # OWNER's own and private
    await sign_in(team, "c@example.com")
    bearer = {"authorization": f"Bearer {auth.token(ADMIN)}"}
    path = f"/api/loops/{loop['id']}"

    async def both() -> tuple[int, int]:
        cookies = dict(team.http.cookies)
        by_cookie = await status(team, path)
        team.http.cookies.clear()
        by_token = (await team.call("GET", path, user=None, **bearer)).status_code
        team.http.cookies.update(cookies)
        return by_cookie, by_token

    assert await both() == (200, 200)
    with psycopg.connect(urls.direct, autocommit=True) as connection:
        connection.execute("update profiles set role = 'member' where id = %s", (ADMIN,))
        assert await both() == (404, 404)
        connection.execute("update profiles set role = 'admin' where id = %s", (ADMIN,))
        connection.execute("update auth.users set banned_until = now() + interval '1 day' where id = %s", (ADMIN,))
        assert await both() == (403, 403)
        connection.execute("update auth.users set banned_until = null where id = %s", (ADMIN,))
        assert await both() == (200, 200)
        connection.execute("delete from profiles where id = %s", (ADMIN,))
        assert await both() == (403, 403)
        connection.execute("delete from auth.users where id = %s", (ADMIN,))
        assert await both() == (401, 403)
