"""The OpenAPI document, walked by schemathesis: no request of its making gets a 500 or an undocumented answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from loopwright.app import create_app
from loopwright.settings import Settings
from loopwright.store.embedded import EmbeddedServer
from tests.api.world import AGENT, LOOP, SERVICE_KEY
from tests.postgres import OWNER, fresh_database

HEADERS = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": OWNER}
EXAMPLES = 8
"""Requests made up for each operation."""
PARTS = 4
"""The walk is shared out among the processes of the tests."""


@pytest.fixture(scope="module")
def address(pg_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server on a thread of its own, since schemathesis is not async."""
    ready, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with fresh_database(pg_server) as urls:
            home: Path = tmp_path_factory.mktemp("home")
            chosen = Settings(home=home, service_key=SERVICE_KEY, _env_file=None, grace_seconds=0)  # pyright: ignore[reportCallIssue, reportArgumentType]
            app = create_app(chosen, urls=urls, engine=False)
            server = uvicorn.Server(
                uvicorn.Config(app, port=0, lifespan="on", log_level="critical", timeout_graceful_shutdown=1)
            )
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            found.append(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
            ready.set()
            await asyncio.to_thread(stop.wait)
            server.should_exit = True
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    stop.set()
    thread.join(30)


def _document(address: str) -> dict[str, Any]:
    return httpx.get(f"{address}/api/openapi.json", timeout=60).json()


def test_every_operation_is_described(address: str) -> None:
    document = _document(address)
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            assert "500" in operation["responses"]
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert list(response["content"]) == ["application/problem+json"], (method, path, status)
    text = str(document)
    for reference in {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in document["components"]["schemas"], reference


def test_examples_are_right(address: str) -> None:
    with httpx.Client(base_url=address, headers=HEADERS, timeout=60) as client:
        agent = client.post("/api/agents", json={"name": "a", "spec": AGENT}).json()
        loop = client.post("/api/loops", json={"name": "l", "agent_id": agent["id"], "spec": LOOP})
        assert loop.status_code == 201, loop.text


@pytest.mark.parametrize("part", range(PARTS))
def test_schemathesis_finds_nothing(address: str, part: int) -> None:
    document = _document(address)
    schema = schemathesis.openapi.from_dict(document)
    schema.config.base_url = address
    # Ids that are there, so that more than the 404s are walked.
    with httpx.Client(base_url=address, headers=HEADERS, timeout=60) as client:
        agent = client.post("/api/agents", json={"name": "a", "spec": AGENT}).json()
        loop = client.post("/api/loops", json={"name": "l", "agent_id": agent["id"], "spec": LOOP}).json()
        run = client.post(f"/api/loops/{loop['id']}/runs").json()
        known = {"agent_id": agent["id"], "loop_id": loop["id"], "run_id": run["run_id"]}
    walked = 0
    for number, result in enumerate(schema.get_all_operations()):
        if number % PARTS != part:
            continue
        operation = cast(Any, result).ok()
        if operation.path.endswith("/events"):
            continue  # endless for a run that goes on; its refusals are tested by themselves
        walked += 1
        _walk(operation, known)
    assert walked >= 10


def _walk(operation: Any, known: dict[str, str]) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy())
    def requests(case: Any) -> None:
        if len(case.body) % 2 if isinstance(case.body, dict) else True:
            for name, value in known.items():
                if name in (case.path_parameters or {}) and case.method != "DELETE":
                    case.path_parameters[name] = value
        answer = case.call(headers=HEADERS)
        case.validate_response(
            answer,
            checks=[
                not_a_server_error,
                status_code_conformance,
                content_type_conformance,
                response_schema_conformance,
            ],
        )

    requests()
