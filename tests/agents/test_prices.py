"""Prices: never a guess, and the worst case is never below a real bill."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from loopwright.agents.practice import PRICED_AS, PracticeModel
from loopwright.agents.prices import ModelRate, PriceBook
from loopwright.core.errors import UnknownPrice
from loopwright.core.spec import Price

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def book(prices: dict[str, dict[str, object]] | None = None, *, now: datetime = NOW) -> PriceBook:
    table = {key: Price.model_validate(value) for key, value in (prices or {}).items()}
    return PriceBook(table, clock=lambda: now)


def openai(name: str) -> OpenAIChatModel:
    return OpenAIChatModel(name, provider=OpenAIProvider(base_url="http://127.0.0.1:9/v1", api_key="k"))


# --- Names ---


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("openai:gpt-4o-mini", "gpt-4o-mini"),
        ("openai-chat:gpt-4o-mini", "gpt-4o-mini"),
        ("gateway/openai:gpt-4o-mini", "gpt-4o-mini"),
        ("openai:gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("openai:gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),  # a version with a price of its own
        ("anthropic:claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic:claude-sonnet-4-5-latest", "claude-sonnet-4-5"),
        ("google-vertex:claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("google:gemini-2.5-pro", "gemini-2.5-pro"),
        ("google-gla:gemini-2.0-flash-001", "gemini-2.0-flash"),
        (
            "bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "regional.anthropic.claude-sonnet-4-5-20250929-v1:0",
        ),
        ("bedrock:us.amazon.nova-lite-v1:0", "amazon.nova-lite-v1:0"),
        ("openrouter:anthropic/claude-sonnet-4.5", "anthropic/claude-sonnet-4.5"),
        ("groq:openai/gpt-oss-120b", "openai/gpt-oss-120b"),
        ("xai:grok-4.5", "grok-4.5"),
    ],
)
def test_a_listed_name_is_priced(written: str, listed: str) -> None:
    assert book().price_of_name(written).listed.info.id == listed


@pytest.mark.parametrize(
    "near_miss",
    [
        "anthropic:claude-sonnet-4-55",
        "google:gemini-2.5-pro-foo",
        "google:gemini-2.5-pro-preview-2027",
        "openai:gpt-4o-mini-2024-99-99",
        "openai:gpt-4o-mini-2024",
        "openai:gpt-4o-mini-turbo",
        "openai:my-gpt-4o",
        "openai:ft:gpt-4o-mini-2024-07-18:org::id",
        "openrouter:anthropic/claude-sonnet-4.5:online",
        "openai-compatible:gpt-4o",  # genai-prices takes any provider that contains `openai`
        "my-openai:gpt-4o",
        "gpt-4o-mini",  # no provider, so no price either
        "openai:gpt-4o-search-preview",  # searches at a price of its own
        "openai:o3-deep-research",
        "openai:whisper-1",  # billed by the hour
        "openai:text-embedding-3-small",  # has no output price
        "google:gemma-3",  # an empty price list: nobody wrote it down
        "openai:",
        "",
    ],
)
def test_a_near_miss_is_not_priced_as_its_neighbour(near_miss: str) -> None:
    with pytest.raises(UnknownPrice, match=r"declare it under `prices:`"):
        book().price_of_name(near_miss)


def test_the_names_of_the_price_list_find_their_own_model() -> None:
    for provider in get_snapshot().providers:
        prices = book()._price_list(provider.id)  # pyright: ignore[reportPrivateUsage]
        assert prices is not None
        for model in provider.models:
            found = prices.find(model.id)
            assert found is not None and found.info is model


def test_a_model_object_is_priced_by_its_provider_whatever_its_address() -> None:
    assert book().price_of(openai("gpt-4o-mini")).name == "openai:gpt-4o-mini"
    with pytest.raises(UnknownPrice, match="openai:llama3"):
        book().price_of(openai("llama3"))
    with pytest.raises(UnknownPrice):
        book().price_of(TestModel())


# --- The user's own table ---


@pytest.mark.parametrize("key", ["openai:my-model", "openai-chat:my-model", "openai-responses:my-model", "my-model"])
def test_the_users_table_goes_by_model_string_or_bare_name(key: str) -> None:
    prices = book({key: {"input": "1", "output": "2"}})
    assert prices.price_of(openai("my-model")).worst_case(1_000_000, 0) == 1
    assert prices.price_of_name("openai:my-model").worst_case(0, 1_000_000) == 2
    assert prices.price_of_name(key).worst_case(0, 1_000_000) == 2


def test_the_users_table_goes_before_the_price_list() -> None:
    prices = book({"gpt-4o-mini": {"input": 100, "output": 100}, "openai:gpt-4o-mini": {"input": 7, "output": 7}})
    assert prices.price_of(openai("gpt-4o-mini")).worst_case(1_000_000, 0) == 7


def test_a_key_of_another_provider_is_not_used() -> None:
    with pytest.raises(UnknownPrice):
        book({"groq:my-model": {"input": 1, "output": 1}}).price_of(openai("my-model"))


def test_the_users_cache_prices_default_to_the_input_price() -> None:
    usage = RequestUsage(input_tokens=1_000_000, cache_read_tokens=400_000, cache_write_tokens=100_000)
    plain = book({"m": {"input": 10, "output": 1}}).price_of_name("openai:m")
    assert plain.cost(usage) == 10
    cached = book({"m": {"input": 10, "output": 1, "cached_input": 1, "cache_write": 20}}).price_of_name("openai:m")
    assert cached.cost(usage) == Decimal("7.4")  # 0.5 * 10 + 0.4 * 1 + 0.1 * 20
    assert cached.worst_case(1_000_000, 0) == 20


def test_a_price_of_zero_is_free_and_needs_no_usage() -> None:
    rate = book({"m": {"input": 0, "output": 0}}).price_of_name("ollama:m")
    assert rate.is_free
    assert rate.worst_case(10**9, 10**9) == 0
    assert rate.cost(RequestUsage()) == 0


def test_the_practice_model_is_priced_like_a_real_one() -> None:
    by_model = book().price_of(PracticeModel())
    assert by_model.name == book().price_of_name("practice").name == "practice"
    assert by_model.worst_case(1000, 1000) == book().price_of_name(PRICED_AS).worst_case(1000, 1000)


# --- The worst case ---


def test_the_worst_case_takes_the_dearest_of_tiers_writes_and_service_levels() -> None:
    gemini = book().price_of_name("google:gemini-2.5-pro")  # 1.25 and 10; above 200,000 tokens 2.50 and 15
    assert gemini.worst_case(200_000, 1_000_000) == Decimal("10.25")
    assert gemini.worst_case(200_001, 0) == Decimal("0.5000025")
    claude = book().price_of_name("anthropic:claude-sonnet-4-5")  # writes for an hour cost 6 and not 3
    assert claude.worst_case(1000, 0) == Decimal("0.006")
    fast = book().price_of_name("anthropic:claude-opus-5-5")  # fast mode writes at 16 and answers at 40
    assert fast.worst_case(1_000_000, 1_000_000) == 56


def test_the_worst_case_covers_the_times_of_the_coming_day() -> None:
    cheap_now = book(now=datetime(2026, 11, 30, 17, 0, tzinfo=UTC)).price_of_name("deepseek:deepseek-chat")
    assert cheap_now.cost(RequestUsage(input_tokens=1_000_000, output_tokens=1)) == Decimal("0.13500055")
    assert cheap_now.worst_case(1_000_000, 0) == Decimal("0.27")


def test_the_worst_case_covers_a_price_that_rises_at_midnight() -> None:
    before = datetime(2026, 10, 18, 23, 0, tzinfo=UTC)  # ~z-ai/glm-flash-latest: 0.0392, from 19 October 0.048
    rate = book(now=before).price_of_name("openrouter:~z-ai/glm-flash-latest")
    assert rate.cost(RequestUsage(input_tokens=1_000_000, output_tokens=0)) == Decimal("0.0392")
    assert rate.worst_case(1_000_000, 0) == Decimal("0.048")


def test_a_rate_is_looked_up_once() -> None:
    prices = book({"m": {"input": 1, "output": 1}})
    for name in ("openai:m", "openai:gpt-4o", "practice"):
        assert prices.price_of_name(name) is prices.price_of_name(name)


def test_a_rate_is_looked_up_again_when_the_hour_has_passed() -> None:
    now = [datetime(2026, 10, 17, 10, 0, tzinfo=UTC)]
    prices = PriceBook(clock=lambda: now[0])
    first = prices.price_of_name("openrouter:~z-ai/glm-flash-latest")
    assert prices.price_of_name("openrouter:~z-ai/glm-flash-latest") is first
    now[0] += timedelta(days=1)
    assert prices.price_of_name("openrouter:~z-ai/glm-flash-latest").worst_case(1_000_000, 0) == Decimal("0.048")


def test_a_price_per_request_is_added() -> None:
    rate = book().price_of_name("perplexity:sonar")
    assert rate.worst_case(0, 0) > 0
    cost = rate.cost(RequestUsage(input_tokens=1, output_tokens=1))
    assert cost is not None and cost > Decimal("0.001")


def test_output_within_is_what_the_money_pays_for() -> None:
    rate = book({"m": {"input": 1, "output": 10}}).price_of_name("openai:m")
    tokens = rate.output_within(1000, Decimal("0.011"))
    assert tokens is not None and 999 <= tokens <= 1000
    assert rate.worst_case(1000, tokens) <= Decimal("0.011")
    assert rate.output_within(1000, Decimal("0.0005")) == 0
    assert book({"m": {"input": 1, "output": 0}}).price_of_name("openai:m").output_within(1, Decimal(1)) is None


def test_the_allowance_grows_with_each_overrun() -> None:
    prices = book()
    assert prices.allowance("m") == 1
    prices.raise_allowance("m", Decimal(1), Decimal(2))
    assert prices.allowance("m") == Decimal("2.2")
    prices.raise_allowance("m", Decimal(0), Decimal(2))
    assert prices.allowance("m") > 4
    assert prices.allowance("other") == 1


# --- The bill ---


@pytest.mark.parametrize(
    "usage", [RequestUsage(), RequestUsage(input_tokens=9, output_tokens=9, unmeasured_requests=1)]
)
def test_unknown_usage_has_no_cost(usage: RequestUsage) -> None:
    assert book().price_of_name("openai:gpt-4o").cost(usage) is None


def test_a_response_of_a_dearer_model_is_priced_as_that() -> None:
    usage = RequestUsage(input_tokens=1_000_000, output_tokens=0)
    rate = book().price_of_name("openai:gpt-4o")
    answer = ModelResponse(parts=[TextPart("x")], model_name="gpt-4o-2024-05-13")
    assert rate.cost(usage, answer) == 5
    assert rate.cost(usage, ModelResponse(parts=[], model_name="gpt-4o-mini")) == Decimal("2.5")
    assert rate.cost(usage, ModelResponse(parts=[], model_name="who-knows")) == Decimal("2.5")


def test_the_service_level_that_answered_counts() -> None:
    usage = RequestUsage(input_tokens=1_000_000, output_tokens=0)
    answer = ModelResponse(parts=[], model_name="gpt-4o-mini", provider_details={"service_tier": "priority", "n": 1})
    rate = book().price_of_name("openai:gpt-4o-mini")
    assert rate.cost(usage, answer) == Decimal("0.25")
    assert rate.cost(usage) == Decimal("0.15")


def test_a_reported_cost_counts_where_it_is_higher() -> None:
    rate = book().price_of_name("openai:gpt-4o-mini")
    assert rate.cost(RequestUsage(input_tokens=1, cost=Decimal("0.3"))) == Decimal("0.3")
    assert rate.cost(RequestUsage(input_tokens=1_000_000, cost=Decimal("0.01"))) == Decimal("0.15")
    assert rate.cost(RequestUsage(cost=Decimal("0.01"))) == Decimal("0.01")


def test_usage_that_contradicts_itself_is_priced_at_the_dearest_rate() -> None:
    rate = book().price_of_name("anthropic:claude-sonnet-4-5")
    usage = RequestUsage(input_tokens=10, cache_read_tokens=1000, output_tokens=10)
    assert rate.cost(usage) == rate.worst_case(1000, 10)


def _rates() -> list[ModelRate]:
    """Every model of the snapshot that is priced at all."""
    prices = book()
    rates = list[ModelRate]()
    for provider in get_snapshot().providers:
        for model in provider.models:
            try:
                rates.append(prices.price_of_name(f"{provider.id}:{model.id}"))
            except UnknownPrice:
                continue
    return rates


RATES = _rates()
SIZES = st.integers(0, 3_000_000)
CONTEXTS = st.dictionaries(
    st.sampled_from(["service_tier", "speed", "route", "search_type"]),
    st.sampled_from(["default", "flex", "priority", "fast", "mistral/eu", "web", "other"]),
)


def test_most_models_of_the_price_list_are_priced() -> None:
    assert len(RATES) > 2000
    assert {"anthropic", "openai", "google", "deepseek"} <= {rate.listed.provider.id for rate in RATES}
    assert any(isinstance(p, TieredPrices) for rate in RATES for s in rate.scenarios for p in vars(s).values())


@st.composite
def usages(draw: st.DrawFn, into: int, out: int) -> RequestUsage:
    """Usage within `into` and `out` tokens, split in any way that adds up."""
    total = draw(st.integers(0, into))
    read = draw(st.integers(0, total))
    write = draw(st.integers(0, total - read))
    audio = draw(st.integers(0, total - read - write))
    answer = draw(st.integers(0, out))
    return RequestUsage(
        input_tokens=total,
        cache_read_tokens=read,
        cache_write_tokens=write,
        cache_write_1h_tokens=draw(st.integers(0, write)),
        input_audio_tokens=audio,
        output_tokens=answer,
        output_reasoning_tokens=draw(st.integers(0, answer)),
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), into=SIZES, out=SIZES, hours=st.floats(0, 24), context=CONTEXTS)
def test_no_bill_is_above_the_worst_case(
    data: st.DataObject, into: int, out: int, hours: float, context: dict[str, str]
) -> None:
    usage = data.draw(usages(into, out))
    answer = ModelResponse(parts=[], provider_details={**context})
    for rate in data.draw(st.lists(st.sampled_from(RATES), min_size=10, max_size=30)):
        cost = replace(rate, clock=lambda: NOW + timedelta(hours=hours)).cost(usage, answer)
        assert cost is None or cost <= rate.worst_case(into, out), rate.name
        assert rate.worst_case(into, out) <= rate.worst_case(into + 1, out + 1)


def test_no_bill_of_any_model_is_above_the_worst_case() -> None:
    answer = ModelResponse(parts=[], provider_details={"service_tier": "priority", "speed": "fast"})
    for into in (9, 300_000):
        for usage in (
            RequestUsage(input_tokens=into, output_tokens=7),
            RequestUsage(input_tokens=into, cache_write_tokens=into, cache_write_1h_tokens=into, output_tokens=7),
            RequestUsage(input_tokens=into, input_audio_tokens=into, output_tokens=7, output_reasoning_tokens=7),
        ):
            for rate in RATES:
                cost = rate.cost(usage, answer)
                assert cost is not None and cost <= rate.worst_case(into, 7), rate.name
