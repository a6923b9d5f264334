from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopwright.core import spec
from loopwright.core.errors import BudgetExceeded, EvaluatorFailed, InvalidInput, StoreUnavailable
from loopwright.core.models import EvaluationRequest, Feedback
from loopwright.core.ports import EvaluatorContext
from loopwright.egress import EgressClient
from loopwright.feedback.combined import Part, WeightedEvaluator
from loopwright.feedback.registry import build_evaluator

from .endpoint import Endpoint

BROKE = BudgetExceeded(needed=Decimal(1), available=Decimal(0))


@dataclass
class Fixed:
    """Gives a feedback, raises an error, or waits for ever when there is neither."""

    outcome: Feedback | Exception | None
    max_cost_usd: Decimal = Decimal(0)
    after: Fixed | None = None
    """Waits for this one to have been asked."""
    keys: list[str] = field(default_factory=list[str])
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    name: str = "fixed"

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        self.keys.append(request.idempotency_key)
        self.asked.set()
        if self.after:
            await self.after.asked.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
        assert isinstance(self.outcome, Feedback)
        return self.outcome


def gives(score: float, detail: str = "", cost: str | None = None, most: str = "0") -> Fixed:
    feedback = Feedback(score=score, detail=detail, cost_usd=None if cost is None else Decimal(cost))
    return Fixed(feedback, max_cost_usd=Decimal(most))


def combined(**parts: tuple[Fixed, float] | Fixed) -> WeightedEvaluator:
    listed = [(name, part if isinstance(part, tuple) else (part, 1.0)) for name, part in parts.items()]
    return WeightedEvaluator([Part(name=name, evaluator=part, weight=weight) for name, (part, weight) in listed])


async def test_the_weighted_mean_with_each_part_shown(request_: EvaluationRequest, context: EvaluatorContext):
    evaluator = combined(length=(gives(1, "just right", "0.1"), 3), style=(gives(0.2), 1))
    found = await evaluator.evaluate(request_, context)
    assert found.score == pytest.approx(0.8)
    assert found.detail == "length (weight 0.75): 1\njust right\n\nstyle (weight 0.25): 0.2"
    assert [part.model_dump() for part in found.parts] == [
        {"name": "length", "weight": 0.75, "score": 1.0},
        {"name": "style", "weight": 0.25, "score": 0.2},
    ]
    assert found.cost_usd == Decimal("0.1")
    assert evaluator.name == "combined length + style"


async def test_parts_are_asked_at_the_same_time_each_with_a_key_of_its_own(
    request_: EvaluationRequest, context: EvaluatorContext
):
    one, two = gives(1), gives(1)
    one.after, two.after = two, one
    await combined(one=one, two=two).evaluate(request_, context)
    assert (one.keys, two.keys) == (["run-1/2/3/1"], ["run-1/2/3/2"])


async def test_a_combination_in_a_combination(request_: EvaluationRequest, context: EvaluatorContext):
    leaf = gives(1)
    inner = combined(a=gives(0), b=leaf)
    outer = WeightedEvaluator([Part(name="x", evaluator=gives(0)), Part(name="y", evaluator=inner)])
    assert (await outer.evaluate(request_, context)).score == 0.25
    assert leaf.keys == ["run-1/2/3/2/2"]


@pytest.mark.parametrize(
    ("scores", "weights", "mean"),
    [
        ([1.7e308, 1.7e308], [1, 1], 1.7e308),
        ([1.7e308, -1.7e308], [1.7e308, 1.7e308], 0),
        ([0.1, 0.1, 0.1], [1, 1, 1], 0.1),
        ([1, 0], [5e-324, 1.7e308], 0),
        ([1, 3], [5e-324, 5e-324], 2),
        ([-0.0], [2], 0),
    ],
)
async def test_no_mean_overflows(
    *,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    scores: list[float],
    weights: list[float],
    mean: float,
):
    parts = {f"p{i}": (gives(score), weight) for i, (score, weight) in enumerate(zip(scores, weights, strict=True))}
    assert (await combined(**parts).evaluate(request_, context)).score == pytest.approx(mean, rel=1e-15)


@pytest.mark.parametrize(
    ("parts", "cost"),
    [
        ([gives(1), gives(1)], None),
        ([gives(1, cost="0.1"), gives(1, cost="0.02")], "0.12"),
        ([gives(1, cost="0.1", most="1"), gives(1, most="0.5")], "0.6"),
        ([gives(1, most="0.25"), gives(1, most="0.5")], None),
    ],
)
async def test_what_it_cost(
    request_: EvaluationRequest, context: EvaluatorContext, parts: list[Fixed], cost: str | None
):
    evaluator = combined(**{f"p{i}": part for i, part in enumerate(parts)})
    found = await evaluator.evaluate(request_, context)
    assert found.cost_usd == (None if cost is None else Decimal(cost))
    assert evaluator.max_cost_usd == sum((part.max_cost_usd for part in parts), Decimal(0))


async def test_one_failure_fails_all_and_loses_no_money(request_: EvaluationRequest, context: EvaluatorContext):
    done, hanging = gives(1, cost="0.1", most="1"), Fixed(None, max_cost_usd=Decimal("0.3"))
    failed = Fixed(EvaluatorFailed("no answer", transient=True, cost_usd=Decimal("0.04")), after=hanging)
    with pytest.raises(EvaluatorFailed) as raised:
        await combined(done=done, failed=failed, hanging=hanging).evaluate(request_, context)
    assert hanging.cancelled
    assert raised.value.transient
    assert raised.value.cost_usd == Decimal("0.44")  # 0.10 and 0.04 as reported, up to 0.30 for what was cut off
    assert str(raised.value) == "a part gave no score: failed: no answer"


@pytest.mark.parametrize(
    ("error", "most", "cost"),
    [
        (EvaluatorFailed("no answer"), "0.5", "0.5"),
        (EvaluatorFailed("not sent", cost_usd=Decimal(0)), "0.5", "0"),
    ],
)
async def test_a_failure_that_names_no_cost_may_have_cost_the_most(
    *, request_: EvaluationRequest, context: EvaluatorContext, error: Exception, most: str, cost: str
):
    with pytest.raises(EvaluatorFailed) as raised:
        await combined(a=gives(1), b=Fixed(error, max_cost_usd=Decimal(most))).evaluate(request_, context)
    assert raised.value.cost_usd == Decimal(cost)
    assert not raised.value.transient


async def test_a_budget_that_does_not_reach_goes_through(request_: EvaluationRequest, context: EvaluatorContext):
    with pytest.raises(BudgetExceeded) as raised:
        await combined(a=gives(1), b=Fixed(BROKE)).evaluate(request_, context)
    assert raised.value is BROKE


async def test_money_that_was_spent_goes_before_a_budget_that_does_not_reach(
    request_: EvaluationRequest, context: EvaluatorContext
):
    with pytest.raises(EvaluatorFailed) as raised:
        await combined(a=gives(1, cost="0.1"), b=Fixed(BROKE)).evaluate(request_, context)
    assert raised.value.cost_usd == Decimal("0.1")
    assert not raised.value.transient
    assert "b: one request may cost up to" in str(raised.value)


async def test_another_error_is_not_hidden_in_a_group(request_: EvaluationRequest, context: EvaluatorContext):
    with pytest.raises(StoreUnavailable):
        await combined(a=gives(1), b=Fixed(StoreUnavailable())).evaluate(request_, context)


async def test_cancelling_cancels_the_parts(request_: EvaluationRequest, context: EvaluatorContext):
    hanging = Fixed(None)
    task = asyncio.create_task(combined(a=gives(1), b=hanging).evaluate(request_, context))
    await hanging.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert hanging.cancelled


def described(*parts: dict[str, Any]) -> spec.CombinedEvaluator:
    listed = [{"name": f"p{i}", "evaluator": part} for i, part in enumerate(parts)]
    return spec.CombinedEvaluator.model_validate({"kind": "combined", "parts": listed})


async def test_a_combination_of_a_loop_file(
    *,
    endpoint: Endpoint,
    egress: EgressClient,
    request_: EvaluationRequest,
    context: EvaluatorContext,
    tmp_path: Path,
):
    evaluator = build_evaluator(
        described({"kind": "http", "url": endpoint.url}, {"kind": "command", "run": ["echo", "1"]}),
        egress=egress,
        folder=tmp_path,
    )
    assert (await evaluator.evaluate(request_, context)).score == 0.75
    assert endpoint.received[0].headers["idempotency-key"] == "run-1/2/3/1"


def test_a_part_that_can_not_work_is_named(tmp_path: Path):
    inner = {"kind": "combined", "parts": [{"name": "n", "evaluator": {"kind": "http", "url": "ftp://a/"}}]}
    with pytest.raises(InvalidInput) as refused:
        build_evaluator(described({"kind": "command", "run": ["true"]}, inner), egress=EgressClient(), folder=tmp_path)
    assert refused.value.problems[0].field == "evaluator.parts.1.evaluator.parts.0.evaluator.url"
