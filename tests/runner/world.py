"""A scripted world for the loop: an agent, an evaluator and a journal that a test can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from decimal import Decimal

from loopwright.core.errors import EvaluatorFailed
from loopwright.core.models import Candidate, EvaluationRequest, Feedback, Prompt, Turn
from loopwright.core.ports import EvaluatorContext, Spender, TurnContext
from loopwright.core.wallet import Charge


class ScriptedAgent:
    """Gives one candidate after the other; the last is repeated. Each turn costs `cost` USD, reserved as `worst`."""

    def __init__(
        self,
        replies: Sequence[str | Turn | Exception] = ("a",),
        *,
        cost: str = "0.01",
        worst: str | None = None,
        on_turn: Callable[[int], None] | None = None,
        hang_at: int | None = None,
    ) -> None:
        self.replies = replies
        self.cost, self.worst = Decimal(cost), Decimal(worst or cost)
        self.on_turn = on_turn
        self.hang_at = hang_at
        self.prompts: list[Prompt] = []

    async def take_turn(self, prompt: Prompt, context: TurnContext) -> Turn:
        self.prompts.append(prompt)
        spender = Spender(role="agent", attempt=context.attempt, iteration=context.number)
        reservation = await context.store.reserve(spender, "scripted", self.worst, keep=context.keep)
        cost = self.worst
        try:
            if self.on_turn:
                self.on_turn(context.number)
            if self.hang_at == context.number:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            cost = self.cost
        finally:
            charge = Charge(reservation=reservation, amount=cost, basis="usage" if cost == self.cost else "reserved")
            await context.store.settle([charge])
        reply = self.replies[min(context.number, len(self.replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, Turn) else Turn(candidate=Candidate(text=reply))

    def shown(self, iteration: int) -> str:
        """The whole prompt of an iteration (of a single attempt)."""
        return "\n".join(m.text for m in self.prompts[iteration - 1].messages)


class ScriptedEvaluator:
    """Gives one answer per call; the last is repeated. An answer is a score, a feedback or an error."""

    name = "scripted evaluator"

    def __init__(
        self,
        answers: Sequence[float | Feedback | EvaluatorFailed] = (0.5,),
        *,
        max_cost: str = "0",
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        self.answers = answers
        self.max_cost_usd = Decimal(max_cost)
        self.requests: list[EvaluationRequest] = []
        self.on_call = on_call

    async def evaluate(self, request: EvaluationRequest, context: EvaluatorContext) -> Feedback:
        self.requests.append(request)
        call = len(self.requests)
        await asyncio.sleep(0)
        if self.on_call:
            self.on_call(call)
        answer = self.answers[min(call, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Feedback) else Feedback(score=answer)


def done(text: str, reason: str = "good enough") -> Turn:
    return Turn(candidate=Candidate(text=text), done_reason=reason)
