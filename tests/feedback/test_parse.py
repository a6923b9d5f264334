from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from loopwright.core.errors import EvaluatorFailed
from loopwright.feedback.parse import feedback_from_json, quote, real_score, reported_cost

BAD_ANSWERS = {
    "true": '{"score": true}',
    "text": '{"score": "0.9"}',
    "NaN": '{"score": NaN}',
    "Infinity": '{"score": Infinity}',
    "minus Infinity": '{"score": -Infinity}',
    "null": '{"score": null}',
    "list": '{"score": [0.9]}',
    "missing": '{"detail": "fine"}',
    "10^400": '{"score": 1' + "0" * 400 + "}",
    "1e400": '{"score": 1e400}',
    "more digits than Python reads": '{"score": 1' + "0" * 5000 + "}",
    "HTML": "<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
    "empty": "",
    "blank": " \n\t",
    "not an object": "[0.9]",
    "a bare text": '"0.9"',
    "two objects": '{"score": 1} {"score": 2}',
    "half an object": '{"score": 0.9',
    "nested without end": "[" * 200_000,
    "detail that is no text": '{"score": 0.9, "detail": ["a"]}',
    "NaN in a field that nobody reads": '{"score": 0.9, "extra": NaN}',
}


@pytest.mark.parametrize("answer", BAD_ANSWERS.values(), ids=BAD_ANSWERS.keys())
@pytest.mark.parametrize("bare_number", [False, True])
def test_what_only_looks_like_a_score_is_a_failure(answer: str, bare_number: bool):
    with pytest.raises(EvaluatorFailed) as failed:
        feedback_from_json(answer, who="http a", bare_number=bare_number)
    assert failed.value.transient
    assert failed.value.cost_usd is None
    assert str(failed.value).startswith("http a ")
    assert len(str(failed.value)) < 500


@pytest.mark.parametrize("bad", ["true", "NaN", "Infinity", "1e400", "null", '"0.9"'])
def test_a_bare_value_that_is_no_score(bad: str):
    with pytest.raises(EvaluatorFailed):
        feedback_from_json(bad, who="command x", bare_number=True)


def test_a_bare_number_only_where_it_is_asked_for():
    assert feedback_from_json(" 0.25\n", who="x", bare_number=True).score == 0.25
    with pytest.raises(EvaluatorFailed, match="did not answer with an object"):
        feedback_from_json("0.25", who="x")


def test_negative_zero_is_zero():
    assert math.copysign(1, feedback_from_json('{"score": -0.0}', who="x").score) == 1


def test_a_whole_answer():
    answer = {"score": 3, "detail": "good\x1b \u2028 ☃", "cost_usd": 0.1, "more": {"is": "ignored"}}
    found = feedback_from_json(json.dumps(answer), who="x")
    assert (found.score, found.detail, found.cost_usd) == (3.0, "good\x1b \u2028 ☃", Decimal("0.1"))


def test_detail_and_cost_may_be_null():
    found = feedback_from_json('{"score": 0, "detail": null, "cost_usd": null}', who="x")
    assert (found.score, found.detail, found.cost_usd) == (0.0, "", None)


def test_half_a_surrogate_pair_does_not_spoil_the_score():
    assert feedback_from_json('{"score": 1, "detail": "a\\ud800b"}', who="x").detail == "a\ufffdb"


@pytest.mark.parametrize("cost", ["true", "-0.01", '"free"', "NaN", "1e400", '"1e999999999"', "1e12", "[]"])
def test_a_cost_that_is_no_amount_is_a_failure(cost: str):
    with pytest.raises(EvaluatorFailed) as failed:
        feedback_from_json(f'{{"score": 0.9, "cost_usd": {cost}}}', who="x")
    assert failed.value.cost_usd is None


def test_a_cost_beside_a_wrong_score_is_carried():
    with pytest.raises(EvaluatorFailed) as failed:
        feedback_from_json('{"score": "0.9", "cost_usd": "0.002"}', who="x")
    assert failed.value.cost_usd == Decimal("0.002")


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ('{"error": "x", "cost_usd": 0.5}', Decimal("0.5")),
        ('{"cost_usd": -1}', None),
        ('{"cost_usd": null}', None),
        ("[1]", None),
        ("<html>", None),
        ("", None),
    ],
)
def test_the_cost_in_an_answer_that_is_of_no_other_use(text: str, cost: Decimal | None):
    assert reported_cost(text) == cost


def test_a_quote_is_short_and_harmless():
    assert quote("a\x1b[31m\n\u202e") == "a\\x1b[31m\\n\\u202e"
    assert quote("x" * 300) == "x" * 200 + "…"
    assert quote(b"\xff" + b"x" * 10_000_000) == "\ufffd" + "x" * 199 + "…"


class Tensor:
    """Turns into a float but is no number."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.parametrize("value", [1, 0.5, Fraction(1, 2), Decimal("0.5")])
def test_real_numbers_are_scores(value: Any):
    assert real_score(value) == float(value)


@pytest.mark.parametrize("value", [True, Tensor(), "1", None, 1j, Fraction(10) ** 400, Decimal("NaN"), 10**400, [1]])
def test_other_things_are_no_scores(value: Any):
    with pytest.raises(ValueError, match="score"):
        real_score(value)
