"""What a model request costs: the user's own table first, then genai-prices, and never a guess.

genai-prices matches names loosely (`claude-sonnet-4-55` is found as `claude-sonnet-4-5`), which is right for a report
and wrong for a budget. Here a name must be one that the price list writes out, or such a name with a version suffix.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from decimal import ROUND_CEILING, Decimal
from functools import cached_property
from itertools import product

from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.data_units import unit_data
from genai_prices.types import (
    ClauseAnd,
    ClauseContains,
    ClauseEndsWith,
    ClauseEquals,
    ClauseOr,
    ClauseRegex,
    ClauseStartsWith,
    MatchLogic,
    ModelInfo,
    ModelPrice,
    Provider,
    TieredPrices,
    TimeOfDateConstraint,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from ..core.errors import UnknownPrice
from ..core.spec import Price
from .practice import PRACTICE, PRICED_AS

ZERO = Decimal(0)
SMALLEST = Decimal("1e-12")
"""Amounts are rounded up to this many USD, so that sums of them are exact."""
MILLION = 1_000_000
MOST_TOKENS = 10**12
"""More than any request has: usage above it is nonsense, and sums with it would lose digits."""
MOST_USD = Decimal(10**12)
DECLARED = "user"
"""The provider of prices that the user declared."""
HORIZON = timedelta(hours=26)
"""A rate holds for the hour in which it was made; a request that starts then ends within the next day."""

SYSTEMS: Mapping[str, str] = {
    "openai-chat": "openai",
    "openai-responses": "openai",
    "azure-responses": "azure",
    "google-gla": "google",
    "google-vertex": "google",
    "google-cloud": "google",
    "grok": "xai",
}
"""Prefixes of model strings that name one more way to reach a provider, and the provider."""

PRICE_LISTS: Mapping[str, str] = {"bedrock": "aws", "bedrock-mantle": "aws", "xai": "x-ai"}
"""Providers that genai-prices knows by another id. Its own provider matching is as loose as that of names
(anything that contains `openai` is OpenAI), so only this table and its exact ids are used."""

SEARCHING = re.compile(r"search|deep-research")
"""Models that search the web on their own account in every request, at a price per search that no token count
bounds. The user may declare a price for them."""


@dataclass(frozen=True, kw_only=True)
class _Listed:
    """A model in a price list."""

    info: ModelInfo
    provider: Provider


@dataclass(frozen=True, kw_only=True)
class ModelRate:
    """What requests to one model cost."""

    name: str
    """`provider:model`."""
    listed: _Listed
    scenarios: tuple[ModelPrice, ...]
    """Every set of prices that could apply to a request that starts now: times of day, announced changes, tiers."""
    clock: Callable[[], datetime]
    answering: Callable[[str], _Listed | None]
    """Finds the model that a response names, where that is another than the one asked for."""

    @cached_property
    def is_free(self) -> bool:
        """Whether no request to the model can cost anything."""
        return not any(price for _, price in (*self._input.steps, *self._output.steps)) and not self._per_request

    def worst_case(self, input_tokens: int, output_tokens: int) -> Decimal:
        """The most that a request of up to so many tokens can cost, in USD, rounded up.

        Every token counts at the dearest unit (cache writes, audio, reasoning) and the dearest tier that this many
        input tokens reach; no cache discount is assumed.
        """
        into = self._input.at(input_tokens) * input_tokens
        out = self._output.at(input_tokens) * output_tokens
        return _round_up((into + out) / MILLION + self._per_request)

    def output_within(self, input_tokens: int, amount: Decimal) -> int | None:
        """How many output tokens `amount` USD pays for after the input; `None` for any number, 0 for none."""
        left = amount - self.worst_case(input_tokens, 0) - SMALLEST
        price = self._output.at(input_tokens)
        if left < 0:
            return 0
        return None if not price else int(left * MILLION / price)

    def lists(self, key: str, value: str) -> bool:
        """Whether there is a price for requests with this tier (`service_tier`) or speed (`speed`).

        A price that the user declared is for whatever the user asks for.
        """
        variants = self.listed.info.price_variants or ()
        return self.listed.provider.id == DECLARED or any(variant.when.get(key) == value for variant in variants)

    def cost(
        self, usage: RequestUsage, response: ModelResponse | None = None, *, asked: Mapping[str, str] | None = None
    ) -> Decimal | None:
        """What a request cost in USD, rounded up; `None` where its usage isn't known and so nobody can say.

        A response that names another model of the price list is priced as the dearer of the two, as is one that names
        another tier of service than was `asked` for. A cost that the provider itself reported counts where it is
        higher. Usage that contradicts itself is priced at its greater reading: reasoning beyond the output comes on
        top of it, and more tokens cached than sent cost the dearest rate.

        Raises:
            ArithmeticError, ValueError: the figures are beyond all measure.
        """
        details = (response.provider_details if response is not None else None) or {}
        reported = max(usage.cost or ZERO, _reported(details))
        if self.is_free and not reported:
            return ZERO
        if usage.unmeasured_requests or not (usage.input_tokens or usage.output_tokens or reported):
            return None
        answered = {key: value for key, value in details.items() if isinstance(value, str)}
        contexts = [answered, {**answered, **asked}] if asked else [answered]
        usage = _greater(usage)
        charged = self._charged(response)
        priced = [self._price(entry, usage, context) for entry, context in product(charged, contexts)]
        return _round_up(_sane(max(*priced, reported)))

    def _charged(self, response: ModelResponse | None) -> Iterator[_Listed]:
        yield self.listed
        if response is not None and response.model_name and (other := self.answering(response.model_name)):
            yield other

    def _price(self, entry: _Listed, usage: RequestUsage, context: Mapping[str, str]) -> Decimal:
        try:
            return entry.info.calc_price(
                usage,
                entry.provider,
                # The time on our clock, not the one in the response: the reservation was made by it.
                genai_request_timestamp=self.clock(),
                price_context=dict(context),
            ).total_price
        except ValueError:
            cached = max(usage.cache_read_tokens, 0) + max(usage.cache_write_tokens, 0)
            into = max(usage.input_tokens, cached, usage.input_audio_tokens, 0)
            return self.worst_case(into, max(usage.output_tokens, usage.output_reasoning_tokens, 0))

    @cached_property
    def _input(self) -> _Steps:
        return _Steps.of(self.scenarios, direction="input")

    @cached_property
    def _output(self) -> _Steps:
        return _Steps.of(self.scenarios, direction="output")

    @cached_property
    def _per_request(self) -> Decimal:
        counts = [price for prices in self.scenarios if isinstance(price := prices.requests_kcount, Decimal)]
        return max(counts, default=ZERO) / 1000


@dataclass(frozen=True)
class _Steps:
    """The dearest price per million tokens, by the number of input tokens that it starts above."""

    steps: tuple[tuple[int, Decimal], ...]

    @classmethod
    def of(cls, scenarios: Iterable[ModelPrice], *, direction: str) -> _Steps:
        found: dict[int, Decimal] = {}
        for start, price in (step for prices in scenarios for step in _token_prices(prices, direction)):
            found[start] = max(price, found.get(start, ZERO))
        dearest, steps = ZERO, list[tuple[int, Decimal]]()
        for start in sorted(found):
            dearest = max(dearest, found[start])
            steps.append((start, dearest))
        return cls(tuple(steps))

    def at(self, input_tokens: int) -> Decimal:
        index = bisect_left(self.steps, input_tokens, key=lambda step: step[0])
        return self.steps[max(index - 1, 0)][1] if self.steps else ZERO


def _token_prices(prices: ModelPrice, direction: str) -> Iterator[tuple[int, Decimal]]:
    """`(start, price)` of each token price of that direction, as `_Steps` wants them."""
    for key, price in _set_prices(prices):
        dimensions = _DIMENSIONS.get(key, {})
        if dimensions.get("family") != "tokens" or dimensions.get("direction") != direction:
            continue
        if isinstance(price, TieredPrices):
            yield -1, price.base
            yield from ((tier.start, tier.price) for tier in price.tiers)
        else:
            yield -1, price


def _set_prices(prices: ModelPrice) -> Iterator[tuple[str, Decimal | TieredPrices]]:
    for key, price in vars(prices).items():
        if isinstance(price, Decimal | TieredPrices):
            yield key, price


_DIMENSIONS: Mapping[str, Mapping[str, str]] = {
    unit["price_key"]: dict[str, str](unit["dimensions"]) for unit in unit_data.values()
}
"""What each price is for: its family (tokens, audio hours, …) and direction."""

_BOUNDED_FAMILIES = {"tokens", "requests", "tool_calls"}
"""Families of prices that can be bounded before a request. Tool calls are those of provider-side tools (web search,
code execution), and requests with such tools are refused."""


def _bounded(name: str, prices: ModelPrice) -> bool:
    """Whether text requests at these prices can be bounded by tokens.

    An empty price list means "free" to genai-prices for `…:free` models and "nobody wrote it down" for others.
    """
    units = {_DIMENSIONS.get(key, {}).get("family") for key, _ in _set_prices(prices)}
    if not units:
        return name.endswith(":free")
    has_tokens = prices.input_mtok is not None and prices.output_mtok is not None
    return units <= _BOUNDED_FAMILIES and has_tokens


def _reported(details: Mapping[str, object]) -> Decimal:
    """What the provider says that a request cost, in USD: OpenRouter does.

    With a key of one's own there, its fee and the bill of the provider behind it come on top of each other.
    """
    fee, upstream = (_amount(details.get(key)) for key in ("cost", "upstream_inference_cost"))
    return fee + upstream if details.get("is_byok") else max(fee, upstream)


def _amount(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return ZERO
    return max(_sane(Decimal(str(value))), ZERO)


def _sane(amount: Decimal) -> Decimal:
    if not amount.is_finite() or amount > MOST_USD:
        raise ValueError("no request costs that much")
    return amount


def _greater(usage: RequestUsage) -> RequestUsage:
    """Usage with all reasoning in its output, as it should be: some servers count it beside."""
    if usage.output_reasoning_tokens <= usage.output_tokens:
        return usage
    return replace(usage, output_tokens=max(usage.output_tokens, 0) + usage.output_reasoning_tokens)


def _round_up(amount: Decimal) -> Decimal:
    return amount.quantize(SMALLEST, ROUND_CEILING)


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass
class PriceBook:
    """Finds what a model costs, and remembers by how much a model's bound was too low."""

    user_prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """The user's own prices by model string (`openai:my-model`) or bare model name; these go first."""
    workspace_prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    """Prices that hold for everybody here; between the user's own and the built-in list."""
    clock: Callable[[], datetime] = _now
    """Tells the time, with a zone; prices may depend on it."""
    _rates: dict[str, tuple[datetime, ModelRate]] = field(default_factory=dict[str, tuple[datetime, ModelRate]])
    _lists: dict[str, _PriceList] = field(default_factory=dict[str, "_PriceList"])
    _snapshot: DataSnapshot | None = None
    _allowances: dict[str, Decimal] = field(default_factory=dict[str, Decimal])

    def price_of(self, model: Model) -> ModelRate:
        """What requests to `model` cost. The provider counts, not the address: a proxy is priced as what it proxies.

        Raises:
            UnknownPrice: neither the user's table nor the price list has this model.
        """
        return self._rate(model.system, model.model_name)

    def price_of_name(self, name: str) -> ModelRate:
        """What requests to the model of a model string such as `openai:gpt-4o-mini` cost; needs no API key.

        Raises:
            UnknownPrice: neither the user's table nor the price list has this model.
        """
        prefix, _, bare = _split(name)
        return self._rate(prefix, bare, written=name)

    def allowance(self, model: str) -> Decimal:
        """By what a model's worst case is multiplied: 1 until one of its requests cost more than was reserved."""
        return self._allowances.get(model, Decimal(1))

    def raise_allowance(self, model: str, reserved: Decimal, actual: Decimal) -> None:
        """Learn from a request that cost `actual` USD though only `reserved` was set aside for it."""
        ratio = actual / reserved if reserved else Decimal(2)
        self._allowances[model] = self.allowance(model) * max(ratio, Decimal(1)) * Decimal("1.1")

    def _rate(self, system: str, model: str, *, written: str | None = None) -> ModelRate:
        name = f"{system}:{model}" if system and model != PRACTICE else model
        hour = self.clock().replace(minute=0, second=0, microsecond=0)
        if (snapshot := get_snapshot()) is not self._snapshot:  # genai-prices can update itself
            self._snapshot, self._lists, self._rates = snapshot, _lists_of(snapshot), {}
        if (known := self._rates.get(written or name)) and known[0] == hour:
            return known[1]
        rate = self._declared(name, system, model, written) or self._from_list(name, system, model, hour)
        self._rates[written or name] = hour, rate
        return rate

    def _declared(self, name: str, system: str, model: str, written: str | None) -> ModelRate | None:
        """The rate by the user's table or the workspace's, whose keys may use any prefix of the same provider, or
        none."""
        for table in (self.user_prices, self.workspace_prices):
            same_provider = (key for key in table if _same_model(key, system, model))
            for key in (written, name, *same_provider, model):
                if key is not None and (price := table.get(key)) is not None:
                    return self._user_rate(name, price)
        return None

    def _user_rate(self, name: str, price: Price) -> ModelRate:
        prices = ModelPrice(
            input_mtok=price.input,
            output_mtok=price.output,
            cache_read_mtok=price.cached_input,
            cache_write_mtok=price.cache_write,
        )
        listed = _Listed(
            info=ModelInfo(id=name, match=ClauseEquals(name), prices=prices),
            provider=Provider(id=DECLARED, name="user", api_pattern="^$"),
        )
        return ModelRate(name=name, listed=listed, scenarios=(prices,), clock=self.clock, answering=lambda _model: None)

    def _from_list(self, name: str, system: str, model: str, now: datetime) -> ModelRate:
        if name == PRACTICE:
            system, _, model = _split(PRICED_AS)
        price_list = self._price_list(system)
        listed = price_list.find(model) if price_list is not None and not SEARCHING.search(model) else None
        if price_list is None or listed is None:
            raise UnknownPrice(name)
        scenarios = tuple(_scenarios(listed.info, now))
        if not all(_bounded(listed.info.id, prices) for prices in scenarios):
            raise UnknownPrice(name)
        return ModelRate(
            name=name, listed=listed, scenarios=scenarios, clock=self.clock, answering=price_list.another_than(listed)
        )

    def _price_list(self, system: str) -> _PriceList | None:
        provider_id = PRICE_LISTS.get(system, SYSTEMS.get(system, system))
        if provider_id not in self._lists:
            by_id = {provider.id: provider for provider in get_snapshot().providers}
            if provider_id not in by_id:
                return None
            others = by_id[provider_id].fallback_model_providers or []
            self._lists[provider_id] = _PriceList([by_id[each] for each in (provider_id, *others) if each in by_id])
        return self._lists[provider_id]


_newest: tuple[DataSnapshot, dict[str, _PriceList]] | None = None


def _lists_of(snapshot: DataSnapshot) -> dict[str, _PriceList]:
    """The price lists that were made of a snapshot so far, for all price books: making one takes milliseconds."""
    global _newest  # noqa: PLW0603 - what it keeps can be made again at any time
    if _newest is None or _newest[0] is not snapshot:
        _newest = snapshot, {}
    return _newest[1]


def _split(name: str) -> tuple[str, str, str]:
    prefix, separator, model = name.partition(":")
    if not separator:
        return "", "", name
    prefix = prefix.removeprefix("gateway/")
    return SYSTEMS.get(prefix, prefix), separator, model


def _same_model(key: str, system: str, model: str) -> bool:
    prefix, _, bare = _split(key)
    return bare == model and prefix == SYSTEMS.get(system, system)


# --- Names ---

VERSION = re.compile(
    r"(?P<separator>[-@])(?:20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
    r"|20\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
    r"|latest|00\d)$"
)
"""Suffixes that only pin a version: a date, `latest`, or Google's `-001`. A version may be priced otherwise than the
name without it, but then the list writes it out, and a name that is written out goes first. `-preview`, `-exp` and
Mistral's `-2411` are not here: providers do price those apart."""
BEDROCK_VERSION = re.compile(r"-v\d+(?::\d+)?$|:\d+$")
BEDROCK_PLACES = (re.compile(r"^(?:us|eu|apac|jp|au|in|us-gov|global)\."), re.compile(r"^[a-z0-9]+\."))
"""Region and vendor in front of a Bedrock model id. Names with another price in some region are written out with it."""


class _PriceList:
    """The models of a provider, by the names that the price list writes out."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._names: dict[str, _Listed] = {}
        self._patterns: list[tuple[re.Pattern[str], _Listed]] = []
        self._is_bedrock = providers[0].id == "aws"
        for provider in providers:
            self._add(provider)

    def find(self, model: str) -> _Listed | None:
        """The model of exactly this name, or of this name but for its version."""
        name = model.lower()
        return self._written(name) or (self._without_version(name))

    def another_than(self, asked: _Listed) -> Callable[[str], _Listed | None]:
        """Finds the model of a name in the list, but for `asked` itself."""

        def answering(name: str) -> _Listed | None:
            found = self.find(name)
            return found if found is not None and found.info is not asked.info else None

        return answering

    def _add(self, provider: Provider) -> None:
        entries = [_Listed(info=model, provider=provider) for model in provider.models]
        for entry in entries:
            self._names.setdefault(entry.info.id.lower(), entry)
        for sure in (True, False):  # a name that is an alias outright goes before one that is a part of a rule
            for entry in entries:
                for name in _written_names(entry.info.match, sure=sure):
                    self._names.setdefault(name.lower(), entry)
        for entry in entries:
            self._patterns += [(pattern, entry) for pattern in _whole_patterns(entry.info.match)]

    def _written(self, name: str) -> _Listed | None:
        if found := self._names.get(name):
            return found
        return next((entry for pattern, entry in self._patterns if pattern.fullmatch(name)), None)

    def _without_version(self, name: str) -> _Listed | None:
        if version := VERSION.search(name):
            base = name[: version.start()]
            # Some rules are written up to the separator: `claude-sonnet-4@`.
            return self._written(base) or self._written(base + version["separator"])
        if self._is_bedrock:
            for prefix in (None, *BEDROCK_PLACES):
                name = prefix.sub("", name) if prefix else name
                if found := self._written(BEDROCK_VERSION.sub("", name)):
                    return found
        return None


def _written_names(rule: MatchLogic, *, sure: bool) -> Iterator[str]:
    """The names that a matching rule writes out: whole aliases if `sure`, else the literals of its other clauses."""
    match rule:
        case ClauseOr(or_=rules) | ClauseAnd(and_=rules):
            for each in rules:
                yield from _written_names(each, sure=sure)
        case ClauseEquals(equals=name) if sure:
            yield name
        case ClauseStartsWith(starts_with=name) | ClauseEndsWith(ends_with=name) | ClauseContains(contains=name):
            if not sure:
                yield name
        case _:
            pass


def _whole_patterns(rule: MatchLogic) -> Iterator[re.Pattern[str]]:
    """The regular expressions of a rule that describe a whole name."""
    match rule:
        case ClauseOr(or_=rules):
            for each in rules:
                yield from _whole_patterns(each)
        case ClauseRegex(regex=regex) if regex.startswith("^") and regex.endswith("$"):
            yield re.compile(regex)
        case _:
            pass


# --- Times and tiers of service ---


def _scenarios(info: ModelInfo, now: datetime) -> Iterator[ModelPrice]:
    """Every set of prices that could apply between `now` and a day later, whatever tier of service answers."""
    for context in _contexts(info):
        for moment in _moments(info, now):
            yield info.get_prices(moment, context)


def _contexts(info: ModelInfo) -> Iterator[dict[str, str]]:
    """Every request context that prices depend on, except batch processing, which the wallet doesn't send."""
    choices: dict[str, set[str | None]] = {}
    for variant in info.price_variants or ():
        for key, value in variant.when.items():
            if (key, value) != ("processing", "batch"):
                choices.setdefault(key, {None}).add(value)
    for values in product(*choices.values()):
        yield {key: value for key, value in zip(choices, values, strict=True) if value is not None}


def _moments(info: ModelInfo, now: datetime) -> set[datetime]:
    """Times between `now` and the horizon of which each is in another period of prices, and all periods have one."""
    edges = {time(0, tzinfo=UTC)}
    conditional = [] if isinstance(info.prices, ModelPrice) else info.prices
    for constraint in [*(each.constraint for each in conditional), *(v.constraint for v in info.price_variants or ())]:
        if isinstance(constraint, TimeOfDateConstraint):
            edges |= {constraint.start_time, constraint.end_time}
    days = [now.astimezone(UTC).date() + timedelta(days=ahead) for ahead in (-1, 0, 1, 2)]
    moments = {
        datetime.combine(day, edge if edge.tzinfo else edge.replace(tzinfo=UTC)) for day in days for edge in edges
    }
    return {now, *(moment for moment in moments if now <= moment <= now + HORIZON)}
