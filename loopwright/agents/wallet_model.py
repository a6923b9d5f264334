"""The wallet around every model request: reserved before it is sent, settled after, whatever happens in between."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, NoReturn, cast

from pydantic import JsonValue
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.capabilities.abstract import ValidatedToolArgs, WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.batch import Batch, BatchRequest, EncodedBatchRequest
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from ..cancellation import whatever_happens
from ..core.errors import BudgetExceeded, UnmeteredRequests
from ..core.ports import Guard, Operation, RunStore, Spender
from ..core.wallet import Charge, Reservation
from .bound import UnboundedRequest, innermost, input_bound, refuse_unbounded
from .charging import failure_charge, response_charge, stream_charge, worth_retrying
from .exact import exact_input
from .journal import JournaledModel, OperationNames, Seen, current_operation, failure_json, journaled_tool_call
from .live_text import LiveText
from .prices import ModelRate, PriceBook
from .tiers import asked_for, refuse_unlisted

__all__ = ["Meter", "Metered", "Seen", "WalletModel", "current_meter", "meter_model", "metering"]

RETRY_AFTER_CAP: Final = 20.0
"""Seconds that a provider can make us wait before a retry."""
LEAST_THINKING: Final = 1024
"""Anthropic's smallest thinking budget in tokens ("Extended thinking"); `max_tokens` must be above the budget."""
_jitter = random.SystemRandom()


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Whose money a turn spends, and how."""

    store: RunStore
    spender: Spender
    prices: PriceBook
    keep: Decimal = Decimal(0)
    """USD that requests must leave free."""
    max_output_tokens: int = 4096
    """Most output tokens of a request whose settings don't say."""
    min_output_tokens: int = 256
    """A request with less room for its answer than this is not worth sending, unless it asked for less."""
    max_retries: int = 2
    """How often a request is sent again after a failure that surely cost nothing."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Waits between retries, in seconds."""
    counts: Seen = field(default_factory=Seen)
    names: OperationNames = field(default=None)  # pyright: ignore[reportAssignmentType] - made below
    """Names the operations of the turn, for the run's journal."""

    text: LiveText | None = None
    """Who gets the agent's text as it comes."""
    guard: Guard | None = None
    """Judges tool calls before they are made, those of agents that are tools, too."""

    def __post_init__(self) -> None:
        if self.names is None:  # pyright: ignore[reportUnnecessaryComparison]
            made = OperationNames(self.spender.attempt, self.spender.iteration)
            object.__setattr__(self, "names", made)

    @property
    def seen(self) -> int:
        """Responses that passed through this meter."""
        return self.counts.answered

    def live_text(self, model: Model) -> LiveText | None:
        """Who gets the text of a model's answers as they come; `None` for a model that is asked for whole answers."""
        return self.text if self.text is not None and self.text.can_come_from(model) else None

    def for_subagent(self) -> Meter:
        """The meter for an agent that a tool calls: the same wallet, another role. Its text is nobody's to watch."""
        return replace(self, spender=replace(self.spender, role="subagent"), text=None)


current_meter: ContextVar[Meter | None] = ContextVar("loopwright_current_meter", default=None)
"""The meter of the turn that is being taken, for agents that its tools call."""


@contextmanager
def metering(meter: Meter) -> Generator[Meter]:
    """Make `meter` the current one, for agents with a bare `Metered()`."""
    token = current_meter.set(meter)
    try:
        yield meter
    finally:
        current_meter.reset(token)


@dataclass
class Metered(AbstractCapability[Any]):
    """Puts an agent's model requests on a wallet.

    `Agent(..., capabilities=[Metered()])` takes the wallet of the turn whose tool calls the agent.
    """

    meter: Meter | None = None
    """The meter; without one, that of the turn being taken, and the requests count as a subagent's."""
    required: bool = True
    """Whether to refuse requests where there is no meter, or else to let them pass unmetered."""

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: a wallet can't be written into an agent's file."""
        return None

    def get_ordering(self) -> CapabilityOrdering:
        """Innermost: what other capabilities put around a model (batching, retries) comes through the wallet."""
        return CapabilityOrdering(position="innermost")

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Put the wallet around what sends the requests, or leave a model that has it alone.

        Raises:
            UnknownPrice: no price is known for a model that may answer.
            UnmeteredRequests: there is no meter.
        """
        if (meter := self._meter()) is None:
            return None
        metered = meter_model(model, meter)
        if metered is None:
            return None
        return JournaledModel(metered, meter.store, meter.names, meter.counts, meter.live_text(model))

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Call a tool, unless the journal has its result from before a crash."""
        if (meter := self._meter()) is None:
            return await handler(args)
        return await journaled_tool_call(
            meter.store, meter.names, call, args, handler, guard=meter.guard, keep=meter.keep
        )

    def _meter(self) -> Meter | None:
        if self.meter is not None:
            return self.meter
        if (current := current_meter.get()) is not None:
            return current.for_subagent()
        if self.required:
            raise UnmeteredRequests(
                "an agent with the capability Metered() was called outside a run, so there is no wallet to pay from; "
                "call it from a tool of a loop's agent, or use Metered(required=False)"
            )
        return None


def meter_model(model: Model, meter: Meter) -> Model | None:
    """`model` with the wallet around everything in it that sends requests; `None` if all of that has one already.

    Raises:
        UnknownPrice: no price is known for a model that may answer.
    """
    senders = list(_senders(model))
    if all(isinstance(sender, WalletModel) for sender in senders):
        return None
    for sender in senders:
        meter.prices.price_of(sender)
    metered = _with_wallets(model, meter)
    return metered if isinstance(metered, WalletModel) else _Detour(model, metered)


def _senders(model: Model) -> Iterator[Model]:
    """The models inside `model` that send requests."""
    if isinstance(model, FallbackModel):
        for each in model.models:
            yield from _senders(each)
    elif isinstance(model, WrapperModel) and not isinstance(model, WalletModel):
        yield from _senders(model.wrapped)
    else:
        yield model


def _with_wallets(model: Model, meter: Meter) -> Model:
    """A copy of `model` in which each sender has a wallet around it.

    Only there can a request be priced: a `FallbackModel` has several models, and a wrapper may send more than once.
    """
    if isinstance(model, WalletModel):
        return model
    if isinstance(model, FallbackModel):
        several = copy.copy(model)
        several.models = [_with_wallets(each, meter) for each in model.models]
        return several
    if isinstance(model, WrapperModel):
        wrapper = copy.copy(model)
        wrapper.wrapped = _with_wallets(model.wrapped, meter)
        return wrapper
    return WalletModel(model, meter)


class _Detour(WrapperModel):
    """A model whose requests go through its metered copy. Its lifecycle stays with the original: a copy that were
    entered and left around each request would close the HTTP clients that it shares with it."""

    def __init__(self, wrapped: Model, metered: Model) -> None:
        super().__init__(wrapped)
        self.metered = metered

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        return await self.metered.request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async with self.metered.request_stream(
            messages, model_settings, model_request_parameters, run_context
        ) as stream:
            yield stream

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        return await self.metered.compact_messages(request_context, instructions=instructions)

    async def batch_encode(self, request: BatchRequest) -> EncodedBatchRequest:
        _refuse_batch(self)

    async def batch_create(self, requests: Sequence[EncodedBatchRequest]) -> Batch:
        _refuse_batch(self)


@dataclass(frozen=True, kw_only=True)
class _Grant:
    """Money for one request, and the settings that keep the request within it."""

    reservation: Reservation
    settings: ModelSettings
    operation: Operation | None
    """What the request is in the run's journal."""


class WalletModel(WrapperModel):
    """Reserves the worst case of each request before it is sent, and settles what it came to.

    It must be right around what sends the requests: `meter_model` puts it there.
    """

    def __init__(self, wrapped: Model, meter: Meter) -> None:
        super().__init__(wrapped)
        self.meter = meter

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a metered request.

        Raises:
            BudgetExceeded: it does not fit into the wallet; it was not sent.
            UnboundedRequest: what it can cost has no limit; it was not sent.
            UnknownPrice: the model has no known price; it was not sent.
        """
        rate = self.meter.prices.price_of(self.wrapped)
        for attempt in range(self.meter.max_retries + 1):
            grant = await self._reserve(rate, messages, model_settings, model_request_parameters)
            try:
                self.meter.counts.sent += 1
                response = await self.wrapped.request(messages, grant.settings, model_request_parameters)
            except BaseException as error:
                await self._settle_failure(grant, error)
                if not await self._again(error, attempt):
                    raise
            else:
                self.meter.counts.answer()
                await self._settle_response(rate, grant, response)
                return response
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Send a metered request whose response is streamed. It is settled once, when the stream is left.

        Raises:
            BudgetExceeded, UnboundedRequest, UnknownPrice: as `request`.
        """
        rate = self.meter.prices.price_of(self.wrapped)
        async with AsyncExitStack() as opened:
            for attempt in range(self.meter.max_retries + 1):
                grant = await self._reserve(rate, messages, model_settings, model_request_parameters)
                try:
                    self.meter.counts.sent += 1
                    stream = await opened.enter_async_context(
                        self.wrapped.request_stream(messages, grant.settings, model_request_parameters, run_context)
                    )
                except BaseException as error:
                    await self._settle_failure(grant, error)
                    if not await self._again(error, attempt):
                        raise
                else:
                    self.meter.counts.answer()
                    break
            else:
                raise AssertionError("the last attempt opens the stream or raises")
            try:
                yield stream
            finally:
                await self._settle_stream(rate, grant, stream)

    async def compact_messages(
        self, request_context: ModelRequestContext, *, instructions: str | None = None
    ) -> ModelResponse:
        """Refuse: the provider's own compaction is a paid request whose answer has no limit."""
        raise UnboundedRequest(
            f"the provider-side compaction of {self.model_id} was not asked for, because its cost has no limit"
        )

    async def batch_encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Refuse: see `batch_create`."""
        _refuse_batch(self)

    async def batch_create(self, requests: Sequence[EncodedBatchRequest]) -> Batch:
        """Refuse: a batch is billed hours later, long after the run that it belongs to has ended."""
        _refuse_batch(self)

    # --- Reserving ---

    async def _reserve(
        self,
        rate: ModelRate,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        params: ModelRequestParameters,
    ) -> _Grant:
        """Set the worst case aside, with a shorter answer or a tighter count of the input where money is short."""
        settings = cast(ModelSettings, {**(self.wrapped.settings or {}), **(model_settings or {})})
        wanted = settings.get("max_tokens") or self.meter.max_output_tokens
        if rate.is_free:
            return await self._grant(rate, settings, 0, wanted)
        _, prepared = self.wrapped.prepare_request(settings, params)
        refuse_unbounded(self.wrapped, messages, settings, prepared)
        refuse_unlisted(self.wrapped, rate, settings)
        bound = input_bound(self.wrapped, messages, prepared, output_limit=wanted)
        try:
            return await self._grant(rate, settings, bound, wanted)
        except BudgetExceeded:
            exact = await exact_input(self.wrapped, messages, settings, params, prepared, output_limit=wanted)
        tokens = bound if exact is None else min(bound, exact)
        return await self._grant_what_fits(rate, settings, tokens, wanted)

    async def _grant_what_fits(self, rate: ModelRate, settings: ModelSettings, tokens: int, wanted: int) -> _Grant:
        least = min(self._least_output(settings), wanted)
        output = wanted
        while True:
            try:
                return await self._grant(rate, settings, tokens, output)
            except BudgetExceeded as error:
                if output == least:
                    raise self._too_dear(rate, tokens, least, error.available) from None
                # Others take from the wallet meanwhile, so it can take several steps down. The last one asks for the
                # least even where that doesn't fit now: the store waits if requests in flight could make room.
                fits = rate.output_within(tokens, error.available / self._allowance(rate)) or 0
                output = max(least, min(fits, output - 1))

    async def _grant(self, rate: ModelRate, settings: ModelSettings, tokens: int, output: int) -> _Grant:
        amount = rate.worst_case(tokens, output) * self._allowance(rate)
        sent = self._sent_settings(settings, output)
        reserving = self.meter.store.reserve(self.meter.spender, rate.name, amount, keep=self.meter.keep)
        reservation = await self._reserved(reserving)
        return _Grant(reservation=reservation, settings=sent, operation=current_operation.get())

    async def _reserved(self, reserving: Coroutine[Any, Any, Reservation]) -> Reservation:
        """The reservation; given back if we are cancelled while the store was making it."""
        task = asyncio.ensure_future(reserving)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await whatever_happens(self._give_back(task))
            raise

    async def _give_back(self, reserving: asyncio.Future[Reservation]) -> None:
        await asyncio.wait([reserving])
        if not reserving.cancelled() and reserving.exception() is None:
            charge = Charge(
                reservation=reserving.result(), amount=Decimal(0), basis="released", why="cancelled before it was sent"
            )
            await self.meter.store.settle([charge])

    def _allowance(self, rate: ModelRate) -> Decimal:
        return self.meter.prices.allowance(rate.name)

    def _too_dear(self, rate: ModelRate, tokens: int, output: int, available: Decimal) -> BudgetExceeded:
        return BudgetExceeded(
            needed=rate.worst_case(tokens, output) * self._allowance(rate),
            available=available,
            keep=self.meter.keep,
            what=f"one request to {rate.name} (up to {tokens} tokens in and {output} out)",
        )

    def _sent_settings(self, settings: ModelSettings, output: int) -> ModelSettings:
        sent: dict[str, object] = {**settings, "max_tokens": output}
        if "max_retries" not in innermost(self.wrapped).unsupported_settings:
            sent["max_retries"] = 0  # the SDK's own retries would be paid for and not seen
        if (thinking := self._thinking_budget(settings)) and thinking >= output:
            # The API refuses a thinking budget that isn't below `max_tokens`. Half of it is left for the answer.
            sent.pop("thinking", None)
            sent["anthropic_thinking"] = {"type": "enabled", "budget_tokens": max(LEAST_THINKING, output // 2)}
        return cast(ModelSettings, sent)

    def _least_output(self, settings: ModelSettings) -> int:
        """The least room for an answer that is worth paying for; thinking needs its own."""
        thinking = LEAST_THINKING if self._thinking_budget(settings) else 0
        return self.meter.min_output_tokens + thinking

    def _thinking_budget(self, settings: ModelSettings) -> int:
        """Anthropic's `budget_tokens` that the settings come to; 0 where there is none."""
        if innermost(self.wrapped).system != "anthropic":
            return 0
        values = cast(dict[str, object], settings)
        match values.get("anthropic_thinking"):
            case {"type": "enabled", "budget_tokens": int() as budget}:
                return budget
            case None:
                level = settings.get("thinking")
                adaptive = cast(dict[str, object], self.wrapped.profile).get("anthropic_supports_adaptive_thinking")
                return 0 if not level or adaptive else ANTHROPIC_THINKING_BUDGET_MAP[level]
            case _:
                return 0

    # --- Settling ---

    async def _settle_response(self, rate: ModelRate, grant: _Grant, response: ModelResponse) -> None:
        charge, result = response_charge(rate, grant.reservation, response, asked_for(self.wrapped, grant.settings))
        await self._settle(rate, charge, result, grant.operation if result is not None else None)

    async def _settle_stream(self, rate: ModelRate, grant: _Grant, stream: StreamedResponse) -> None:
        charge, result = stream_charge(rate, grant.reservation, stream, asked_for(self.wrapped, grant.settings))
        await self._settle(rate, charge, result, grant.operation if result is not None else None)

    async def _settle_failure(self, grant: _Grant, error: BaseException) -> None:
        charge = failure_charge(grant.reservation, error, innermost(self.wrapped).system)
        # A retry follows a failure that is worth one, so only the last of them is the request's result.
        operation = None if worth_retrying(error) else grant.operation
        result = failure_json(error) if operation else None
        await whatever_happens(
            self.meter.store.settle([charge], operation=operation if result is not None else None, result=result)
        )

    async def _settle(self, rate: ModelRate, charge: Charge, result: JsonValue, operation: Operation | None) -> None:
        if charge.overrun:
            self.meter.prices.raise_allowance(rate.name, charge.reservation.amount, charge.amount)
        await whatever_happens(self.meter.store.settle([charge], operation=operation, result=result))

    async def _again(self, error: BaseException, attempt: int) -> bool:
        """Whether to send the request again, after waiting as long as it takes."""
        if attempt >= self.meter.max_retries or not worth_retrying(error):
            return False
        asked = error.retry_after if isinstance(error, ModelAPIError) else None
        pause = 0.5 * 2**attempt * _jitter.uniform(0.75, 1.25)
        await self.meter.sleep(min(RETRY_AFTER_CAP, max(pause, asked or 0.0)))
        return True


def _refuse_batch(model: Model) -> NoReturn:
    raise UnboundedRequest(
        f"{model.model_id} was asked to answer through the provider's batch API, whose bill comes long after; "
        "take the capability BatchModelRequests out"
    )
