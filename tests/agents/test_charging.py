"""What strange answers are charged: nothing is left unsettled, and nothing is booked too low."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openrouter import OpenRouterModel
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from loopwright.agents.bound import UnboundedRequest
from loopwright.core.spec import Price

from .provider import Provider, Reply
from .test_wallet_model import PLAIN, PRICES, Run

USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
HUGE = 10**25


def chat(usage: dict[str, Any] | None = None, model: str = "gpt-4o-mini", **fields: Any) -> Reply:
    """An answer of OpenAI's API, or one like it."""
    message = {"role": "assistant", "content": "hello"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": model, "choices": [choice]}
    return Reply(body=json.dumps({**answer, "usage": usage or USAGE, **fields}).encode())


def streamed(usage: dict[str, Any]) -> Reply:
    base = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
    delta = {"index": 0, "delta": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    chunks = ({**base, "choices": [delta]}, {**base, "choices": [], "usage": usage})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return Reply(body=text.encode(), headers={"content-type": "text/event-stream"})


def openrouter(provider: Provider) -> Model:
    client = AsyncOpenAI(base_url=provider.url("/v1"), api_key="k", http_client=provider.http_client)
    return OpenRouterModel("openai/gpt-4o-mini", provider=OpenRouterProvider(openai_client=client))


def at_openrouter() -> Run:
    return Run(prices={"openrouter:openai/gpt-4o-mini": PRICES["openai:gpt-4o-mini"]})


# --- Nothing is left unsettled ---


@pytest.mark.parametrize("count", [HUGE, 10**400])
async def test_a_count_beyond_all_measure_costs_the_reservation(provider: Provider, count: int) -> None:
    run = Run()
    provider.script = [chat({**USAGE, "prompt_tokens": count})]
    result = await run.agent(provider.openai()).run("hi")
    assert result.output == "hello"
    assert run.bases == ["reserved"] and "can't be priced" in run.charges[0].why
    assert await run.spent() == run.reserved[0].amount
    await run.agent(provider.openai()).run("hi")  # and the wallet is still good for another
    assert await run.spent() == run.reserved[0].amount + PLAIN


async def test_a_stream_with_such_a_count_costs_the_reservation(provider: Provider) -> None:
    run = Run()
    provider.script = [streamed({**USAGE, "prompt_tokens": HUGE})]
    async with run.agent(provider.openai()).run_stream("hi") as result:
        assert await result.get_output() == "hello"
    assert run.bases == ["reserved"] and await run.spent() == run.reserved[0].amount


async def test_a_free_model_with_such_a_count_costs_nothing(provider: Provider) -> None:
    run = Run(cap="0", prices={"openai:gpt-4o-mini": Price.model_validate({"input": 0, "output": 0})})
    provider.script = [chat({**USAGE, "prompt_tokens": HUGE})]
    await run.agent(provider.openai()).run("hi")
    assert await run.spent() == 0 and run.bases == ["reserved"]


@pytest.mark.parametrize("cost", [Decimal("NaN"), Decimal("Infinity"), Decimal("1e30")])
async def test_a_reported_cost_beyond_all_measure_costs_the_reservation(cost: Decimal) -> None:
    run = _with_answer(ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=1, cost=cost)))
    await run.agent(run.model).run("hi")
    assert run.bases == ["reserved"] and await run.spent() == run.reserved[0].amount


async def test_an_answer_that_can_not_be_written_down_costs_the_reservation() -> None:
    answer = ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=100, output_tokens=10))
    answer.provider_details = {"odd": object()}
    run = _with_answer(answer)
    assert (await run.agent(run.model).run("hi")).output == "x"
    assert run.bases == ["reserved"] and await run.spent() == run.reserved[0].amount


async def test_a_setting_that_can_not_be_sent_reserves_nothing(provider: Provider) -> None:
    run = Run()
    with pytest.raises(KeyError):
        await run.agent(provider.anthropic()).run("hi", model_settings={"thinking": "no such level"})  # pyright: ignore[reportArgumentType]
    assert await run.spent() == 0 and provider.seen == 0


class _Answering(Run):
    model: Model


def _with_answer(response: ModelResponse) -> _Answering:
    from .test_wallet_model import Fake

    async def answer(_settings: ModelSettings) -> ModelResponse:
        return response

    run = _Answering(prices={"fake:fake": PRICES["openai:gpt-4o-mini"]})
    run.model = Fake(lambda: answer)
    return run


# --- What the provider reports ---


@pytest.mark.parametrize(
    ("reported", "cost"),
    [
        ({"cost": 0.01}, "0.01"),
        ({"cost": 0.00001}, "0.0002"),
        ({"cost": -5}, "0.0002"),
        ({"cost": 0.0001, "cost_details": {"upstream_inference_cost": 0.004}}, "0.004"),
        ({"cost": 0.0005, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, "0.0205"),
    ],
)
async def test_a_cost_that_openrouter_reports_counts_where_it_is_higher(
    provider: Provider, reported: dict[str, Any], cost: str
) -> None:
    run = at_openrouter()
    provider.script = [chat({**USAGE, **reported}, model="openai/gpt-4o-mini", provider="OpenAI")]
    await run.agent(openrouter(provider)).run("hi")
    assert [charge.amount for charge in run.charges] == [Decimal(cost)]


@pytest.mark.parametrize("fields", [{}, {"choices": None, "id": None}])
async def test_an_error_in_an_answer_with_status_200_may_have_been_billed(
    provider: Provider, fields: dict[str, Any]
) -> None:
    run = at_openrouter()
    error = {"code": 400, "message": "moderation"}
    provider.script = [chat(model="openai/gpt-4o-mini", provider="OpenAI", error=error, **fields)]
    with pytest.raises(ModelHTTPError):
        await run.agent(openrouter(provider)).run("hi")
    assert run.bases == ["reserved"] and await run.spent() == run.reserved[0].amount > 0


async def test_an_error_status_of_openrouter_is_not_billed(provider: Provider) -> None:
    run = at_openrouter()
    provider.script = [Reply(status=400)]
    with pytest.raises(ModelHTTPError):
        await run.agent(openrouter(provider)).run("hi")
    assert run.bases == ["released"] and await run.spent() == 0


async def test_azure_bills_what_it_refuses_for_its_length(provider: Provider) -> None:
    run = Run(prices={"azure:gpt-4o": PRICES["openai:gpt-4o-mini"]})
    address, http = provider.url(""), provider.http_client
    azure = AzureProvider(azure_endpoint=address, api_version="2024-06-01", api_key="k", http_client=http)
    body = b'{"error": {"code": "context_length_exceeded", "message": "maximum context length"}}'
    provider.script = [Reply(status=400, body=body), Reply(status=401)]
    for bases in (["reserved"], ["reserved", "released"]):
        with pytest.raises(ModelHTTPError):
            await run.agent(OpenAIChatModel("gpt-4o", provider=azure)).run("hi")
        assert run.bases == bases
    assert await run.spent() == run.reserved[0].amount


async def test_reasoning_beyond_the_output_comes_on_top_of_it(provider: Provider) -> None:
    run = Run()
    usage = {**USAGE, "total_tokens": 3110, "completion_tokens_details": {"reasoning_tokens": 3000}}
    provider.script = [chat(usage)]
    await run.agent(provider.openai()).run("hi")
    assert await run.spent() == Decimal("0.0302")  # 100 at 1 and 3010 at 10 per million


# --- Tiers of service ---


@pytest.mark.parametrize(
    ("asked", "answered", "cost"),
    [
        (None, None, "0.25"),
        (None, "priority", "0.425"),
        ("priority", None, "0.425"),
        ("priority", "default", "0.425"),
        ("flex", None, "0.25"),
    ],
)
async def test_the_dearer_of_the_tier_asked_and_answered_counts(
    provider: Provider, asked: str | None, answered: str | None, cost: str
) -> None:
    run = Run(prices={}, cap="10")
    usage = {"prompt_tokens": 100_000, "completion_tokens": 0, "total_tokens": 100_000}
    provider.script = [chat(usage, model="gpt-4o", **({"service_tier": answered} if answered else {}))]
    settings: Any = {"service_tier": asked} if asked else {}
    await run.agent(provider.openai("gpt-4o")).run("hi", model_settings=settings)
    assert [charge.amount for charge in run.charges] == [Decimal(cost)]


async def test_a_speed_that_the_answer_does_not_name_counts_as_asked(provider: Provider) -> None:
    run = Run(prices={}, cap="10")
    provider.default = Reply(tokens=(1000, 0))
    for settings in ({}, {"anthropic_speed": "fast"}):
        await run.agent(provider.anthropic("claude-opus-4-8")).run("hi", model_settings=settings)  # pyright: ignore[reportArgumentType]
    plain, fast = (charge.amount for charge in run.charges)
    assert plain == Decimal("0.005") and fast == 2 * plain


async def test_a_dearer_service_without_a_listed_price_is_refused(provider: Provider) -> None:
    run = Run(prices={}, cap="10")
    asked: list[tuple[Model, Any]] = [
        (provider.openai("gpt-4-turbo"), {"service_tier": "priority"}),
        (provider.openai("gpt-4-turbo"), {"openai_service_tier": "scale"}),
        (provider.anthropic("claude-haiku-4-5"), {"anthropic_speed": "fast"}),
    ]
    for model, settings in asked:
        with pytest.raises(UnboundedRequest, match=r"price list has no price for the (service tier|speed)"):
            await run.agent(model).run("hi", model_settings=settings)
    assert provider.seen == 0 and run.events == []


async def test_a_declared_price_is_for_the_tier_that_is_asked_for(provider: Provider) -> None:
    run = Run()
    await run.agent(provider.openai()).run("hi", model_settings={"service_tier": "priority"})
    assert await run.spent() == PLAIN
