"""Endpoints over the API: making, changing, and whose they are."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.service.endpoints import MOST_ENDPOINTS
from loopwright.store.database import connect_direct
from tests.api.world import Api
from tests.postgres import ADMIN, OTHER

from .receiver import Receiver
from .world import change, deliveries, end_a_run, make_endpoint, send_all


async def test_its_secret_is_shown_once(idle: Api, receiver: Receiver) -> None:
    body = {"name": "ops", "url": receiver.url}
    made = await idle.make("/api/endpoints", body, idempotency_key="one")
    again = await idle.make("/api/endpoints", body, idempotency_key="one")
    assert made["secret"].startswith("whsec_")
    assert (again["id"], again["secret"]) == (made["id"], None)
    path = f"/api/endpoints/{made['id']}"
    assert "secret" not in await idle.get(path)
    renewed = (await idle.call("POST", f"{path}/secret")).json()["secret"]
    async with await connect_direct(idle.runtime.database.urls) as c:
        rows = await c.execute(
            "select row_to_json(e)::text || row_to_json(k)::text from endpoints e, idempotency_keys k"
        )
        for (text,) in await rows.fetchall():
            assert made["secret"].removeprefix("whsec_") not in text
            assert renewed.removeprefix("whsec_") not in text


async def test_changing_it_needs_the_version_that_was_read(idle: Api, receiver: Receiver) -> None:
    made = await make_endpoint(idle, receiver)
    path = f"/api/endpoints/{made['id']}"
    assert (await idle.call("PATCH", path, {"name": "x"})).status_code == 428
    changed = await idle.call("PATCH", path, {"name": "x"}, if_match='"1"')
    assert (changed.status_code, changed.headers["etag"], changed.json()["url"]) == (200, '"2"', receiver.url)
    assert (await idle.call("PATCH", path, {"name": "y"}, if_match='"1"')).status_code == 412
    assert (await idle.call("DELETE", path, if_match='"1"')).status_code == 412
    assert (await idle.call("DELETE", path)).status_code == 204
    assert (await idle.call("GET", path)).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "http://127.0.0.1:9/"}, "url"),
        ({"url": "http://169.254.169.254/latest"}, "url"),
        ({"url": "ftp://example.com/"}, "url"),
        ({"url": "https://user:secret@example.com/"}, "url"),
        ({"url": "nowhere"}, "url"),
        ({"url": "https://example.com/\x07"}, "url"),
        ({"scope": "workspace"}, "scope"),
        ({"loop_id": "00000000-0000-4000-8000-00000000dead"}, "loop_id"),
        ({"events": []}, "events"),
        ({"events": ["run.started"]}, "events.0"),
        ({"name": ""}, "name"),
    ],
)
async def test_what_could_not_work_is_refused_by_its_field(
    idle: Api, receiver: Receiver, changes: Any, field: str
) -> None:
    answer = await idle.call("POST", "/api/endpoints", {"name": "ops", "url": receiver.url, **changes})
    assert answer.status_code == 422, answer.text
    assert [each["field"] for each in answer.json()["errors"]] == [field]
    assert "secret@" not in answer.text
    made = await make_endpoint(idle, receiver)
    path = f"/api/endpoints/{made['id']}"
    assert (await idle.call("PATCH", path, changes, if_match="*")).status_code == 422


async def test_an_address_inside_names_the_way_out(idle: Api) -> None:
    answer = await idle.call("POST", "/api/endpoints", {"name": "ops", "url": "http://127.0.0.1:9/"})
    assert "LOOPWRIGHT_EGRESS_ALLOW" in answer.json()["errors"][0]["message"]


async def test_others_neither_see_nor_change_it(idle: Api, receiver: Receiver) -> None:
    made = await make_endpoint(idle, receiver)
    await end_a_run(idle)
    [delivery] = await deliveries(idle, made)
    path = f"/api/endpoints/{made['id']}"
    for method, address in (
        ("GET", path), ("POST", f"{path}/secret"), ("POST", f"{path}/test"), ("GET", f"{path}/deliveries"),
        ("GET", f"{path}/deliveries/{delivery['id']}"), ("POST", f"{path}/deliveries/{delivery['id']}/again"),
        ("DELETE", path),
    ):  # fmt: skip
        assert (await idle.call(method, address, user=OTHER)).status_code == 404, address
    # An admin sees it all, and may switch it off; what is signed with stays the owner's.
    assert len(await deliveries(idle, made, user=ADMIN)) == 1
    off = await idle.call("PATCH", path, {"active": False}, user=ADMIN, if_match="*")
    assert (off.status_code, off.json()["active"]) == (200, False)
    on = await idle.call("PATCH", path, {"active": True}, user=ADMIN, if_match="*")
    assert on.status_code == 200
    renewed = (await idle.call("POST", f"{path}/secret", user=ADMIN)).json()["secret"]
    await send_all(idle)
    assert receiver.messages[0].is_signed_with(renewed)
    assert receiver.messages[0].is_signed_with(made["secret"])


async def test_who_is_no_admin_any_more_can_not_keep_it_for_all(idle: Api, receiver: Receiver) -> None:
    made = await make_endpoint(idle, receiver, user=ADMIN, scope="workspace")
    await change(idle, "update profiles set role = 'member' where id = %s", ADMIN)
    path = f"/api/endpoints/{made['id']}"
    refused = await idle.call("PATCH", path, {"name": "x"}, user=ADMIN, if_match="*")
    assert [each["field"] for each in refused.json()["errors"]] == ["scope"]
    assert (await idle.call("PATCH", path, {"scope": "own"}, user=ADMIN, if_match="*")).status_code == 200


async def test_a_log_is_read_by_pages_and_by_state(idle: Api, receiver: Receiver) -> None:
    made = await make_endpoint(idle, receiver)
    loop = await idle.make_loop()
    runs = [await end_a_run(idle, loop) for _ in range(3)]
    await send_all(idle)
    runs.append(await end_a_run(idle, loop))
    path = f"/api/endpoints/{made['id']}/deliveries"
    first = await idle.get(f"{path}?limit=3")
    rest = await idle.get(f"{path}?limit=3&cursor={first['next_cursor']}")
    assert [each["run_id"] for each in [*first["items"], *rest["items"]]] == runs[::-1]
    assert rest["next_cursor"] is None
    assert [each["run_id"] for each in (await idle.get(f"{path}?state=waiting"))["items"]] == runs[3:]


async def test_somebody_has_only_so_many(idle: Api, receiver: Receiver) -> None:
    made = await make_endpoint(idle, receiver)
    await change(
        idle,
        "insert into endpoints (owner_id, name, url, nonce, sealed, key_id) "
        "select owner_id, name, url, nonce, sealed, key_id from endpoints, generate_series(2, %s) where id = %s",
        MOST_ENDPOINTS, made["id"],
    )  # fmt: skip
    answer = await idle.call("POST", "/api/endpoints", {"name": "one more", "url": receiver.url})
    assert (answer.status_code, "50 endpoints already" in answer.json()["detail"]) == (409, True)


async def test_it_goes_with_its_loop(idle: Api, receiver: Receiver) -> None:
    loop = await idle.make_loop()
    made = await make_endpoint(idle, receiver, loop_id=loop["id"])
    await idle.call("DELETE", f"/api/loops/{loop['id']}")
    assert (await idle.call("GET", f"/api/endpoints/{made['id']}")).status_code == 404
