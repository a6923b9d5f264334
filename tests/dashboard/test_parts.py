"""The parts that pages are made of: charts, diffs, text, words about a loop."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from loopwright.core.errors import InvalidInput, Problem
from loopwright.core.views import Point
from loopwright.dashboard.chart import MOST_POINTS, Series, draw, spark, thin
from loopwright.dashboard.describe import evaluator_words, limits_of, stops
from loopwright.dashboard.diff import diff
from loopwright.dashboard.forms import Fields, wrong_of
from loopwright.dashboard.text import duration, one_line, plain


def points(*scores: float | None) -> list[Point]:
    return [Point(position=n, attempt=1, score=score) for n, score in enumerate(scores, start=1)]


def test_a_chart_has_the_best_line_and_the_target() -> None:
    chart = draw([Series("a", points(0.2, None, 0.5, 0.4))], direction="maximize", target=0.9, most=10)
    assert chart is not None
    curve = chart.curves[0]
    assert [dot.best for dot in curve.dots] == [True, True, False]
    assert len(curve.failed) == 1
    assert chart.target is not None and chart.top <= chart.target <= chart.bottom
    assert chart.describe == (
        "a: 4 iterations, the first score 0.2, the best 0.5 at iteration 3, the last 0.4; the target is 0.9."
    )
    least = draw([Series("a", points(5, 3, 4))], direction="minimize", target=None, most=None)
    assert least is not None and [dot.best for dot in least.curves[0].dots] == [True, True, False]
    assert draw([Series("a", points(None))], direction="maximize", target=1, most=1) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=2000), st.none() | st.floats(-1e9, 1e9))
def test_a_chart_holds_all_that_is_drawn(scores: list[float], target: float | None) -> None:
    chart = draw([Series("a", points(*scores))], direction="maximize", target=target, most=None)
    assert chart is not None
    for dot in chart.curves[0].dots:
        assert chart.left - 1 <= dot.x <= chart.right + 1
        assert chart.top - 1 <= dot.y <= chart.bottom + 1
    assert len(chart.curves[0].dots) <= MOST_POINTS + 3
    assert 2 <= len(chart.y_ticks) <= 8


def test_thinning_keeps_the_peaks() -> None:
    scores = [0.1] * 5000
    scores[1234], scores[4321] = 0.9, 0.01
    kept = {point.position for point in thin(points(*scores))}
    assert {1235, 4322, 5000} <= kept


def test_a_spark_needs_two_scores() -> None:
    assert spark([0.5]) == "" and spark([None, 0.5]) == ""
    assert spark([0.5, None, 0.7]).count(",") == 2


@given(st.text(alphabet="ab \n.", max_size=200), st.text(alphabet="ab \n.", max_size=200))
def test_a_diff_has_both_texts_in_it(before: str, after: str) -> None:
    parts = diff(before, after)
    assert "".join(part.text for part in parts if part.kind != "added") == before
    assert "".join(part.text for part in parts if part.kind != "removed") == after


def test_a_diff_of_large_texts_takes_no_time() -> None:
    begun = time.monotonic()
    diff("a b c d " * 5000, "b a d c " * 5000)
    diff("x" * 20_000, "y" * 20_000)
    assert time.monotonic() - begun < 5


def test_text_shows_what_would_hide() -> None:
    assert plain("a\x1b[31mb\x1b]0;title\x07c\u202ed\u2028e\x00") == "abc[U+202E]d[U+2028]e[U+0000]"
    assert plain("tab\tline\n\u05d0\u05d1\u05d2 👩‍👩‍👧") == "tab\tline\n\u05d0\u05d1\u05d2 👩‍👩‍👧"
    assert one_line("a\n\n  b" + "c" * 1_000_000, 10) == "a bcccccc…"
    assert [duration(each) for each in (0.44, 12.6, 185, 3720)] == ["0.4 s", "12 s", "3 min 05 s", "1 h 02 min"]


def test_a_loop_in_words() -> None:
    stop = {"any": [{"target_score": 0.9}, {"max_iterations": 1}, {"budget_usd": "2"}]}
    assert stops(stop) == "stops at 0.9, after 1 iteration or at $2.00"
    assert limits_of(stop).iterations == 1
    assert stops({"nonsense": 1}) == "stops by a condition that can't be read"
    assert evaluator_words({"kind": "http", "url": "https://user:pw@example.com:8/score?key=1"}) == "example.com:8"
    assert evaluator_words({"kind": "combined", "parts": [{"name": "a"}, {"name": "b"}]}) == "the mean of a, b"
    assert evaluator_words(None) == "nothing"


def test_fields_say_all_that_is_wrong() -> None:
    form = Fields({"a": ["x"], "b": ["nan"], "c": ["1e999"], "d": [" 12 "], "e": ["$0.50"]})
    assert (form.whole("a"), form.number("b"), form.money("c"), form.whole("d"), str(form.money("e"))) == (
        None, None, None, 12, "0.50",
    )  # fmt: skip
    assert [problem.field for problem in form.problems.found] == ["a", "b", "c"]
    error = InvalidInput(Problem(field="spec.stop.budget_usd", message="no"), Problem(field="spec.x", message="why"))
    assert wrong_of(error, ["budget_usd"]) == {"budget_usd": "no", "": "spec.x: why"}
