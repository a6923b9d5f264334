"""Stop conditions: small callables on (state, now), composable with `|` and `&`, that go to and from JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import reduce
from typing import Protocol, TypeVar, cast

from pydantic import JsonValue

from .errors import InvalidInput, Problem
from .models import Direction, StopReason, finite_score
from .money import usd
from .wallet import Wallet

PRECEDENCE: tuple[StopReason, ...] = (
    "cancelled",
    "error",
    "target_reached",
    "converged",
    "budget",
    "max_iterations",
    "time",
    "no_improvement",
)
"""When several reasons hold at once the run's reason is the first of these."""

NEEDS_A_SURE_STOP = (
    "a loop needs at least one stop condition that surely fires: max_iterations, budget_usd or max_seconds"
)


MAX_NESTING = 60
"""A condition whose JSON is nested deeper than this is refused."""

T = TypeVar("T")


class Progress(Protocol):
    """What a stop condition may look at; `core.state.RunState` is one."""

    @property
    def direction(self) -> Direction: ...
    @property
    def iterations(self) -> int: ...
    @property
    def best_score(self) -> float | None: ...
    @property
    def wallet(self) -> Wallet: ...

    def elapsed(self, now: datetime) -> float:
        """Seconds since the run started."""
        ...

    def gain_over(self, iterations: int) -> float | None:
        """By how much the best score got better over the last `iterations`; `None` while that can't be said."""
        ...


def first_reason(reasons: Iterable[StopReason]) -> StopReason | None:
    """The reason that takes precedence, or `None`."""
    return min(reasons, key=PRECEDENCE.index, default=None)


class Stop(ABC):
    """A stop condition."""

    @abstractmethod
    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        """Why the run should stop in this state at this time, or `None` to go on."""

    @abstractmethod
    def to_json(self) -> dict[str, JsonValue]:
        """The condition as a JSON object; `parse_stop` reads it back."""

    @property
    def surely_fires(self) -> bool:
        """Whether the condition holds sooner or later whatever the agent and the evaluator do."""
        return False

    def parts(self) -> tuple[Stop, ...]:
        """This condition and all those inside it."""
        return (self,)

    def __or__(self, other: Stop) -> Stop:
        return AnyOf(*_flat(AnyOf, self), *_flat(AnyOf, other))

    def __and__(self, other: Stop) -> Stop:
        return AllOf(*_flat(AllOf, self), *_flat(AllOf, other))


@dataclass(frozen=True)
class Target(Stop):
    """Stop when the best score reaches `score` (or falls to it, where the loop minimizes)."""

    score: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", _checked("target_score", finite_score, self.score))

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        best = state.best_score
        if best is None:
            return None
        reached = best >= self.score if state.direction == "maximize" else best <= self.score
        return "target_reached" if reached else None

    def to_json(self) -> dict[str, JsonValue]:
        return {"target_score": self.score}


@dataclass(frozen=True)
class MaxIterations(Stop):
    """Stop after `count` iterations of an attempt, failed ones included."""

    count: int

    def __post_init__(self) -> None:
        _checked("max_iterations", _positive_int, self.count)

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        return "max_iterations" if state.iterations >= self.count else None

    def to_json(self) -> dict[str, JsonValue]:
        return {"max_iterations": self.count}

    @property
    def surely_fires(self) -> bool:
        return True


@dataclass(frozen=True)
class Budget(Stop):
    """The wallet's cap in USD: a hard limit that is checked before each paid request, not only between iterations."""

    amount: Decimal

    def __init__(self, amount: Decimal | int | float | str) -> None:
        object.__setattr__(self, "amount", _checked("budget_usd", _positive_usd, amount))

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        return "budget" if state.wallet.spent >= self.amount else None

    def to_json(self) -> dict[str, JsonValue]:
        return {"budget_usd": f"{self.amount:f}"}

    @property
    def surely_fires(self) -> bool:
        return True


@dataclass(frozen=True)
class MaxSeconds(Stop):
    """Stop `seconds` after the run's start; what is in flight then is cancelled."""

    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", _checked("max_seconds", _positive_number, self.seconds))

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        return "time" if state.elapsed(now) >= self.seconds else None

    def to_json(self) -> dict[str, JsonValue]:
        return {"max_seconds": self.seconds}

    @property
    def surely_fires(self) -> bool:
        return True


@dataclass(frozen=True)
class NoImprovement(Stop):
    """Stop when the best score got better by less than `min_gain` over the last `patience` iterations.

    With `min_gain` 0 any strict improvement counts.
    """

    patience: int
    min_gain: float = 0.0

    def __post_init__(self) -> None:
        _checked("no_improvement.patience", _positive_int, self.patience)
        object.__setattr__(self, "min_gain", _checked("no_improvement.min_gain", finite_score, self.min_gain))
        if self.min_gain < 0:
            raise InvalidInput(Problem(field="no_improvement.min_gain", message="must be zero or more"))

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        gain = state.gain_over(self.patience)
        if gain is None:
            return None
        return "no_improvement" if gain <= 0 or gain < self.min_gain else None

    def to_json(self) -> dict[str, JsonValue]:
        return {"no_improvement": {"patience": self.patience, "min_gain": self.min_gain}}


@dataclass(frozen=True, init=False)
class AnyOf(Stop):
    """Stop when any of the conditions holds."""

    conditions: tuple[Stop, ...]

    def __init__(self, *conditions: Stop) -> None:
        object.__setattr__(self, "conditions", conditions)

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        return first_reason(r for c in self.conditions if (r := c(state, now)))

    def to_json(self) -> dict[str, JsonValue]:
        return {"any": [c.to_json() for c in self.conditions]}

    @property
    def surely_fires(self) -> bool:
        return any(c.surely_fires for c in self.conditions)

    def parts(self) -> tuple[Stop, ...]:
        return (self, *(p for c in self.conditions for p in c.parts()))


@dataclass(frozen=True, init=False)
class AllOf(Stop):
    """Stop when all of the conditions hold at once."""

    conditions: tuple[Stop, ...]

    def __init__(self, *conditions: Stop) -> None:
        object.__setattr__(self, "conditions", conditions)

    def __call__(self, state: Progress, now: datetime) -> StopReason | None:
        held: list[StopReason] = [r for c in self.conditions if (r := c(state, now))]
        return first_reason(held) if len(held) == len(self.conditions) else None

    def to_json(self) -> dict[str, JsonValue]:
        return {"all": [c.to_json() for c in self.conditions]}

    @property
    def surely_fires(self) -> bool:
        return all(c.surely_fires for c in self.conditions)

    def parts(self) -> tuple[Stop, ...]:
        return (self, *(p for c in self.conditions for p in c.parts()))


def _flat(kind: type[AnyOf] | type[AllOf], stop: Stop) -> tuple[Stop, ...]:
    return stop.conditions if isinstance(stop, kind) else (stop,)


def budget_of(stop: Stop) -> Decimal | None:
    """The wallet's cap in USD: the smallest budget in the condition, or `None`."""
    return min((p.amount for p in stop.parts() if isinstance(p, Budget)), default=None)


def iterations_of(stop: Stop) -> int | None:
    """The smallest limit of iterations in the condition, or `None`."""
    return min((p.count for p in stop.parts() if isinstance(p, MaxIterations)), default=None)


def seconds_of(stop: Stop) -> float | None:
    """When work in flight is to be cancelled, in seconds after the start, or `None` where time alone ends nothing.

    It is the first moment at which the condition holds by the passing of time alone.
    """
    match stop:
        case MaxSeconds():
            return stop.seconds
        case AnyOf():
            return min((s for c in stop.conditions if (s := seconds_of(c)) is not None), default=None)
        case AllOf():
            bounds = [seconds_of(c) for c in stop.conditions]
            known = [s for s in bounds if s is not None]
            return max(known, default=None) if len(known) == len(bounds) else None
        case _:
            return None


def check_stop(stop: Stop, *, has_evaluator: bool, free_of_charge: bool = False) -> list[Problem]:
    """What is wrong with a loop's stop condition as a whole.

    Args:
        stop: the condition.
        has_evaluator: whether anything gives scores.
        free_of_charge: whether every model of the loop costs nothing, so that a budget never fires.
    """
    problems: list[Problem] = []
    if not isinstance(stop, Stop):  # pyright: ignore[reportUnnecessaryIsInstance] - a library user may pass anything
        return [Problem(field="stop", message=NEEDS_A_SURE_STOP)]
    if not stop.surely_fires:
        problems.append(Problem(field="stop", message=NEEDS_A_SURE_STOP))
    elif free_of_charge and not _without_budgets(stop):
        message = "the model costs nothing, so budget_usd never fires; add max_iterations or max_seconds"
        problems.append(Problem(field="stop", message=message))
    for part in stop.parts():
        if isinstance(part, AllOf) and any(isinstance(p, Budget) for p in part.parts()):
            message = "budget_usd is a hard cap and can't wait for another condition; take it out of `all`"
            problems.append(Problem(field="stop.all", message=message))
        if isinstance(part, Target | NoImprovement) and not has_evaluator:
            name = next(iter(part.to_json()))
            message = "needs scores, and the loop has no evaluator; add one or leave this condition out"
            problems.append(Problem(field=f"stop.{name}", message=message))
    return problems


def _without_budgets(stop: Stop) -> bool:
    """Whether the condition surely fires even if its budgets never do."""
    match stop:
        case AnyOf():
            return any(_without_budgets(c) for c in stop.conditions)
        case AllOf():
            return all(_without_budgets(c) for c in stop.conditions)
        case Budget():
            return False
        case _:
            return stop.surely_fires


# --- to and from JSON ---


def _no_improvement(value: object) -> Stop:
    if isinstance(value, Mapping):
        options = cast(Mapping[str, object], value)
        unknown = options.keys() - {"patience", "min_gain"}
        if unknown or "patience" not in options:
            message = "takes `patience` (iterations) and optionally `min_gain` (score)"
            raise InvalidInput(Problem(field="no_improvement", message=message))
        return NoImprovement(cast(int, options["patience"]), cast(float, options.get("min_gain", 0.0)))
    return NoImprovement(cast(int, value))


def _many(kind: type[AnyOf] | type[AllOf], name: str) -> Callable[[object], Stop]:
    def read(value: object) -> Stop:
        if not isinstance(value, list) or not value:
            raise InvalidInput(Problem(field=name, message="must be a list of stop conditions"))
        return kind(*(parse_stop(item) for item in cast(list[object], value)))

    return read


CONDITIONS: Mapping[str, Callable[[object], Stop]] = {
    "target_score": lambda v: Target(cast(float, v)),
    "max_iterations": lambda v: MaxIterations(cast(int, v)),
    "budget_usd": lambda v: Budget(cast(str, v)),
    "max_seconds": lambda v: MaxSeconds(cast(float, v)),
    "no_improvement": _no_improvement,
    "any": _many(AnyOf, "any"),
    "all": _many(AllOf, "all"),
}
"""Every stop condition by its name in JSON and in loop files; adding one is a class and a line here."""


def parse_stop(value: object) -> Stop:
    """Read a stop condition from JSON, e.g. `{"any": [{"target_score": 0.9}, {"max_iterations": 20}]}`.

    An object with several keys means any of them: `{"target_score": 0.9, "max_iterations": 20}`.

    Raises:
        InvalidInput: names every key or value that is not one.
    """
    if _is_deep(value):
        raise InvalidInput(Problem(field="", message=f"is nested deeper than {MAX_NESTING} levels"))
    if not isinstance(value, Mapping) or not value:
        known = ", ".join(CONDITIONS)
        raise InvalidInput(Problem(field="", message=f"must be an object with one or more of: {known}"))
    stops: list[Stop] = []
    problems: list[Problem] = []
    for key, setting in cast(Mapping[object, object], value).items():
        read = CONDITIONS.get(str(key))
        if read is None:
            message = f"is not a stop condition; there are {', '.join(CONDITIONS)}"
            problems.append(Problem(field=str(key), message=message))
            continue
        try:
            stops.append(read(setting))
        except InvalidInput as error:
            problems.extend(error.problems)
    if problems:
        raise InvalidInput(*problems)
    return reduce(lambda a, b: a | b, stops) if len(stops) > 1 else stops[0]


def _is_deep(value: object) -> bool:
    level, depth = [value], 0
    while level and depth <= MAX_NESTING:
        inside = [tuple(cast(Mapping[object, object], v).values()) for v in level if isinstance(v, Mapping)]
        inside += [tuple(cast(list[object], v)) for v in level if isinstance(v, list)]
        level, depth = [item for items in inside for item in items], depth + 1
    return bool(level)


def parse_stop_expression(text: str) -> Stop:
    """Read a one-line condition such as `target_score=0.9 | max_iterations=20 & no_improvement=5`; `&` binds tighter.

    Raises:
        InvalidInput: says which part can't be read.
    """
    either = [_parse_conjunction(part) for part in text.split("|")]
    return reduce(lambda a, b: a | b, either)


def _parse_conjunction(text: str) -> Stop:
    both: list[Stop] = []
    for term in text.split("&"):
        name, _, setting = (piece.strip() for piece in term.partition("="))
        if not setting:
            message = f"can't read {term.strip()!r}; write it like target_score=0.9 | max_iterations=20"
            raise InvalidInput(Problem(field="--stop", message=message))
        value: object = setting
        if name != "budget_usd":
            try:
                value = int(setting) if setting.lstrip("-").isdigit() else float(setting)
            except ValueError:
                value = setting
        both.append(parse_stop({name: value}))
    return reduce(lambda a, b: a & b, both)


def _checked(field: str, check: Callable[[object], T], value: object) -> T:
    try:
        return check(value)
    except ValueError as error:
        raise InvalidInput(Problem(field=field, message=str(error).replace("score must", "must"))) from None


def _positive_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"must be a whole number of 1 or more, not {value!r}")
    return value


def _positive_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"must be a finite number greater than 0, not {value!r}")
    return float(value)


def _positive_usd(value: object) -> Decimal:
    amount = usd(value)
    if amount == 0:
        raise ValueError("must be greater than 0; for models that cost nothing leave it out")
    return amount
