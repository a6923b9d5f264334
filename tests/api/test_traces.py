"""Traces, as a collector gets them from a server in a process of its own."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from loopwright.core.errors import InvalidInput
from loopwright.store.embedded import EmbeddedServer
from loopwright.tracing import set_up, trace_id, wanted
from tests.api.world import AGENT, GOAL, LOOP, SERVICE_KEY
from tests.dashboard.site import open_site
from tests.postgres import OWNER


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes spans over HTTP."""

    spans: list[Span] = []  # noqa: RUF012 - one collector a test run

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in part.scope_spans:
                self.spans.extend(scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Generator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_run_is_one_trace(
    pg_server: EmbeddedServer, collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with open_site(pg_server, tmp_path, shared=True) as site:
        headers = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": OWNER}
        with httpx.Client(base_url=site.address, headers=headers, timeout=30) as client:
            agent = client.post("/api/agents", json={"name": "a", "spec": AGENT}).json()
            away = {"kind": "http", "url": f"{site.address}/nothing-here?key=geheim"}
            specs = (LOOP, {**LOOP, "evaluator": away})
            bodies = [{"name": "l", "agent_id": agent["id"], "spec": spec} for spec in specs]
            loops = [client.post("/api/loops", json=body).json()["id"] for body in bodies]
            runs = [client.post(f"/api/loops/{loop}/runs").json()["run_id"] for loop in loops]
            for run in runs:
                while client.get(f"/api/runs/{run}").json()["status"] != "finished":
                    time.sleep(0.1)
        mine, other = (trace_id(run).to_bytes(16, "big") for run in runs)
        deadline = time.monotonic() + 30
        while not {mine, other} <= {each.trace_id for each in Collector.spans if each.name == "run"}:
            assert time.monotonic() < deadline, {each.name for each in Collector.spans}
            time.sleep(0.1)
    spans = [each for each in Collector.spans if each.trace_id == mine]
    by_id = {each.span_id: each for each in spans}
    (root,) = (each for each in spans if not each.parent_span_id)
    assert root.name == "run"
    iterations = [each for each in spans if each.name == "iteration"]
    assert len(iterations) == 3 and {by_id[each.parent_span_id].name for each in iterations} == {"run"}
    chats = [each for each in spans if each.name.startswith("chat ")]
    assert len(chats) == 3
    assert all(each.end_time_unix_nano >= each.start_time_unix_nano > 0 for each in spans)
    failed = [each for each in Collector.spans if each.trace_id == other and each.name == "evaluate"]
    assert {(each.status.code, each.status.message) for each in failed} == {(Status.STATUS_CODE_ERROR, "")}
    # The engine's own span caused it.
    engines = [each for each in Collector.spans if each.name == "loopwright.run"]
    assert {link.span_id for link in root.links} <= {each.span_id for each in engines} and root.links
    said = "\n".join(str(each) for each in Collector.spans)
    for secret in (GOAL, "geheim", SERVICE_KEY, "You work in a feedback loop"):
        assert secret not in said, [each for each in Collector.spans if secret in str(each)][:1]


def test_what_the_environment_asks_for() -> None:
    assert not wanted({})
    assert wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"})
    assert wanted({"OTEL_TRACES_EXPORTER": "console"})
    assert not wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"})
    assert not wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"})
    assert set_up({}) is None
    for environ, field in (
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
    ):
        with pytest.raises(InvalidInput) as refused:
            set_up(environ)
        assert refused.value.problems[0].field == field
