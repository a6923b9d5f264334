"""Running totals of what a run spent, by iteration and by role."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal

from ..core.models import Cost
from ..core.wallet import ZERO, Charge, Role, Tokens


class _Tally:
    """Totals; `Cost` is their frozen form."""

    def __init__(self) -> None:
        self.by_role: dict[Role, Decimal] = defaultdict(Decimal)
        self.tokens = Tokens()
        self.requests = 0

    def add(self, role: Role, amount: Decimal, tokens: Tokens, requests: int) -> None:
        self.by_role[role] += amount
        self.tokens += tokens
        self.requests += requests

    def cost(self) -> Cost:
        roles: dict[Role, Decimal] = {role: amount for role, amount in self.by_role.items() if amount}
        return Cost(total=sum(roles.values(), ZERO), by_role=roles, tokens=self.tokens, requests=self.requests)


class Tallies:
    """What a run spent: in all, and by each iteration of each attempt."""

    def __init__(self) -> None:
        self._total = _Tally()
        self._iterations: dict[tuple[int, int], _Tally] = defaultdict(_Tally)

    def add(self, charge: Charge) -> None:
        """Count a charge."""
        to = charge.reservation
        sent = int(charge.basis != "released" and to.role != "evaluator")
        self.add_sum(to.attempt, to.iteration, to.role, charge.amount, charge.tokens, requests=sent)

    def add_sum(
        self, attempt: int, iteration: int, role: Role, amount: Decimal, tokens: Tokens, *, requests: int
    ) -> None:
        """Count several charges of one role at once."""
        self._total.add(role, amount, tokens, requests)
        self._iterations[attempt, iteration].add(role, amount, tokens, requests)

    def cost(self, attempt: int | None = None, iteration: int | None = None) -> Cost:
        """The run's cost, or that of one iteration."""
        if attempt is None or iteration is None:
            return self._total.cost()
        tally = self._iterations.get((attempt, iteration))
        return tally.cost() if tally else Cost()
