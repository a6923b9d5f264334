from __future__ import annotations

import base64
import hashlib
import hmac
import time
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopwright.core import spec
from loopwright.core.errors import EvaluatorFailed, InvalidInput
from loopwright.core.models import Candidate, EvaluationRequest
from loopwright.core.ports import Evaluator, EvaluatorContext
from loopwright.egress import EgressClient
from loopwright.feedback.http import EndpointEvaluator
from loopwright.feedback.registry import build_evaluator

from .conftest import NOW, request_for
from .endpoint import Endpoint, disconnect, drip, fifty_megabytes, hang, reply, then_close
from .test_parse import BAD_ANSWERS


@pytest.fixture
def evaluator(endpoint: Endpoint, egress: EgressClient) -> Evaluator:
    return EndpointEvaluator(url=endpoint.url, egress=egress, timeout_seconds=5)


async def failure(evaluator: Evaluator, request: EvaluationRequest, context: EvaluatorContext) -> EvaluatorFailed:
    with pytest.raises(EvaluatorFailed) as failed:
        await evaluator.evaluate(request, context)
    return failed.value


async def test_what_is_sent_and_what_comes_of_the_answer(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext
):
    endpoint.answers(reply({"score": 0.75, "detail": "more waves", "cost_usd": 0.001}, 201))
    found = await evaluator.evaluate(request_, context)
    assert (found.score, found.detail, found.cost_usd) == (0.75, "more waves", Decimal("0.001"))
    (received,) = endpoint.received
    assert received.json == {
        "candidate": "the sea",
        "goal": "a sentence",
        "run_id": "run-1",
        "attempt": 2,
        "iteration": 3,
    }
    assert received.method == "POST"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["idempotency-key"] == "run-1/2/3"
    assert received.headers["user-agent"].startswith("loopwright/")
    assert "webhook-signature" not in received.headers
    assert evaluator.name == f"http 127.0.0.1:{endpoint.port}"


async def test_data_is_sent_where_there_is_an_output_schema(
    endpoint: Endpoint, evaluator: Evaluator, context: EvaluatorContext
):
    data: Any = {"line": "☃ {braces} \x00", "n": float("nan")}
    await evaluator.evaluate(request_for(Candidate(text="{}", data=data)), context)
    assert endpoint.received[0].json["data"] == {"line": "☃ {braces} \x00", "n": None}


async def test_a_megabyte_of_candidate_arrives_whole(
    endpoint: Endpoint, evaluator: Evaluator, context: EvaluatorContext
):
    text = "call loop_done now {} \x1b\u2028☃" * 50_000
    await evaluator.evaluate(request_for(Candidate(text=text)), context)
    assert endpoint.received[0].json["candidate"] == text


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
async def test_a_bad_answer_is_a_failure_and_worth_a_retry(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext, answer: str
):
    endpoint.answers(reply(answer))
    assert (await failure(evaluator, request_, context)).transient


@pytest.mark.parametrize("status", [400, 401, 404, 408, 429, 500, 502, 503])
async def test_an_error_status_is_a_failure_that_quotes_the_answer(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext, status: int
):
    endpoint.answers(reply("no\x1b[31m such thing", status))
    failed = await failure(evaluator, request_, context)
    assert failed.transient
    assert f"answered HTTP {status}: no\\x1b[31m such thing" in str(failed)


async def test_a_score_in_an_error_answer_is_no_score_but_its_cost_is_a_cost(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext
):
    endpoint.answers(reply({"score": 1, "cost_usd": "0.25"}, 500))
    assert (await failure(evaluator, request_, context)).cost_usd == Decimal("0.25")


async def test_a_500_and_then_a_200_under_one_key(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext
):
    endpoint.answers(reply("later", 500), reply({"score": 0.9}))
    assert (await failure(evaluator, request_, context)).transient
    assert (await evaluator.evaluate(request_, context)).score == 0.9
    assert {received.headers["idempotency-key"] for received in endpoint.received} == {"run-1/2/3"}
    assert endpoint.connections == 1


@pytest.mark.parametrize(
    "script",
    [hang, drip, disconnect, then_close(b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{")],
    ids=["hang", "drip", "disconnect", "breaks off"],
)
async def test_an_endpoint_that_does_not_finish(
    endpoint: Endpoint, egress: EgressClient, request_: EvaluationRequest, context: EvaluatorContext, script: Any
):
    endpoint.answers(script)
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, timeout_seconds=0.2)
    started = time.monotonic()
    failed = await failure(evaluator, request_, context)
    assert failed.transient
    assert failed.cost_usd is None
    assert time.monotonic() - started < 2


async def test_a_50_megabyte_body_is_given_up(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext
):
    endpoint.answers(fifty_megabytes)
    tracemalloc.start()
    try:
        failed = await failure(evaluator, request_, context)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert failed.transient
    assert "larger than 1,000,000 bytes" in str(failed)


async def test_a_redirect_to_a_private_address_is_not_followed(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext
):
    endpoint.answers(reply("", 307, Location="http://10.0.0.1/score"))
    failed = await failure(evaluator, request_, context)
    assert failed.transient
    assert "http://10.0.0.1/score" in str(failed)


async def test_bytes_that_are_no_text(
    endpoint: Endpoint, evaluator: Evaluator, request_: EvaluationRequest, context: EvaluatorContext
):
    endpoint.answers(reply(b'{"score": 1, "detail": "\xff"}'))
    assert (await failure(evaluator, request_, context)).transient
    endpoint.answers(reply(b'\xef\xbb\xbf{"score": 1}'))
    assert (await evaluator.evaluate(request_, context)).score == 1


async def test_an_address_that_may_not_be_reached_surely_cost_nothing(
    request_: EvaluationRequest, context: EvaluatorContext
):
    async with EgressClient() as egress:
        evaluator = EndpointEvaluator(url="http://127.0.0.1:9/", egress=egress, max_cost_usd=Decimal(1))
        failed = await failure(evaluator, request_, context)
    assert not failed.transient
    assert failed.cost_usd == 0
    assert "`allow_hosts`" in str(failed)


async def test_an_endpoint_that_is_not_there_may_come_back_and_cost_nothing(
    endpoint: Endpoint, egress: EgressClient, request_: EvaluationRequest, context: EvaluatorContext
):
    async def nobody(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    async with EgressClient(resolve=nobody) as elsewhere:
        failed = await failure(EndpointEvaluator(url="http://gone.example/", egress=elsewhere), request_, context)
    assert failed.transient
    assert failed.cost_usd == 0


# Headers and secrets


async def test_headers_take_secrets_from_the_environment(
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("SCORE_TOKEN", "hunter2hunter2")
    headers = {"Authorization": "Bearer ${SCORE_TOKEN}", "IDEMPOTENCY-KEY": "mine", "Content-type": "text/plain"}
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, headers=headers)
    endpoint.answers(reply({"score": 1, "detail": "you sent Bearer hunter2hunter2"}), reply("hunter2hunter2?", 403))
    found = await evaluator.evaluate(request_, context)
    assert endpoint.received[0].headers["authorization"] == "Bearer hunter2hunter2"
    assert endpoint.received[0].headers["idempotency-key"] == "run-1/2/3"
    assert found.detail == "you sent Bearer ${SCORE_TOKEN}"
    assert "hunter2" not in str(await failure(evaluator, request_, context))
    assert "hunter2" not in repr(evaluator)


def every_character_escaped(text: str) -> str:
    return "".join(f"\\u{ord(character):04X}" for character in text)


def slashes_escaped(text: str) -> str:
    return text.replace("/", "\\/")


@pytest.mark.parametrize("spelling", [every_character_escaped, slashes_escaped])
async def test_an_escaped_secret_is_found_too(
    *,
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
    spelling: Callable[[str], str],
):
    monkeypatch.setenv("SCORE_TOKEN", "topsecret/abc")
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, headers={"X-Key": "${SCORE_TOKEN}"})
    echo = spelling("topsecret/abc")
    endpoint.answers(reply(f'{{"score": 1, "detail": "you sent {echo}"}}'), reply(f'{{"error": "{echo}"}}', 500))
    assert (await evaluator.evaluate(request_, context)).detail == "you sent ${SCORE_TOKEN}"
    assert '{"error": "${SCORE_TOKEN}"}' in str(await failure(evaluator, request_, context))


@pytest.mark.parametrize("path", ["", "x" * 170])
async def test_a_redirect_to_an_address_with_the_secret_does_not_show_it(
    *,
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
):
    monkeypatch.setenv("SCORE_TOKEN", "topsecret/abc")
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, headers={"X-Key": "${SCORE_TOKEN}"})
    endpoint.answers(reply(b"", 302, location=f"http://a.example/{path}/topsecret/abc"))
    failed = await failure(evaluator, request_, context)
    assert f"redirects to http://a.example/{path}/${{SCORE_TOKEN}} (HTTP 302)" in str(failed)


async def test_a_short_value_is_left_alone_in_answers(
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("FLAG", "1")
    endpoint.answers(reply({"score": 1.1}))
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, headers={"X-Flag": "${FLAG}"})
    assert (await evaluator.evaluate(request_, context)).score == 1.1


@pytest.mark.parametrize("value", [None, "hunter2\r\nX-Injected: 1"])
async def test_a_secret_that_is_missing_or_unusable_is_final_and_not_shown(
    *,
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
):
    monkeypatch.delenv("SCORE_TOKEN", raising=False)
    if value:
        monkeypatch.setenv("SCORE_TOKEN", value)
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, headers={"Authorization": "${SCORE_TOKEN}"})
    failed = await failure(evaluator, request_, context)
    assert not failed.transient
    assert failed.cost_usd == 0
    assert "hunter2" not in str(failed)
    assert ("SCORE_TOKEN is not set" in str(failed)) == (value is None)
    assert endpoint.received == []


# Signatures


async def test_requests_are_signed_as_standard_webhooks_has_it(
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
):
    key = bytes(range(32))
    monkeypatch.setenv("SIGNING", "whsec_" + base64.b64encode(key).decode())
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, signing_secret_env="SIGNING")
    await evaluator.evaluate(request_, context)
    (received,) = endpoint.received
    stamp = str(int(NOW.timestamp()))
    signed = b"run-1/2/3." + stamp.encode() + b"." + received.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert received.headers["webhook-id"] == "run-1/2/3"
    assert received.headers["webhook-timestamp"] == stamp
    assert received.headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize("secret", [None, "", "MfKQ9r8GKYqrTwjU", "whsec_", "whsec_not base64!", "whsec_ü"])
async def test_a_signing_secret_that_is_none(
    *,
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    monkeypatch: pytest.MonkeyPatch,
    secret: str | None,
):
    monkeypatch.delenv("SIGNING", raising=False)
    if secret is not None:
        monkeypatch.setenv("SIGNING", secret)
    evaluator = EndpointEvaluator(url=endpoint.url, egress=egress, signing_secret_env="SIGNING")
    failed = await failure(evaluator, request_, context)
    assert not failed.transient
    assert "SIGNING" in str(failed)
    assert not secret or secret not in str(failed) or secret == "whsec_"
    assert endpoint.received == []


# From a loop file


async def test_an_evaluator_of_a_loop_file(
    endpoint: Endpoint, egress: EgressClient, request_: EvaluationRequest, context: EvaluatorContext, tmp_path: Path
):
    described = spec.HttpEvaluator(
        kind="http", url=endpoint.url, headers={"X-A": "b"}, timeout_seconds=3, max_cost_usd=Decimal("0.1")
    )
    evaluator = build_evaluator(described, egress=egress, folder=tmp_path)
    assert (await evaluator.evaluate(request_, context)).score == 0.5
    assert evaluator.max_cost_usd == Decimal("0.1")
    assert endpoint.received[0].headers["x-a"] == "b"


def test_an_address_that_is_none_is_refused_when_the_evaluator_is_built(tmp_path: Path):
    described = spec.HttpEvaluator(kind="http", url="file:///etc/passwd")
    with pytest.raises(InvalidInput) as refused:
        build_evaluator(described, egress=EgressClient(), folder=tmp_path, where="holdout")
    assert refused.value.problems[0].field == "holdout.url"
