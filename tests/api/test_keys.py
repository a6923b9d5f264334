"""Personal API keys, and who may do what: over HTTP, against the real database."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.service.runtime import LOCAL_OWNER
from loopwright.store.database import Urls, connect_direct
from tests.api.world import Api, open_api
from tests.postgres import ADMIN, OTHER, OWNER


@pytest.fixture
def api(idle: Api) -> Api:
    return idle


async def bearer(api: Api, token: str, path: str = "/api/keys") -> int:
    return (await api.call("GET", path, user=None, authorization=f"Bearer {token}")).status_code


async def test_a_key_acts_as_its_owner_until_it_is_revoked(api: Api, urls: Urls) -> None:
    mine = await api.make_loop(name="mine")
    made = await api.make("/api/keys", {"name": "  nightly\tscript "})
    assert made["name"] == "nightly script" and made["token"].startswith("lw_") and len(made["token"]) > 40
    loops = await api.get("/api/loops", user=None, authorization=f"Bearer {made['token']}")
    assert [each["id"] for each in loops["items"]] == [mine["id"]]
    theirs = await api.make("/api/keys", {"name": "theirs"}, user=OTHER)
    assert await bearer(api, theirs["token"], f"/api/loops/{mine['id']}") == 404  # the owner's rights, and no more
    (listed,) = await api.get("/api/keys")
    assert listed["prefix"] == made["token"][:8] and listed["last_used_at"] and "token" not in listed
    async with await connect_direct(urls) as c:
        rows = await (await c.execute("select * from api_keys")).fetchall()
    assert made["token"] not in str(rows) and made["token"][12:] not in str(rows)
    assert (await api.call("DELETE", f"/api/keys/{made['id']}", user=OTHER)).status_code == 404
    assert (await api.call("DELETE", f"/api/keys/{made['id']}")).status_code == 204
    assert await bearer(api, made["token"]) == 401
    actions = [each["action"] for each in (await api.get("/api/activity"))["items"]]
    assert actions[:2] == ["api_key_revoked", "api_key_made"]


async def test_what_is_no_key_opens_nothing(api: Api) -> None:
    made = await api.make("/api/keys", {"name": "a"})
    for token in ("lw_", "lw_nonsense", f"{made['token']}x", made["token"][:-1], made["prefix"], "lw_\u00e9"):
        sent = [(b"authorization", f"Bearer {token}".encode())]
        answer = await api.http.get("/api/keys", headers=sent)
        assert answer.status_code == 401, token
    again = await api.call("POST", "/api/keys", {"name": "a"})
    assert again.status_code == 422 and again.json()["errors"][0]["field"] == "name"
    assert (await api.call("POST", "/api/keys", {"name": "\u200b!"})).status_code == 201  # what hides is taken out


async def test_a_key_works_in_local_mode(urls: Urls, tmp_path: Path) -> None:
    async with open_api(urls, tmp_path, engine=False, service_key=None) as local:
        owner = local.app.state.gate.local_token
        sent = await local.call("POST", "/api/keys", {"name": "cron"}, user=None, authorization=f"Bearer {owner}")
        made = sent.json()
        people = await local.get("/api/people", user=None, authorization=f"Bearer {made['token']}")
        assert LOCAL_OWNER in {each["id"] for each in people}


async def test_admins_give_roles_and_one_stays(api: Api) -> None:
    async def patch(whom: str, body: object, user: str = ADMIN) -> int:
        return (await api.call("PATCH", f"/api/people/{whom}", body, user=user)).status_code

    assert await patch(OWNER, {"role": "admin"}, user=OWNER) == 403
    assert await patch(ADMIN, {"role": "member"}) == 409  # the last one
    assert await patch(OWNER, {"role": "owner"}) == 422
    assert await patch("00000000-0000-4000-8000-00000000ffff", {"role": "admin"}) == 404
    assert await patch(OWNER, {"role": "admin", "monthly_cap_usd": "3"}) == 200
    (me,) = [each for each in await api.get("/api/people") if each["id"] == OWNER]
    assert (me["role"], me["monthly_cap_usd"]) == ("admin", "3")
    assert await patch(ADMIN, {"role": "member"}, user=OWNER) == 200
    assert await patch(OWNER, {}, user=ADMIN) == 200  # nothing asked for
    (me,) = [each for each in await api.get("/api/people") if each["id"] == OWNER]
    assert (me["role"], me["monthly_cap_usd"]) == ("admin", "3")
    assert await patch(OWNER, {"monthly_cap_usd": None}, user=OWNER) == 200
    (me,) = [each for each in await api.get("/api/people") if each["id"] == OWNER]
    assert me["monthly_cap_usd"] is None
