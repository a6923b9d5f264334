"""Whatever goes wrong is a problem (RFC 9457), with nothing of the server's insides in it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import psycopg
import pytest

from loopwright.service import runs
from tests.api.world import AGENT, Api

TITLES = {400, 401, 403, 404, 405, 413, 414, 415, 421, 422, 428, 500, 503}


def check(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert set(body) == {"type", "title", "status", "detail", "errors"}
    assert body["status"] == status
    assert body["detail"]
    assert "Traceback" not in answer.text and "psycopg" not in answer.text and "select " not in answer.text.lower()
    return body


async def test_every_kind_of_refusal(idle: Api) -> None:
    check(await idle.call("GET", "/nowhere"), 404)
    check(await idle.call("PUT", "/api/loops"), 405)
    check(await idle.call("GET", "/api/loops", user=None), 401)
    body = check(await idle.call("POST", "/api/agents", {"name": "", "spec": AGENT, "extra": 1}), 422)
    assert {each["field"] for each in body["errors"]} == {"name", "extra"}
    check(await idle.call("GET", "/api/loops?limit=0"), 422)
    check(await idle.call("GET", "/api/loops?cursor=made-up"), 422)
    check(await idle.call("GET", "/api/loops/not-an-id"), 422)
    check(await idle.call("GET", "/api/runs/../../etc/passwd"), 404)
    check(await idle.call("GET", "/api/runs/run_'%20or%201=1--"), 422)
    check(await idle.call("GET", "/api/loops", host="evil.example"), 421)
    check(await idle.call("GET", "/api/loops?x=" + "y" * 9_000), 414)


RAW: list[tuple[bytes, str, int]] = [
    (b"{", "application/json", 400),
    (b"", "application/json", 422),
    (b"{}", "text/plain", 415),
    (b"a=1", "application/x-www-form-urlencoded", 415),
    (b'{"name": "\xff\xfe", "spec": {}}', "application/json", 400),
    ('{"name": "x", "spec": {}}'.encode("utf-16"), "application/json", 400),
    (b'{"name": "a\\u0000b", "spec": {"model": "practice"}}', "application/json", 400),
    (b'{"name": "a", "spec": {"model": "practice", "settings": {"x\\u0000": 1}}}', "application/json", 400),
    (b'{"name": "\\ud800", "spec": {"model": "practice"}}', "application/json", 400),
    (b'{"name": "a", "spec": {"model": "practice", "settings": {"x": NaN}}}', "application/json", 400),
    (b'{"name": "a", "spec": {"model": "practice", "settings": {"x": 1e999}}}', "application/json", 400),
    (b'{"name": "a", "spec": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", "application/json", 400),
    (b'{"name": "a", "spec": ' + b'{"a":' * 60 + b"1" + b"}" * 60 + b"}", "application/json", 400),
    (b'{"name": "' + b"x" * 1_100_000 + b'"}', "application/json", 413),
    (
        b'{"name": "a", "spec": {"model": "practice", "settings": {"x": ' + b"9" * 5_000 + b"}}}",
        "application/json",
        400,
    ),
    (b"[1, 2]", "application/json", 422),
    (b'"text"', "application/json", 422),
    (b"null", "application/json", 422),
]


@pytest.mark.parametrize(("content", "kind", "status"), RAW, ids=[repr(raw[0][:40]) for raw in RAW])
async def test_bodies_that_nobody_should_send(idle: Api, content: bytes, kind: str, status: int) -> None:
    answer = await idle.http.post("/api/agents", content=content, headers={"content-type": kind, **_signed_in(idle)})
    check(answer, status)


def _signed_in(api: Api) -> dict[str, str]:
    from tests.api.world import SERVICE_KEY
    from tests.postgres import OWNER

    return {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": OWNER}


async def test_text_that_looks_like_sql_is_text(idle: Api) -> None:
    name = "'; drop table loops; -- %s {} \\ 🦉 \u202e"
    agent = await idle.make("/api/agents", {"name": name, "spec": AGENT})
    assert (await idle.get(f"/api/agents/{agent['id']}"))["name"] == name
    assert (await idle.call("GET", "/api/runs?status=queued'--")).status_code == 422


async def test_a_defect_shows_nothing_of_itself(idle: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise psycopg.errors.UndefinedTable('relation "secret_table" does not exist')

    monkeypatch.setattr(runs, "list_runs", broken)
    body = check(await idle.call("GET", "/api/runs"), 500)
    assert "secret_table" not in json.dumps(body)


async def test_the_database_away_is_503_and_then_it_works_again(idle: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwright.core.errors import DatabaseAway

    async def away(*_: object, **__: object) -> None:
        raise DatabaseAway("the database is away: connection refused by 10.1.2.3")

    monkeypatch.setattr(runs, "list_runs", away)
    answer = await idle.call("GET", "/api/runs")
    check(answer, 503)
    assert answer.headers["retry-after"] == "2"
    assert "10.1.2.3" not in answer.text
    monkeypatch.undo()
    # Connections that the server cut off are no lasting harm either.
    async with idle.runtime.database.pool.connection() as c:
        await c.execute("select 1")
    kill = (
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )
    async with await psycopg.AsyncConnection.connect(idle.runtime.database.urls.direct, autocommit=True) as c:
        await c.execute(kill)
    statuses = [(await idle.call("GET", "/api/runs")).status_code for _ in range(6)]
    assert set(statuses) <= {200, 503}
    assert statuses[-1] == 200


async def test_health_needs_no_sign_in(idle: Api) -> None:
    assert (await idle.get("/api/health", user=None))["status"] == "ok"
    assert (await idle.get("/api/health/ready", user=None))["running"] == 0
