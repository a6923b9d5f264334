"""`http`: your endpoint scores the candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from pydantic import JsonValue
from pydantic_core import to_json

from ..core import spec
from ..core.errors import EgressRefused, EvaluatorFailed, InvalidInput, Problem
from ..core.models import EvaluationRequest, Feedback
from ..core.ports import Evaluator, EvaluatorContext
from ..egress import (
    EgressClient,
    EgressFailed,
    Response,
    checked_url,
    host_and_port,
    named_values,
    referred_to,
    resolve_headers,
    without_secrets,
)
from ..signatures import PREFIX, key_of, signature
from .building import Surroundings
from .parse import feedback_from_json, quote, reported_cost

MAX_ANSWER_BYTES = 1_000_000
"""A larger answer is an evaluator failure."""


@dataclass(frozen=True, kw_only=True)
class EndpointEvaluator:
    """POSTs the candidate as JSON and reads `{"score": number, "detail"?: string, "cost_usd"?: amount}`.

    The body is `{candidate, data (with an output schema), goal, run_id, attempt, iteration}`. `Idempotency-Key` is
    the same for every retry of one evaluation.
    """

    url: str
    egress: EgressClient
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """`${NAME}` in a value takes the environment variable NAME when the request is sent."""
    timeout_seconds: float = 30.0
    """From the call to the last byte of the answer."""
    max_cost_usd: Decimal = Decimal(0)
    signing_secret_env: str | None = None
    """Environment variable with a Standard Webhooks secret (`whsec_…`); requests are signed with it."""

    @property
    def name(self) -> str:
        """`http` and the endpoint's host."""
        return _name(self.url)

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        """Ask the endpoint once.

        Raises:
            EvaluatorFailed: no valid answer; `cost_usd` is 0 where surely nothing was sent.
        """
        try:
            answer = await self._post(request, int(context.clock.now().timestamp()))
        except (EgressRefused, InvalidInput) as error:
            raise EvaluatorFailed(self._without_secrets(f"{self.name}: {error}"), cost_usd=Decimal(0)) from None
        except EgressFailed as error:
            cost = None if error.sent else Decimal(0)
            message = self._without_secrets(f"{self.name}: {error}")
            raise EvaluatorFailed(message, transient=True, cost_usd=cost) from None
        return self._read(answer)

    async def _post(self, request: EvaluationRequest, now: int) -> Response:
        body = _body(request)
        headers = {
            "content-type": "application/json",
            **{name.lower(): value for name, value in resolve_headers(self.headers).items()},
            "idempotency-key": request.idempotency_key,
        }
        if self.signing_secret_env:
            headers |= _signed(body, request.idempotency_key, now, secret_in=self.signing_secret_env)
        return await self.egress.request(
            "POST",
            self.url,
            headers=headers,
            content=body,
            timeout_seconds=self.timeout_seconds,
            max_response_bytes=MAX_ANSWER_BYTES,
        )

    def _read(self, answer: Response) -> Feedback:
        try:
            text = self._without_secrets(answer.body.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise EvaluatorFailed(f"{self.name} did not answer in UTF-8", transient=True) from None
        if not 200 <= answer.status < 300:
            raise EvaluatorFailed(
                f"{self.name} answered HTTP {answer.status}: {quote(text)}",
                transient=True,
                cost_usd=reported_cost(text),
            )
        feedback = feedback_from_json(text, who=self.name)
        # Once more, decoded: a secret may have been escaped in more ways than are known to `without_secrets`.
        return feedback.model_copy(update={"detail": self._without_secrets(feedback.detail)})

    def _without_secrets(self, text: str) -> str:
        return without_secrets(text, referred_to(self.headers))


def build(described: spec.HttpEvaluator, surroundings: Surroundings) -> Evaluator:
    """Build the evaluator of a loop file.

    Raises:
        InvalidInput: the URL can't be sent to, whatever the policy.
    """
    try:
        checked_url(described.url)
    except EgressRefused as error:
        raise InvalidInput(Problem(field=f"{surroundings.where}.url", message=str(error))) from None
    return EndpointEvaluator(
        url=described.url,
        egress=surroundings.egress,
        headers=described.headers,
        timeout_seconds=described.timeout_seconds,
        max_cost_usd=described.max_cost_usd,
        signing_secret_env=described.signing_secret_env,
    )


@lru_cache
def _name(url: str) -> str:
    return f"http {host_and_port(url).removesuffix(':443').removesuffix(':80')}"


def _body(request: EvaluationRequest) -> bytes:
    content: dict[str, JsonValue] = {
        "candidate": request.candidate.text,
        "goal": request.goal,
        "run_id": request.run_id,
        "attempt": request.attempt,
        "iteration": request.iteration,
    }
    if request.candidate.data is not None:
        content["data"] = request.candidate.data
    return to_json(content, inf_nan_mode="null")


def _signed(body: bytes, message_id: str, now: int, *, secret_in: str) -> dict[str, str]:
    """The headers of Standard Webhooks: `now` is in seconds since 1970."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": signature(_key(secret_in), message_id, now, body),
    }


def _key(variable: str) -> bytes:
    secret = named_values().get(variable, "").strip()
    if not secret:
        raise InvalidInput(
            Problem(field="signing_secret_env", message=f"the environment variable {variable} is not set")
        )
    key = key_of(secret)
    if key is None:
        message = f"{variable} must hold a Standard Webhooks secret: {PREFIX} and then base64"
        raise InvalidInput(Problem(field="signing_secret_env", message=message))
    return key
