"""Scoring a candidate: money first, the same idempotency key for every retry, the holdout unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic import JsonValue

from ..cancellation import whatever_happens
from ..core.errors import BudgetExceeded, EvaluatorFailed
from ..core.events import EvaluationRetried
from ..core.models import EvaluationRequest, Feedback
from ..core.ports import Evaluator, EvaluatorContext, Operation, Spender
from ..core.wallet import ZERO, Basis, Charge
from ..tracing import span

RETRY_DELAYS = (0.25, 1.0)
"""Seconds before the second and the third try of an evaluation that failed in passing."""


@dataclass(kw_only=True)
class Scorer:
    """Asks an evaluator, and books what it reports as its own cost."""

    evaluator: Evaluator
    holdout: Evaluator | None = None
    retry_delays: Sequence[float] = RETRY_DELAYS
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _dearest: dict[str, Decimal] = field(default_factory=dict[str, Decimal])
    """The largest cost each evaluator reported: reserved from then on, also where none was declared."""
    _heard: set[str] = field(default_factory=set[str])
    """Evaluators that have said what an evaluation costs, if anything."""
    _first: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])

    async def score(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        """Score one candidate; a failure in passing is tried again.

        Raises:
            EvaluatorFailed: no valid score after all tries.
            BudgetExceeded: the evaluation does not fit into the wallet.
        """
        evaluator = self.holdout if request.holdout and self.holdout else self.evaluator
        kind = "holdout" if request.holdout else "evaluate"
        operation = Operation(
            key=f"{kind}/{request.attempt}/{request.iteration}", attempt=request.attempt, iteration=request.iteration
        )
        if (found := await context.store.find(operation.key)) is not None:
            return Feedback.model_validate(found)
        for delay in (*self.retry_delays, None):
            try:
                with span(
                    "evaluate", evaluator=type(evaluator).__name__, kind=kind
                ):  # not its name: that holds the address
                    return await self._once(evaluator, request, context, operation)
            except EvaluatorFailed as failure:
                if delay is None or not failure.transient:
                    raise
                why = str(failure)
            retried = EvaluationRetried(attempt=request.attempt, number=request.iteration, why=why)
            await context.store.append(retried)
            await self.sleep(delay)
        raise AssertionError("unreachable: the last try returns or raises")

    async def keep(self, context: EvaluatorContext, first: Decimal) -> Decimal:
        """USD to leave free so that one more candidate can be scored: the dearest evaluation so far, or `first`."""
        store = context.store
        seen = max(await store.dearest("judge"), *self._dearest.values(), ZERO)
        return max(seen, first, self.evaluator.max_cost_usd + (self.holdout.max_cost_usd if self.holdout else ZERO))

    async def _once(
        self, evaluator: Evaluator, request: EvaluationRequest, context: EvaluatorContext, operation: Operation
    ) -> Feedback:
        """Evaluate once: alone until an evaluator that declares no cost has shown what it costs."""
        if evaluator.max_cost_usd or evaluator.name in self._heard:
            return await self._evaluate(evaluator, request, context, operation)
        async with self._first.setdefault(evaluator.name, asyncio.Lock()):
            if evaluator.name not in self._heard:
                return await self._evaluate(evaluator, request, context, operation)
        return await self._evaluate(evaluator, request, context, operation)

    async def _evaluate(
        self, evaluator: Evaluator, request: EvaluationRequest, context: EvaluatorContext, operation: Operation
    ) -> Feedback:
        store = context.store
        spender = Spender(role="evaluator", attempt=request.attempt, iteration=request.iteration)
        most = max(evaluator.max_cost_usd, self._dearest.get(evaluator.name, ZERO))
        reservation = await store.reserve(spender, evaluator.name, most) if most else None
        # Until the evaluator says otherwise it may have spent all that it could.
        cost, why = most, "the evaluator did not say what it cost"
        basis: Basis = "reserved"
        result: JsonValue = None
        try:
            feedback = await evaluator.evaluate(request, context)
            result = feedback.model_dump(mode="json")
            if feedback.cost_usd is not None:
                cost, basis, why = feedback.cost_usd, "reported", ""
            return feedback
        except EvaluatorFailed as failure:
            if failure.cost_usd is not None:
                cost, basis, why = failure.cost_usd, "reported", ""
            raise
        except BudgetExceeded:
            cost, basis, why = ZERO, "released", "it was not sent"
            raise
        finally:

            async def book() -> None:
                charges: list[Charge] = []
                if result is not None or basis == "reported":
                    self._heard.add(evaluator.name)
                if cost or reservation:
                    self._dearest[evaluator.name] = max(self._dearest.get(evaluator.name, ZERO), cost)
                    held = reservation or await store.reserve(spender, evaluator.name, ZERO)
                    charges = [Charge(reservation=held, amount=cost, basis=basis, why=why)]
                if charges or result is not None:
                    await store.settle(charges, operation=operation if result is not None else None, result=result)

            await whatever_happens(book())
