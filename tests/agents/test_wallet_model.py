"""The wallet around model requests: real agents, real HTTP, a provider that isn't one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability, BatchModelRequests, CapabilityOrdering, ModelFallback
from pydantic_ai.exceptions import AgentRunError, ModelAPIError, ModelConnectionError, ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import (
    CompletedStreamedResponse,
    Model,
    ModelRequestContext,
    ModelRequestParameters,
    StreamedResponse,
)
from pydantic_ai.models.anthropic import AnthropicModelSettings
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from loopwright.agents.bound import UnboundedRequest
from loopwright.agents.charging import NOT_PROCESSED
from loopwright.agents.prices import PriceBook
from loopwright.agents.wallet_model import Meter, Metered, WalletModel, current_meter, meter_model, metering
from loopwright.core.errors import BudgetExceeded, StoreUnavailable, UnknownPrice, UnmeteredRequests
from loopwright.core.events import BoundOverrun, MoneyReserved, MoneySettled, RunEvent
from loopwright.core.ports import Operation, Spender
from loopwright.core.spec import Price
from loopwright.core.wallet import Charge, Reservation, Tokens
from loopwright.store.memory import MemoryRunStore

from .provider import Provider, Reply

PRICES = {
    "openai:gpt-4o-mini": Price.model_validate({"input": 1, "output": 10, "cached_input": "0.1"}),
    "anthropic:claude-haiku-4-5": Price.model_validate({"input": 2, "output": 20, "cached_input": "0.2"}),
}
"""USD per million tokens, so that the figures below are easy to check: 100 in and 10 out cost 0.0002 and 0.0004."""

PLAIN, CLAUDE = Decimal("0.0002"), Decimal("0.0004")


class StoppedClock:
    def now(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)


@dataclass
class Run:
    """A wallet with what happened to it."""

    cap: str | None = "1"
    keep: str = "0"
    prices: dict[str, Price] = field(default_factory=lambda: dict(PRICES))
    events: list[RunEvent] = field(default_factory=list[RunEvent])
    slept: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        cap = None if self.cap is None else Decimal(self.cap)
        self.store = MemoryRunStore("run", cap=cap, clock=StoppedClock(), sinks=[self.events.append])
        self.meter = Meter(
            store=self.store,
            spender=Spender(role="agent", attempt=2, iteration=3),
            prices=PriceBook(self.prices),
            keep=Decimal(self.keep),
            sleep=self.sleep,
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    @property
    def charges(self) -> list[Charge]:
        return [event.charge for event in self.events if isinstance(event, MoneySettled)]

    @property
    def reserved(self) -> list[Reservation]:
        return [event.reservation for event in self.events if isinstance(event, MoneyReserved)]

    @property
    def bases(self) -> list[str]:
        return [charge.basis for charge in self.charges]

    async def spent(self) -> Decimal:
        """What the wallet spent; nothing may be left reserved, and nothing over the cap."""
        wallet = await self.store.wallet()
        assert wallet.reserved == 0 and wallet.overrun == 0
        assert wallet.cap is None or wallet.spent <= wallet.cap
        return wallet.spent

    def agent(self, model: Model, *more: AbstractCapability[Any], **options: Any) -> Agent[None, str]:
        return Agent(model, instructions="Be brief.", capabilities=[*more, Metered(self.meter)], **options)


def adding(agent: Agent[None, str]) -> Agent[None, str]:
    @agent.tool_plain
    def add(a: int, b: int) -> int:  # pyright: ignore[reportUnusedFunction]
        return a + b

    return agent


ADD = Reply(tools=(("add", {"a": 1, "b": 2}),))


# --- Plain requests ---


async def test_a_request_is_reserved_then_settled_by_its_usage(provider: Provider) -> None:
    run = Run()
    result = await run.agent(provider.openai()).run("hi")
    assert result.output == "hello"
    assert await run.spent() == PLAIN
    assert [type(event) for event in run.events] == [MoneyReserved, MoneySettled]
    (charge,) = run.charges
    assert (charge.basis, charge.tokens) == ("usage", Tokens(input=100, output=10))
    assert charge.amount < charge.reservation.amount
    assert (charge.reservation.role, charge.reservation.attempt, charge.reservation.iteration) == ("agent", 2, 3)
    assert charge.reservation.model == "openai:gpt-4o-mini"
    assert run.meter.seen == result.usage.requests == 1


async def test_what_was_paid_for_is_recorded_with_its_settlement(provider: Provider) -> None:
    run = Run()
    await run.agent(provider.openai()).run("hi")
    (settled,) = (event for event in run.events if isinstance(event, MoneySettled))
    response = cast(dict[str, Any], settled.response)
    assert response["parts"][0]["content"] == "hello"


async def test_the_answer_is_limited_and_sdk_retries_are_off(provider: Provider) -> None:
    run = Run()
    await run.agent(provider.openai()).run("hi", model_settings={"max_retries": 5})
    await run.agent(provider.anthropic()).run("hi", model_settings={"max_tokens": 77})
    assert [body.get("max_completion_tokens") or body["max_tokens"] for body in provider.bodies] == [4096, 77]
    provider.script = [Reply(status=500)]
    with pytest.raises(ModelHTTPError):
        await run.agent(provider.openai()).run("hi", model_settings={"max_retries": 5})
    assert provider.seen == 3


async def test_each_request_of_a_tool_loop_is_on_the_wallet(provider: Provider) -> None:
    run = Run()
    provider.script = [ADD, ADD]
    result = await adding(run.agent(provider.openai())).run("hi")
    assert result.output == "hello"
    assert provider.seen == run.meter.seen == result.usage.requests == 3
    assert await run.spent() == 3 * PLAIN
    assert run.reserved[0].amount < run.reserved[1].amount < run.reserved[2].amount  # the history grows


async def test_cached_tokens_are_priced_as_such(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(tokens=(1000, 10), cached=600)
    await run.agent(provider.openai()).run("hi")
    await run.agent(provider.anthropic()).run("hi")
    assert [charge.tokens for charge in run.charges] == [Tokens(input=1000, output=10, cached=600)] * 2
    assert [charge.amount for charge in run.charges] == [Decimal("0.00056"), Decimal("0.00112")]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_response_without_usage_costs_its_whole_reservation(provider: Provider, kind: str) -> None:
    run = Run()
    provider.default = Reply(tokens=None if kind == "openai" else (0, 0))
    await run.agent(getattr(provider, kind)()).run("hi")
    (charge,) = run.charges
    assert charge.basis == "reserved" and charge.amount == charge.reservation.amount > 0
    assert charge.why == "the response does not say how many tokens it used"
    assert run.meter.seen == 1


async def test_a_free_model_reserves_nothing(provider: Provider) -> None:
    run = Run(cap="0", prices={"openai:gpt-4o-mini": Price.model_validate({"input": 0, "output": 0})})
    provider.default = Reply(tokens=None)
    await run.agent(provider.openai()).run("hi")
    assert await run.spent() == 0 and provider.seen == 1


async def test_without_a_cap_costs_are_still_counted(provider: Provider) -> None:
    run = Run(cap=None)
    await run.agent(provider.openai()).run("hi")
    assert await run.spent() == PLAIN


# --- What is refused before it is sent ---


async def test_an_unknown_price_is_refused_before_the_first_request(provider: Provider) -> None:
    run = Run()
    with pytest.raises(UnknownPrice, match="openai:gpt-4o-minii"):
        await run.agent(provider.openai("gpt-4o-minii")).run("hi")
    with pytest.raises(UnknownPrice, match="no-such"):  # also one that would only be asked later
        await run.agent(FallbackModel(provider.openai(), provider.openai("no-such"))).run("hi")
    assert provider.seen == 0 and run.events == []


async def test_a_budget_below_one_request_is_spent_on_nothing_and_says_what_one_needs(provider: Provider) -> None:
    run = Run(cap="0.001")
    with pytest.raises(BudgetExceeded) as caught:
        await run.agent(provider.openai()).run("hi")
    assert provider.seen == 0 and await run.spent() == 0
    assert caught.value.available == Decimal("0.001") < caught.value.needed
    expected = (
        r"one request to openai:gpt-4o-mini \(up to \d{4} tokens in and 256 out\) may cost up to \$0\.00\d+ "
        r"and \$0\.001 of the budget is free; it was not sent"
    )
    assert re.fullmatch(expected, str(caught.value))


async def test_where_money_is_short_the_answer_is_shortened(provider: Provider) -> None:
    run = Run(cap="0.01")  # the input may cost 0.0015, so there is room for less than 850 tokens
    await run.agent(provider.openai()).run("hi")
    limit = provider.bodies[0]["max_completion_tokens"]
    assert 256 <= limit < 900
    assert run.reserved[0].amount <= Decimal("0.01")
    assert await run.spent() == PLAIN


async def test_what_must_stay_free_is_not_touched(provider: Provider) -> None:
    run = Run(cap="0.01", keep="0.004")
    await run.agent(provider.openai()).run("hi")
    assert run.reserved[0].amount <= Decimal("0.006")
    with pytest.raises(BudgetExceeded):
        await Run(cap="0.01", keep="0.009").agent(provider.openai()).run("hi")
    assert provider.seen == 1


async def test_a_request_that_wants_little_may_get_less_than_the_useful_minimum(provider: Provider) -> None:
    run = Run(cap="0.003")
    await run.agent(provider.openai()).run("hi", model_settings={"max_tokens": 20})
    assert provider.bodies[0]["max_completion_tokens"] == 20


async def test_the_exact_count_is_asked_for_only_when_the_bytes_do_not_fit(provider: Provider) -> None:
    provider.count = 50
    run = Run()
    await run.agent(provider.anthropic()).run("hi")
    assert provider.counted == 0
    short = Run(cap="0.007")  # 256 tokens out are 0.00512; the input by its bytes is above 0.003
    await short.agent(provider.anthropic()).run("hi", model_settings={"max_tokens": 256})
    assert provider.counted == 1
    assert short.reserved[0].amount == Decimal("0.005256")  # 50 + 2 + 16 tokens at 2 and 256 at 20


async def test_a_budget_that_runs_dry_in_a_tool_loop_ends_the_turn(provider: Provider) -> None:
    provider.default = replace(ADD, tokens=(100, 250))  # 0.0026 each
    run = Run(cap="0.012")
    with pytest.raises(BudgetExceeded, match="of the budget is free; it was not sent"):
        await adding(run.agent(provider.openai())).run("hi")
    assert await run.spent() == provider.seen * Decimal("0.0026") > 0
    assert run.meter.seen == provider.seen


async def test_a_provider_side_tool_is_refused(provider: Provider) -> None:
    run = Run()
    agent = Agent(provider.anthropic(), capabilities=[Metered(run.meter)], tools=[])
    with pytest.raises(UnboundedRequest, match="web_search"):
        await agent.run("hi", capabilities=[_NativeSearch()])
    assert provider.seen == 0 and run.events == []


class _NativeSearch(AbstractCapability[Any]):
    def get_native_tools(self) -> Sequence[Any]:
        return [WebSearchTool()]


async def test_batches_and_compaction_can_not_go_around_the_wallet(provider: Provider) -> None:
    for order in (0, 1):
        run = Run()
        capabilities: list[AbstractCapability[Any]] = [Metered(run.meter), BatchModelRequests()]
        agent = Agent(provider.anthropic(), capabilities=capabilities[:: 1 - 2 * order])
        with pytest.raises(UnboundedRequest, match="BatchModelRequests"):
            await agent.run("hi")
    run = Run()
    for inner in (provider.openai(), FallbackModel(provider.openai(), provider.anthropic())):
        model = meter_model(inner, run.meter)
        assert model is not None
        with pytest.raises(UnboundedRequest, match="batch API"):
            await model.batch_create([])
        with pytest.raises(UnboundedRequest, match="batch API"):
            await model.batch_encode(cast(Any, None))
    model = WalletModel(provider.openai(), run.meter)
    context = ModelRequestContext(
        model=model, messages=[], model_settings=None, model_request_parameters=ModelRequestParameters()
    )
    with pytest.raises(UnboundedRequest, match="compaction"):
        await model.compact_messages(context)
    assert provider.seen == 0 and run.events == []


# --- Streams ---


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_stream_is_settled_once_by_its_final_usage(provider: Provider, kind: str) -> None:
    run = Run()
    provider.default = Reply(text="a b c d e")
    async with run.agent(getattr(provider, kind)()).run_stream("hi") as result:
        assert [await run.store.cost()] and run.charges == []  # not before the end
        text = "".join([delta async for delta in result.stream_text(delta=True)])
    assert text.strip() == "a b c d e"
    assert await run.spent() == (PLAIN if kind == "openai" else CLAUDE)
    assert run.bases == ["usage"] and run.meter.seen == 1


async def test_a_stream_without_usage_costs_its_whole_reservation(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(text="a b", tokens=None)
    async with run.agent(provider.openai()).run_stream("hi") as result:
        await result.get_output()
    assert run.bases == ["reserved"]
    assert await run.spent() == run.reserved[0].amount


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_stream_that_is_left_costs_its_whole_reservation(provider: Provider, kind: str) -> None:
    run = Run()
    provider.default = Reply(text="a b c d e f g h", hang=True)
    with pytest.raises(RuntimeError, match="enough"):
        async with run.agent(getattr(provider, kind)()).run_stream("hi") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                raise RuntimeError("enough")
    assert run.bases == ["reserved"] and "left before its end" in run.charges[0].why
    assert await run.spent() == run.reserved[0].amount
    assert provider.seen == 1


async def test_a_cancelled_stream_costs_its_whole_reservation(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(text="a b c d", hang=True)

    async def read() -> None:
        async with run.agent(provider.openai()).run_stream("hi") as result:
            await result.get_output()

    await _cancel_when_arrived(provider, read)
    assert run.bases == ["reserved"]
    assert await run.spent() == run.reserved[0].amount


async def test_a_stream_that_can_not_be_opened_is_tried_again(provider: Provider) -> None:
    run = Run()
    provider.script = [Reply(status=429, headers={"retry-after": "3"})]
    async with run.agent(provider.openai()).run_stream("hi") as result:
        await result.get_output()
    assert provider.seen == 2 and run.slept == [3.0]
    assert run.bases == ["released", "usage"]


async def test_an_error_inside_a_stream_is_paid_for(provider: Provider) -> None:
    run = Run()
    overloaded = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    provider.default = Reply(body=overloaded, headers={"content-type": "text/event-stream"})
    with pytest.raises(ModelAPIError):
        async with run.agent(provider.anthropic()).run_stream("hi") as result:
            await result.get_output()
    assert provider.seen == 1 and run.bases == ["reserved"]


# --- Failures ---


@pytest.mark.parametrize("status", [500, 502, 504, 408, 409])
async def test_a_failure_that_may_have_been_billed_costs_its_whole_reservation(provider: Provider, status: int) -> None:
    run = Run()
    provider.default = Reply(status=status)
    with pytest.raises(ModelHTTPError):
        await run.agent(provider.openai()).run("hi")
    assert provider.seen == 1
    assert run.bases == ["reserved"] and f"status_code: {status}" in run.charges[0].why
    assert await run.spent() == run.reserved[0].amount
    assert run.meter.seen == 0 and run.meter.counts.sent == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_a_refused_request_costs_nothing_and_is_not_repeated(provider: Provider, status: int) -> None:
    run = Run()
    provider.default = Reply(status=status)
    with pytest.raises(ModelHTTPError):
        await run.agent(provider.openai()).run("hi")
    assert provider.seen == 1
    assert run.bases == ["released"] and await run.spent() == 0


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_busy_provider_is_asked_again(provider: Provider, status: int, kind: str) -> None:
    run = Run()
    provider.script = [Reply(status=status), Reply(status=status)]
    await run.agent(getattr(provider, kind)()).run("hi")
    assert provider.seen == 3 and run.meter.counts.sent == 3 and run.meter.seen == 1
    assert run.bases == ["released", "released", "usage"]
    assert len(run.reserved) == 3  # each attempt has its own
    assert 0.375 <= run.slept[0] <= 0.625 and 0.75 <= run.slept[1] <= 1.25


async def test_a_provider_that_stays_busy_is_given_up(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(status=429, headers={"retry-after": "60"})
    with pytest.raises(ModelHTTPError):
        await run.agent(provider.openai()).run("hi")
    assert provider.seen == 3 and run.slept == [20.0, 20.0]
    assert await run.spent() == 0


async def test_exhausted_credit_is_not_waited_for(provider: Provider) -> None:
    run = Run()
    body = b'{"error": {"message": "quota", "type": "insufficient_quota", "code": "insufficient_quota"}}'
    provider.default = Reply(status=429, body=body)
    with pytest.raises(ModelHTTPError):
        await run.agent(provider.openai()).run("hi")
    assert provider.seen == 1 and await run.spent() == 0


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_where_there_is_no_connection_nothing_is_paid(provider: Provider, kind: str) -> None:
    run = Run()
    with pytest.raises(ModelConnectionError):
        await run.agent(getattr(provider, kind)(url="http://127.0.0.1:9")).run("hi")
    assert run.bases == ["released"] * 3 and len(run.slept) == 2
    assert await run.spent() == 0


@pytest.mark.parametrize(
    "reply", [Reply(drop=True), Reply(body=b"<html>oops</html>"), Reply(body=b""), Reply(body=b"[1]")]
)
async def test_a_connection_that_breaks_or_nonsense_is_paid_for(provider: Provider, reply: Reply) -> None:
    run = Run()
    provider.default = reply
    with pytest.raises(AgentRunError):
        await run.agent(provider.openai()).run("hi")
    assert provider.seen == 1
    assert run.bases == ["reserved"] and await run.spent() == run.reserved[0].amount


async def test_a_read_timeout_is_paid_for(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(hang=True)
    with pytest.raises(ModelAPIError):
        await run.agent(provider.openai()).run("hi", model_settings={"timeout": 0.05})
    assert provider.seen == 1
    assert run.bases == ["reserved"] and await run.spent() == run.reserved[0].amount


@pytest.mark.parametrize("package", ["httpx", "httpx2"])
async def test_a_bare_transport_error_is_read_by_its_kind(package: str) -> None:
    module = __import__(package)
    for error, bases in ((module.ConnectTimeout("x"), ["released"] * 3), (module.ReadTimeout("x"), ["reserved"])):
        run = Run(prices={"fake:fake": PRICES["openai:gpt-4o-mini"]})
        wrapped = ValueError("from an SDK")
        wrapped.__cause__ = error
        with pytest.raises(ValueError, match="from an SDK"):
            model = WalletModel(Fake(partial(identity, wrapped)), run.meter)
            await model.request([], None, ModelRequestParameters())
        assert run.bases == bases


# --- Several models, wrappers, agents in tools ---


async def test_the_fallback_capability_pays_attempt_by_attempt(provider: Provider) -> None:
    run = Run()
    provider.script = [Reply(status=500)]
    result = await run.agent(provider.openai(), ModelFallback(provider.anthropic())).run("hi")
    assert result.output == "hello"
    assert [charge.reservation.model for charge in run.charges] == ["openai:gpt-4o-mini", "anthropic:claude-haiku-4-5"]
    assert run.bases == ["reserved", "usage"]
    assert await run.spent() == run.reserved[0].amount + CLAUDE


@pytest.mark.parametrize("wrap", ["bare", "limited", "instrumented"])
async def test_a_fallback_model_pays_child_by_child(provider: Provider, wrap: str) -> None:
    run = Run()
    chain = FallbackModel(provider.openai(), InstrumentedModel(provider.anthropic()))
    model = {
        "bare": chain,
        "limited": ConcurrencyLimitedModel(chain, 1),
        "instrumented": FallbackModel(InstrumentedModel(chain)),
    }[wrap]
    provider.script = [Reply(status=500)]
    async with run.agent(model) as agent:
        await agent.run("hi")
        await agent.run("hi")
        async with agent.run_stream("hi") as result:
            await result.get_output()
    assert [charge.reservation.model for charge in run.charges] == [
        "openai:gpt-4o-mini",
        "anthropic:claude-haiku-4-5",
        "openai:gpt-4o-mini",
        "openai:gpt-4o-mini",
    ]
    assert run.bases == ["reserved", "usage", "usage", "usage"]
    assert all(not isinstance(child, WalletModel) for child in chain.models)  # the user's own model is as it was


async def test_a_budget_that_is_too_small_does_not_fall_back(provider: Provider) -> None:
    run = Run(cap="0.001")
    with pytest.raises(BudgetExceeded):
        await run.agent(FallbackModel(provider.openai(), provider.anthropic())).run("hi")
    assert provider.seen == 0


async def test_a_wrapper_that_sends_twice_pays_twice(provider: Provider) -> None:
    class Twice(WrapperModel):
        async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
            await self.wrapped.request(*args, **kwargs)
            return await self.wrapped.request(*args, **kwargs)

    run = Run()
    await run.agent(Twice(provider.openai())).run("hi")
    assert provider.seen == 2 and await run.spent() == 2 * PLAIN


async def test_a_capability_that_wraps_inside_or_outside_comes_through_the_wallet(provider: Provider) -> None:
    class Passing(AbstractCapability[Any]):
        def get_ordering(self) -> CapabilityOrdering:
            return CapabilityOrdering(position="innermost")

        def get_wrapper_model(self, model: Model) -> Model:
            return WrapperModel(model)

    for capabilities in ([Passing()], []):
        run = Run()
        agent = Agent(provider.openai(), capabilities=[*capabilities, Metered(run.meter), Passing()])
        await agent.run("hi")
        assert run.bases == ["usage"]


async def test_two_meters_do_not_pay_twice(provider: Provider) -> None:
    run = Run()
    await run.agent(provider.openai(), Metered(run.meter)).run("hi")
    assert run.bases == ["usage"]
    metered = meter_model(provider.openai(), run.meter)
    assert metered is not None and meter_model(metered, run.meter) is None


async def test_an_agent_called_by_a_tool_pays_from_the_same_wallet(provider: Provider) -> None:
    run = Run()
    inner = Agent(provider.anthropic(), capabilities=[Metered()])
    outer = run.agent(provider.openai())

    @outer.tool
    async def ask(ctx: RunContext[None]) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await inner.run("inner", usage=ctx.usage)).output

    provider.script = [Reply(tools=(("ask", {}),))]
    with metering(run.meter):
        result = await outer.run("hi")
    assert current_meter.get() is None
    assert await run.spent() == 2 * PLAIN + CLAUDE
    cost = await run.store.cost()
    assert cost.by_role == {"agent": 2 * PLAIN, "subagent": CLAUDE}
    assert result.usage.requests == run.meter.seen == 3


async def test_an_unmetered_agent_in_a_tool_is_noticed(provider: Provider) -> None:
    run = Run()
    inner = Agent(provider.anthropic())
    outer = run.agent(provider.openai())

    @outer.tool
    async def ask(ctx: RunContext[None]) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await inner.run("inner", usage=ctx.usage)).output

    provider.script = [Reply(tools=(("ask", {}),))]
    with metering(run.meter):
        result = await outer.run("hi")
    assert result.usage.requests == 3 > run.meter.seen == 2


async def test_a_budget_that_trips_inside_an_agent_called_by_a_tool_ends_the_turn(provider: Provider) -> None:
    run = Run(cap="0.008")  # enough for the outer request, not for the dearer inner one
    inner = Agent(provider.anthropic(), capabilities=[Metered()])
    outer = run.agent(provider.openai())

    @outer.tool_plain
    async def ask() -> str:  # pyright: ignore[reportUnusedFunction]
        return (await inner.run("inner")).output

    provider.default = Reply(tools=(("ask", {}), ("ask", {})), tokens=(100, 100))
    with metering(run.meter), pytest.raises(BudgetExceeded, match="claude-haiku-4-5"):
        await asyncio.wait_for(outer.run("hi"), 5)
    assert provider.seen == 1


async def test_outside_a_run_a_bare_metered_agent_is_refused_unless_it_says_otherwise(provider: Provider) -> None:
    with pytest.raises(UnmeteredRequests, match="outside a run"):
        await Agent(provider.openai(), capabilities=[Metered()]).run("hi")
    assert provider.seen == 0
    await Agent(provider.openai(), capabilities=[Metered(required=False)]).run("hi")
    assert provider.seen == 1


async def test_models_that_are_entered_stay_with_their_owner(provider: Provider) -> None:
    """Requests through a fallback chain must not close the HTTP client that the agent opened."""
    run = Run()
    own = OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(base_url=provider.url("/v1"), api_key="k"))
    async with run.agent(FallbackModel(own, provider.anthropic())) as agent:
        await agent.run("hi")
        assert not own.client.is_closed()
        await agent.run("hi")
    assert own.client.is_closed()


# --- Cancelling ---


async def _cancel_when_arrived(provider: Provider, work: Callable[[], Any]) -> None:
    task = asyncio.ensure_future(work())
    await provider.arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_request_cancelled_in_flight_costs_its_whole_reservation(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(hang=True)
    await _cancel_when_arrived(provider, lambda: run.agent(provider.openai()).run("hi"))
    assert run.bases == ["reserved"] and "cut off while it was under way" in run.charges[0].why
    assert await run.spent() == run.reserved[0].amount


async def test_a_deadline_of_the_request_costs_its_whole_reservation(provider: Provider) -> None:
    run = Run()
    provider.default = Reply(hang=True)
    with pytest.raises(ModelAPIError):
        await run.agent(provider.openai()).run("hi", model_settings={"request_timeout": 0.1})
    assert run.bases == ["reserved"]


async def _let_others_run() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


class SlowStore:
    """A store whose steps take a while, and say when they begin."""

    def __init__(self, inner: MemoryRunStore, *, settles: bool = False) -> None:
        self.inner = inner
        self.settles = settles
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()

    async def reserve(
        self, spender: Spender, model: str, amount: Decimal, *, keep: Decimal = Decimal(0)
    ) -> Reservation:
        made = await self.inner.reserve(spender, model, amount, keep=keep)
        if not self.settles:
            self.began.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)  # it is done already, and says so
        return made

    async def settle(
        self, charges: Sequence[Charge], *, operation: Operation | None = None, result: JsonValue = None
    ) -> None:
        self.began.set()
        if self.settles:
            await self.go_on.wait()
        await self.inner.settle(charges, operation=operation, result=result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_a_request_cancelled_while_it_is_reserved_gives_the_money_back(provider: Provider) -> None:
    run = Run()
    slow = SlowStore(run.store)
    meter = replace(run.meter, store=slow)
    task = asyncio.ensure_future(Agent(provider.openai(), capabilities=[Metered(meter)]).run("hi"))
    await slow.began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.bases == ["released"] and await run.spent() == 0
    assert provider.seen == 0


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("scope", [False, True])
async def test_a_settlement_is_finished_whatever_happens(provider: Provider, times: int, scope: bool) -> None:
    run = Run()
    slow = SlowStore(run.store, settles=True)
    model = WalletModel(provider.openai(), replace(run.meter, store=slow))
    cancels = anyio.CancelScope()

    async def ask() -> None:
        with cancels:
            await model.request([], None, ModelRequestParameters())

    task = asyncio.ensure_future(ask())
    await slow.began.wait()
    for _ in range(times):
        cancels.cancel() if scope else task.cancel()
        await _let_others_run()
    assert not task.done()
    slow.go_on.set()
    await asyncio.gather(task, return_exceptions=True)
    assert scope or task.cancelled()  # a scope's cancellation comes with the next step that waits
    assert run.bases == ["usage"] and await run.spent() == PLAIN


async def test_a_store_that_can_not_record_stops_everything(provider: Provider) -> None:
    def broken(event: RunEvent) -> None:
        raise OSError("disk full")

    run = Run()
    store = MemoryRunStore("run", cap=Decimal(1), clock=StoppedClock(), sinks=[broken])
    meter = replace(run.meter, store=store)
    with pytest.raises(StoreUnavailable, match="disk full"):
        await Agent(provider.openai(), capabilities=[Metered(meter)]).run("hi")
    assert provider.seen == 0


# --- Overruns ---


async def test_an_overrun_is_booked_in_full_and_raises_the_bound(provider: Provider) -> None:
    run = Run()
    await run.agent(provider.openai()).run("hi")
    provider.script = [Reply(tokens=(100, 20_000))]  # the provider ignored the limit
    await run.agent(provider.openai()).run("hi")
    before = run.reserved[-1].amount
    wallet = await run.store.wallet()
    assert wallet.overrun == Decimal("0.2001") - before > 0 and wallet.reserved == 0
    assert any(isinstance(event, BoundOverrun) for event in run.events)
    await run.agent(provider.openai()).run("hi")
    assert run.reserved[-1].amount > Decimal("0.2001")


# --- Thinking ---


THINKING: list[AnthropicModelSettings] = [
    {"thinking": "medium"},
    {"anthropic_thinking": {"type": "enabled", "budget_tokens": 9000}},
]


@pytest.mark.parametrize("asked", THINKING)
async def test_a_thinking_budget_stays_below_the_limit(provider: Provider, asked: AnthropicModelSettings) -> None:
    await Run().agent(provider.anthropic()).run("hi", model_settings=asked)
    body = provider.bodies[0]
    assert body["max_tokens"] == 4096 and body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    await Run(cap="0.04").agent(provider.anthropic()).run("hi", model_settings=asked)
    body = provider.bodies[1]
    assert 1280 <= body["max_tokens"] < 4096 and 1024 <= body["thinking"]["budget_tokens"] < body["max_tokens"]
    with pytest.raises(BudgetExceeded, match="1280 out"):
        await Run(cap="0.02").agent(provider.anthropic()).run("hi", model_settings=asked)
    assert provider.seen == 2


async def test_a_thinking_budget_that_fits_is_left_alone(provider: Provider) -> None:
    run = Run()
    asked: AnthropicModelSettings = {"max_tokens": 4000, "thinking": "low"}
    await run.agent(provider.anthropic()).run("hi", model_settings=asked)
    assert provider.bodies[0]["thinking"] == {"type": "enabled", "budget_tokens": 2048}


# --- Side by side ---


async def test_parallel_requests_wait_for_money_in_flight_and_never_overspend(provider: Provider) -> None:
    run = Run(cap="0.012")  # one request at a time
    agents = [run.agent(provider.openai()) for _ in range(8)]
    results = await asyncio.gather(*(agent.run("hi") for agent in agents), return_exceptions=True)
    assert not [result for result in results if isinstance(result, BaseException)]
    assert await run.spent() == 8 * PLAIN


def identity(value: BaseException) -> BaseException:
    return value


class Fake(Model):
    """Answers, fails or hangs as it is told, and keeps the bill."""

    def __init__(self, act: Callable[[], Any], *, system: str = "fake") -> None:
        super().__init__()
        self._act = act
        self._system = system

    @property
    def model_name(self) -> str:
        return "fake"

    @property
    def system(self) -> str:
        return self._system

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        act = self._act()
        if isinstance(act, BaseException):
            raise act
        return await act(model_settings)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters)


@dataclass(frozen=True)
class Step:
    """One request of one client: what the provider makes of it, and when the client gives up."""

    kind: str
    share: float
    """How much of the allowed output is used."""
    pauses: int
    cancel_after: int | None
    streamed: bool


STEPS = st.builds(
    Step,
    kind=st.sampled_from(["ok", "no usage", "busy", "refused", "500", "unbilled hang", "hang"]),
    share=st.floats(0, 1),
    pauses=st.integers(0, 4),
    cancel_after=st.none() | st.integers(0, 12),
    streamed=st.booleans(),
)
CLIENTS = st.lists(st.lists(STEPS, min_size=1, max_size=4), min_size=1, max_size=5)


class Bank:
    """A provider whose bill is known whatever the client hears of it."""

    def __init__(self) -> None:
        self.billed = Decimal(0)

    def answer(self, step: Step) -> Callable[[ModelSettings], Any]:
        async def act(settings: ModelSettings) -> ModelResponse:
            for _ in range(step.pauses):
                await asyncio.sleep(0)
            if step.kind in ("busy", "refused"):
                raise ModelHTTPError(503 if step.kind == "busy" else 400, "fake")
            if step.kind == "unbilled hang":
                await asyncio.Event().wait()
            out = int(settings.get("max_tokens", 0) * step.share)
            usage = RequestUsage(input_tokens=1000, output_tokens=out)
            self.billed += Decimal(1000 * 1 + out * 10) / 1_000_000
            if step.kind == "500":
                raise ModelHTTPError(500, "fake")
            if step.kind == "hang":
                await asyncio.Event().wait()
            if step.kind == "no usage":
                usage = RequestUsage(unmeasured_requests=1)
            return ModelResponse(parts=[TextPart("x")], usage=usage)

        return act


async def _client(run: Run, bank: Bank, steps: list[Step]) -> None:
    for step in steps:
        model = WalletModel(Fake(lambda step=step: bank.answer(step)), run.meter)
        task = asyncio.ensure_future(_ask(model, step))
        for _ in range(step.cancel_after if step.cancel_after is not None else 40):
            await asyncio.sleep(0)
            if task.done():
                break
        if step.cancel_after is not None or "hang" in step.kind:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ask(model: WalletModel, step: Step) -> None:
    asked: ModelSettings = {"max_tokens": 1000}
    if not step.streamed:
        await model.request([], asked, ModelRequestParameters())
        return
    async with model.request_stream([], asked, ModelRequestParameters()) as stream:
        async for _ in stream:
            pass


@settings(max_examples=80, deadline=None)
@given(clients=CLIENTS, cap=st.integers(1, 60))
async def test_the_bill_is_never_above_what_the_wallet_counts_and_that_never_above_the_cap(
    clients: list[list[Step]], cap: int
) -> None:
    run = Run(cap=str(Decimal(cap) / 1000), prices={"fake:fake": PRICES["openai:gpt-4o-mini"]})
    bank = Bank()

    def check(event: RunEvent) -> None:
        assert isinstance(event, MoneyReserved | MoneySettled)
        wallet = event.wallet
        assert wallet.cap is not None and wallet.spent + wallet.reserved <= wallet.cap
        assert bank.billed <= wallet.spent + wallet.reserved

    run.store._sinks = (check,)  # pyright: ignore[reportPrivateUsage]
    await asyncio.gather(*(_client(run, bank, steps) for steps in clients))
    assert bank.billed <= await run.spent()


def test_the_price_of_a_function_model_has_to_be_declared() -> None:
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("x")]))
    with pytest.raises(UnknownPrice):
        meter_model(model, Run().meter)


def test_statuses_that_are_surely_not_billed() -> None:
    assert {400, 401, 404, 413, 422, 429, 503, 529} <= NOT_PROCESSED
    assert not {200, 408, 409, 424, 499, 500, 502, 504} & NOT_PROCESSED
