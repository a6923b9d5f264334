"""`combined`: several evaluators, one weighted score."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from ..core import spec
from ..core.errors import BudgetExceeded, EvaluatorFailed, Problems
from ..core.models import EvaluationRequest, Feedback, PartScore
from ..core.ports import Evaluator, EvaluatorContext
from .building import Surroundings


@dataclass(frozen=True, kw_only=True)
class Part:
    """One evaluator in a combination."""

    name: str
    evaluator: Evaluator
    weight: float = 1.0
    """Its share in the score, relative to the other parts' weights."""


class WeightedEvaluator:
    """Asks all parts at once; the score is the weighted mean. One part without a score: none at all."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        # Exact fractions, so that neither huge scores nor huge weights overflow on the way to a mean between them.
        weights = [Fraction(part.weight) for part in self.parts]
        self._shares = [weight / sum(weights) for weight in weights]

    @property
    def name(self) -> str:
        """The parts' names."""
        return "combined " + " + ".join(part.name for part in self.parts)

    @property
    def max_cost_usd(self) -> Decimal:
        """What the parts may report together."""
        return sum((part.evaluator.max_cost_usd for part in self.parts), Decimal(0))

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        """Ask every part once.

        Raises:
            EvaluatorFailed: a part gave no score; the others are cancelled. `cost_usd` is what the parts reported,
                with the most it may cost for each paid part that was cut off or did not say.
            BudgetExceeded: a part does not fit into the wallet, and no other part cost anything.
        """
        tasks: list[asyncio.Task[Feedback]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for number, part in enumerate(self.parts, start=1):
                    asked = part.evaluator.evaluate(_request_for(request, number), context)
                    tasks.append(group.create_task(asked))
        except ExceptionGroup:
            raise self._failure(tasks) from None
        return self._combine([task.result() for task in tasks])

    def _combine(self, found: Sequence[Feedback]) -> Feedback:
        rows = list(zip(self.parts, self._shares, found, strict=True))
        mean = sum((share * Fraction(feedback.score) for _, share, feedback in rows), Fraction(0))
        reported = any(feedback.cost_usd is not None for feedback in found)
        costs = [_known(part, feedback.cost_usd) for part, _, feedback in rows]
        return Feedback(
            score=float(mean),
            detail="\n\n".join(
                f"{part.name} (weight {float(share):.3g}): {feedback.score:g}\n{feedback.detail}".rstrip()
                for part, share, feedback in rows
            ),
            cost_usd=sum(costs, Decimal(0)) if reported else None,
            parts=tuple(
                PartScore(name=part.name, weight=float(share), score=feedback.score) for part, share, feedback in rows
            ),
        )

    def _failure(self, tasks: Sequence[asyncio.Task[Feedback]]) -> BaseException:
        ended = list(zip(self.parts, tasks, strict=True))
        errors = [(part, error) for part, task in ended if not task.cancelled() and (error := task.exception())]
        cost = sum((_cost(part, task) for part, task in ended), Decimal(0))
        for _, error in errors:
            if not isinstance(error, EvaluatorFailed | BudgetExceeded) or (
                isinstance(error, BudgetExceeded) and not cost
            ):
                return error
        # Again only if that may help: not when one part surely fails the same way the next time.
        transient = all(isinstance(error, EvaluatorFailed) and error.transient for _, error in errors)
        what = "; ".join(f"{part.name}: {error}" for part, error in errors)
        return EvaluatorFailed(f"a part gave no score: {what}", transient=transient, cost_usd=cost)


def build(described: spec.CombinedEvaluator, surroundings: Surroundings) -> Evaluator:
    """Build the evaluator of a loop file with all its parts.

    Raises:
        InvalidInput: all that is wrong with any of the parts.
    """
    problems, parts = Problems(), list[Part]()
    for index, part in enumerate(described.parts):
        with problems.collecting():
            evaluator = surroundings.build(part.evaluator, surroundings.at(f"parts.{index}.evaluator"))
            parts.append(Part(name=part.name, weight=part.weight, evaluator=evaluator))
    problems.refuse()
    return WeightedEvaluator(parts)


class _PartRequest(EvaluationRequest):
    """The same request under a key of its own, for two parts may be asked at one address."""

    key: str

    @property
    def idempotency_key(self) -> str:
        return self.key


def _request_for(request: EvaluationRequest, number: int) -> EvaluationRequest:
    fields = {name: getattr(request, name) for name in EvaluationRequest.model_fields}
    return _PartRequest(**fields, key=f"{request.idempotency_key}/{number}")


def _cost(part: Part, task: asyncio.Task[Feedback]) -> Decimal:
    """What a part of a failed evaluation cost, in USD."""
    if task.cancelled():
        return part.evaluator.max_cost_usd
    match task.exception():
        case None:
            return _known(part, task.result().cost_usd)
        case EvaluatorFailed(cost_usd=reported):
            return _known(part, reported)
        case BudgetExceeded():
            return Decimal(0)
        case _:
            return part.evaluator.max_cost_usd


def _known(part: Part, reported: Decimal | None) -> Decimal:
    """What a part reported, or else the most it may have cost: never less than was spent."""
    return part.evaluator.max_cost_usd if reported is None else reported
