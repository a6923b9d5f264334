"""Reading what evaluators answer: strict, and never a score that nobody gave."""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import NoReturn, cast

from ..core.errors import EvaluatorFailed
from ..core.models import Feedback, finite_score
from ..core.money import usd

SHOWN = 200
"""How many characters of a wrong answer an error message quotes."""

_MOST_USD = Decimal(10) ** 9
"""More than this for one evaluation is a mistake, and digits without end would only be a burden to show."""


def quote(raw: str | bytes, limit: int = SHOWN) -> str:
    """A shortened piece of `raw` for an error message, with control characters escaped."""
    text = raw[: 4 * limit].decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    shortened = text[:limit] + ("…" if len(text) > limit else "")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shortened)


def read_json(text: str) -> object:
    """Parse JSON as RFC 8259 has it, without `NaN` and `Infinity`.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return cast("object", json.loads(text, parse_constant=_no_constant))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def feedback_from_json(text: str, *, who: str, bare_number: bool = False) -> Feedback:
    """Read `{"score": number, "detail"?: string, "cost_usd"?: amount}`; with `bare_number`, a mere score too.

    `who` names the evaluator in messages, e.g. `"http score.example.com"`. Unknown fields are ignored.

    Raises:
        EvaluatorFailed: transient; quotes what came and carries a valid `cost_usd` that stood in it.
    """
    if not text.strip():
        raise EvaluatorFailed(f"{who} gave an empty answer", transient=True)
    try:
        answer = read_json(text)
    except ValueError as error:
        raise EvaluatorFailed(f"{who} did not answer in JSON ({error}): {quote(text)}", transient=True) from None
    if isinstance(answer, Mapping):
        return feedback_from_mapping(cast("Mapping[str, object]", answer), who=who)
    if bare_number and not isinstance(answer, str):
        return feedback_from_mapping({"score": answer}, who=who)
    raise EvaluatorFailed(f'{who} did not answer with an object {{"score": number}}: {quote(text)}', transient=True)


def feedback_from_mapping(answer: Mapping[str, object], *, who: str) -> Feedback:
    """Check the fields of an answer; see `feedback_from_json`."""
    cost = _cost(answer, who)
    try:
        score = _score(answer)
        detail = _detail(answer)
    except ValueError as error:
        raise EvaluatorFailed(f"{who} gave no valid score: {error}", transient=True, cost_usd=cost) from None
    return Feedback(score=score, detail=detail, cost_usd=cost)


def reported_cost(text: str) -> Decimal | None:
    """The valid `cost_usd` in an answer that is of no other use, `None` where there is none."""
    try:
        answer = read_json(text)
        return _cost(cast("Mapping[str, object]", answer), "") if isinstance(answer, Mapping) else None
    except (ValueError, EvaluatorFailed):
        return None


def _cost(answer: Mapping[str, object], who: str) -> Decimal | None:
    value = answer.get("cost_usd")
    if value is None:
        return None
    try:
        amount = usd(value)
    except (ValueError, ArithmeticError):  # Decimal's own overflow is an ArithmeticError
        amount = None
    if amount is None or amount > _MOST_USD:
        raise EvaluatorFailed(f"{who} gave no valid cost_usd: {quote(repr(value))}", transient=True)
    return amount


def _score(answer: Mapping[str, object]) -> float:
    if "score" not in answer:
        raise ValueError(f"there is no field `score` among {quote(repr(sorted(map(str, answer))))}")
    return real_score(answer["score"])


def real_score(value: object) -> float:
    """A finite score from any real number that Python code may return, numpy's included; `bool` is none.

    Raises:
        ValueError: says what was found instead.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool | int | float):
        try:
            value = float(value)
        except OverflowError:
            raise ValueError("score is too large to be a number") from None
    return finite_score(value)


def _detail(answer: Mapping[str, object]) -> str:
    value = answer.get("detail")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"detail must be a string, not {quote(repr(value), 60)}")
    return value
