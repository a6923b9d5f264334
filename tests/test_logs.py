"""The log: which run and which request a line is about, and that no secret is in it."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopwright import logs
from loopwright.store.database import Urls
from tests.api.world import open_api
from tests.postgres import pg_server, urls

__all__ = ["pg_server", "urls"]

SECRET = "s3cr3t-that-nobody-may-see"


@contextmanager
def listening(form: logs.Form = "json") -> Generator[io.StringIO]:
    """What would stand in the log of this process."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.JsonLines() if form == "json" else logs.PlainLines())
    ours, root = logging.getLogger("loopwright"), logging.getLogger()
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield written
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "message",
    [
        f"Authorization: Bearer {SECRET}",
        f"headers={{'authorization': 'Bearer {SECRET}', 'accept': '*/*'}}",
        f"[(b'authorization', b'{SECRET}'), (b'x-api-key', b'{SECRET}')]",
        f"x-api-key: {SECRET}",
        f'{{"api_key": "{SECRET}"}}',
        f"LOOPWRIGHT_SERVICE_KEY is unset, OPENAI_API_KEY={SECRET}",
        f"password={SECRET} host=db",
        f"connecting to postgresql://app:{SECRET}@db.example.com:5432/x",
        f"GET https://api.example.com/v1?key={SECRET}&x=1 failed",
        f"webhook-signature: v1,{SECRET}",
        f"Cookie: loopwright={SECRET}",
        "a token eyJhbGciOiJFUzI1NiJ9.s3cr3t-that-nobody-may-see.s3cr3t-that-nobody-may-see was refused",
        "incorrect key: sk-proj-s3cr3t-that-nobody-may-see",
        "lw_s3cr3t-that-nobody-may-see",
    ],
)
def test_what_looks_like_a_secret_is_masked(form: logs.Form, message: str) -> None:
    with listening(form) as written:
        logging.getLogger("anybody").warning(message)
        logging.getLogger("anybody").warning("%s", message)
        logging.getLogger("anybody").error("it failed", exc_info=ValueError(message))
    assert "may-see" not in written.getvalue()
    assert written.getvalue().count(logs.MASK) >= 3


@pytest.mark.parametrize(
    "message",
    [
        "the run run_0123456789 can't go on",
        "a token, then another one; the key of the secret",
        "HTTP Request: POST https://api.openai.com/v1/chat/completions 200 OK",
        "can't listen on 127.0.0.1:8700: it is in use; take another --port",
    ],
)
def test_what_is_no_secret_is_left_alone(message: str) -> None:
    assert logs.masked(message) == message


def test_values_that_are_known_to_be_secret_are_masked_wherever_they_stand() -> None:
    logs.hide(["correct-horse", "correct-horse-battery", "ab"])
    assert logs.masked("said correct-horse-battery, and correct-horse, ab") == f"said {logs.MASK}, and {logs.MASK}, ab"


async def test_the_lines_of_a_run_carry_its_id_and_those_of_a_request_its_number(urls: Urls, tmp_path: Path) -> None:
    with listening() as written:
        async with open_api(urls, tmp_path) as api:
            loop = await api.make_loop()
            runs = [await api.start(loop) for _ in range(3)]
            for run in runs:
                await api.finished(run)
            answer = await api.call("GET", "/api/health", x_request_id="from-a-proxy")
            assert answer.headers["x-request-id"] == "from-a-proxy"
            refused = await api.call("GET", "/api/runs/nothing", x_request_id="no good")
            assert len(refused.headers["x-request-id"]) == 32
    lines = parsed(written.getvalue())
    ours = [line for line in lines if line["logger"] == "loopwright.service.executor"]
    assert {line["run_id"] for line in ours} == set(runs)
    for run in runs:
        assert [line["message"] for line in ours if line["run_id"] == run][-1] == "the run is over: max_iterations"
    assert not any("request_id" in line for line in ours)  # a run outlives the request that started it
    for line in lines:
        assert {"time", "level", "logger", "message"} <= set(line)


async def test_a_failure_can_be_found_by_the_number_that_its_answer_has(
    urls: Urls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError(f"password={SECRET}")

    monkeypatch.setattr("loopwright.service.runs.list_runs", broken)
    with listening() as written:
        async with open_api(urls, tmp_path, engine=False) as api:
            answer = await api.call("GET", "/api/runs")
            assert answer.status_code == 500
    (line,) = [line for line in parsed(written.getvalue()) if line["logger"] == "loopwright.api.errors"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert "RuntimeError" in line["error"]
    assert SECRET not in written.getvalue()


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_all_that_a_process_says_is_json_and_holds_no_secret(command: str, urls: Urls, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "LOOPWRIGHT_LOG": "json",
        "LOOPWRIGHT_HOME": str(tmp_path / "h"),
        "LOOPWRIGHT_GRACE_SECONDS": "0",
        "DATABASE_URL": urls.app,
        "DATABASE_URL_DIRECT": urls.direct,
        "OPENAI_API_KEY": SECRET,
    }
    arguments = ["serve", "--port", "0"] if command == "serve" else ["worker"]
    process = subprocess.Popen(
        [sys.executable, "-m", "loopwright", *arguments],
        env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr
    lines, token = list[dict[str, Any]](), "-"
    try:
        for text in process.stderr:
            lines.append(json.loads(text))
            if "is at work" in text:
                break
            if "Loopwright is at" in text:
                token = (tmp_path / "h" / "token").read_text().strip().rstrip("=").replace("+", "-").replace("/", "_")
                _use(lines[-1]["message"].split()[3].rstrip(";"), token)
                break
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=120)
    finally:
        process.kill()
    assert out == ""
    lines += parsed(rest)
    text = json.dumps(lines)
    assert SECRET not in text
    if command == "serve":
        assert token not in text
        access = [line for line in lines if line["logger"] == "uvicorn.access"]
        assert ' "GET /login HTTP/1.1" 303' in access[0]["message"]
        assert [line["request_id"] for line in access] == ["n0", "n1", "n2", "n3"]
        assert '"GET /api/runs HTTP/1.1" 401' in access[2]["message"]


def _use(address: str, token: str) -> None:
    """Requests with secrets in all places where one can be."""
    with httpx.Client(base_url=address, timeout=60) as client:
        client.get("/login", params={"token": token}, headers={"x-request-id": "n0"})
        client.get("/api/runs", headers={"authorization": f"Bearer {token}", "x-request-id": "n1"})
        client.cookies.clear()
        client.get("/api/runs", headers={"authorization": f"Bearer lw_{SECRET}", "x-request-id": "n2"})
        client.get("/nothing", params={"api_key": SECRET}, headers={"x-request-id": "n3"})


def test_what_is_refused_is_json_too(tmp_path: Path) -> None:
    environ = {**os.environ, "LOOPWRIGHT_LOG": "json", "LOOPWRIGHT_HOST": "0.0.0.0", "LOOPWRIGHT_HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "loopwright", "serve"], env=environ, cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    (line,) = parsed(ran.stderr)
    assert (line["level"], line["logger"]) == ("error", "loopwright.console.outcome")
    assert line["message"].startswith("LOOPWRIGHT_HOST: ")
    assert time.strptime(line["time"][:19], "%Y-%m-%dT%H:%M:%S")
