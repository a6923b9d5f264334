"""What a loop is, in words made from its own fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast
from urllib.parse import urlsplit

from ..core.errors import InvalidInput
from ..core.money import show_usd
from ..core.stop import Budget, MaxIterations, MaxSeconds, NoImprovement, Stop, Target, parse_stop
from .text import duration, score


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What ends a loop, as far as it can be shown on a meter."""

    target: float | None = None
    iterations: int | None = None
    """Of one attempt."""
    seconds: float | None = None
    budget: Decimal | None = None
    patience: int | None = None


def limits_of(stop: Mapping[str, Any]) -> Limits:
    """The limits in a stop condition; none of one that can't be read."""
    try:
        parts = parse_stop(dict(stop)).parts()
    except InvalidInput:
        return Limits()
    return Limits(
        target=next((p.score for p in parts if isinstance(p, Target)), None),
        iterations=min((p.count for p in parts if isinstance(p, MaxIterations)), default=None),
        seconds=min((p.seconds for p in parts if isinstance(p, MaxSeconds)), default=None),
        budget=min((p.amount for p in parts if isinstance(p, Budget)), default=None),
        patience=min((p.patience for p in parts if isinstance(p, NoImprovement)), default=None),
    )


ORDER: Sequence[type[Stop]] = (Target, MaxIterations, Budget, MaxSeconds, NoImprovement)
"""How people would say it: stored conditions have lost the order in which they were written."""


def stops(stop: Mapping[str, Any]) -> str:
    """When a loop stops, as the end of a sentence: `stops at 0.9, after 20 iterations or $2.00`."""
    try:
        parts = parse_stop(dict(stop)).parts()
    except InvalidInput:
        return "stops by a condition that can't be read"
    inside = sorted(parts, key=lambda part: ORDER.index(type(part)) if type(part) in ORDER else len(ORDER))
    found = [words for part in inside if (words := _stop_words(part))]
    return f"stops {_joined(found)}" if found else "stops when the agent says that it is done"


def _stop_words(part: Stop) -> str:
    match part:
        case Target():
            return f"at {score(part.score)}"
        case MaxIterations():
            return f"after {part.count:,} iteration{'s' if part.count != 1 else ''}"
        case Budget():
            return f"at {show_usd(part.amount)}"
        case MaxSeconds():
            return f"after {duration(part.seconds)}"
        case NoImprovement():
            return f"after {part.patience} iterations without a better score"
        case _:
            return ""


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def evaluator_words(evaluator: object) -> str:
    """An evaluator in a few words."""
    match evaluator:
        case {"kind": "http", "url": str(url)}:
            return host(url)
        case {"kind": "judge", "model": str(model)}:
            return f"a rubric, judged by {model}"
        case {"kind": "command", "run": list()}:
            return f"the command {' '.join(str(part) for part in _items(evaluator, 'run'))}"
        case {"kind": "python", "function": str(function)}:
            return f"the function {function}"
        case {"kind": "combined", "parts": list()}:
            parts = cast(
                "list[dict[str, object]]", [each for each in _items(evaluator, "parts") if isinstance(each, dict)]
            )
            names = [str(part.get("name", "?")) for part in parts]
            return f"the mean of {', '.join(names)}"
        case _:
            return "nothing"


def _items(group: object, name: str) -> Sequence[object]:
    return cast("dict[str, list[object]]", group)[name]


def host(url: str) -> str:
    """The host that an address leads to."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2] or url
    except ValueError:
        return url
