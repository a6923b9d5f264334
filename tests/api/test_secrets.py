"""Secrets go in and never come out: not by the API, not in a log, an event or the database."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path

import pytest

from loopwright.core.errors import InvalidInput
from loopwright.service.secrets import Vault, open_vault
from loopwright.store.database import Urls
from loopwright.store.embedded import EmbeddedServer
from loopwright.store.secrets import Sealed
from tests.api.world import GOAL, LOOP, Api, open_api
from tests.feedback.endpoint import reply, running_endpoint
from tests.postgres import OTHER, OWNER

VALUE = "sk-live-4242-do-not-show"


async def test_only_names_are_shown(idle: Api) -> None:
    assert (await idle.call("PUT", "/api/secrets/TOKEN", {"value": VALUE})).status_code == 204
    assert (await idle.call("PUT", "/api/secrets/TOKEN", {"value": VALUE + "2"})).status_code == 204
    listed = await idle.call("GET", "/api/secrets")
    assert [each["name"] for each in listed.json()] == ["TOKEN"]
    assert (await idle.get("/api/secrets", user=OTHER)) == []
    assert (await idle.call("DELETE", "/api/secrets/TOKEN", user=OTHER)).status_code == 404
    for name in ("1X", "A B", "A-B", "x" * 65):
        assert (await idle.call("PUT", f"/api/secrets/{name}", {"value": "v"})).status_code == 422
    assert (await idle.call("PUT", "/api/secrets/E", {"value": ""})).status_code == 422
    log = await idle.call("GET", "/api/activity")
    assert "secret_stored" in log.text and VALUE not in log.text + listed.text
    assert (await idle.call("DELETE", "/api/secrets/TOKEN")).status_code == 204


async def test_a_loop_that_names_no_stored_secret_is_refused(idle: Api) -> None:
    agent = await idle.make("/api/agents", {"name": "a", "spec": {"model": "practice"}})
    evaluator = {"kind": "http", "url": "https://8.8.8.8/s", "headers": {"Authorization": "Bearer ${TOKEN}"}}
    body = {"name": "l", "agent_id": agent["id"], "spec": {**LOOP, "evaluator": evaluator}}
    refused = await idle.call("POST", "/api/loops", body)
    assert refused.json()["errors"][0]["field"] == "spec.evaluator.headers.Authorization"
    assert "PUT /api/secrets/TOKEN" in refused.json()["detail"]
    # The server's own environment is not for users to read.
    evaluator["headers"] = {"Authorization": "${PATH}"}
    assert (await idle.call("POST", "/api/loops", body)).status_code == 422
    await idle.call("PUT", "/api/secrets/PATH", {"value": VALUE})
    assert (await idle.call("POST", "/api/loops", body)).status_code == 201


async def test_a_run_uses_its_owners_secret_and_shows_it_nowhere(
    urls: Urls, tmp_path: Path, caplog: pytest.LogCaptureFixture, pg_server: EmbeddedServer
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_endpoint() as endpoint, open_api(urls, tmp_path, egress_allow=endpoint.host) as api:
        # An endpoint that sends back what it got.
        endpoint.answers(reply({"score": 0.5, "detail": f"you sent Bearer {VALUE}"}))
        await api.call("PUT", "/api/secrets/TOKEN", {"value": VALUE})
        evaluator = {"kind": "http", "url": endpoint.url, "headers": {"Authorization": "Bearer ${TOKEN}"}}
        loop = await api.make_loop(goal=GOAL, evaluator=evaluator)
        run = await api.finished(await api.start(loop, {"max_iterations": 1}))
        events = (await api.call("GET", f"/api/runs/{run['id']}/export")).text
        assert run["best_score"] == 0.5, run
        assert [each.headers["authorization"] for each in endpoint.received] == [f"Bearer {VALUE}"]
    dumped = await asyncio.create_subprocess_exec(
        pg_server.binaries / "pg_dump", urls.direct, stdout=asyncio.subprocess.PIPE
    )
    dump = (await dumped.communicate())[0].decode()
    assert "you sent Bearer ${TOKEN}" in dump
    for place in (dump, events, str(run), caplog.text):
        assert VALUE not in place
        assert base64.b64encode(VALUE.encode()).decode() not in place
        assert VALUE.encode().hex() not in place


def test_what_is_sealed_opens_only_in_its_place(tmp_path: Path) -> None:
    vault = open_vault(None, tmp_path)
    sealed = vault.seal(OWNER, "A", VALUE)
    assert vault.open(OWNER, sealed) == VALUE
    assert vault.seal(OWNER, "A", VALUE).nonce != sealed.nonce
    moved = Sealed("B", sealed.nonce, sealed.sealed, sealed.key_id)
    changed = Sealed("A", sealed.nonce, bytes([sealed.sealed[0] ^ 1]) + sealed.sealed[1:], sealed.key_id)
    for owner, secret in ((OTHER, sealed), (OWNER, moved), (OWNER, changed)):
        with pytest.raises(InvalidInput, match="not what was stored"):
            vault.open(owner, secret)
    other = Vault(b"x" * 32)
    with pytest.raises(InvalidInput, match="another key"):
        other.open(OWNER, sealed)
    assert "x" * 32 not in repr(other)


def test_the_key_lies_in_a_file_of_its_own(tmp_path: Path) -> None:
    first = open_vault(None, tmp_path)
    assert open_vault(None, tmp_path) == first
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600
    (tmp_path / "secret.key").chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        open_vault(None, tmp_path)
    given = base64.b64encode(b"k" * 32).decode()
    assert open_vault(given, tmp_path / "nowhere") == Vault(b"k" * 32)
    with pytest.raises(InvalidInput, match="openssl rand"):
        open_vault("short", tmp_path)
