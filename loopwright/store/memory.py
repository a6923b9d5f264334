"""A run's record in memory. Postgres' twin: both pass the same contract suite."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import count

from pydantic import JsonValue

from ..core.errors import BudgetExceeded, StoreUnavailable
from ..core.events import BoundOverrun, IterationFinished, MoneyReserved, MoneySettled, RunEvent, TextDelta, WalletView
from ..core.models import Cost
from ..core.ports import Clock, Operation, Spender
from ..core.wallet import LEAF_ROLES, LONGEST_WAIT, ZERO, Charge, Reservation, Role, Wallet
from .tally import Tallies

Sink = Callable[[RunEvent], None]
"""Gets each event as it is recorded. One that raises `OSError` makes the store unavailable."""


class MemoryRunStore:
    """Holds one run's wallet, operations and cost; passes its events to sinks and keeps none of them.

    Args:
        run_id: the run.
        cap: the wallet's cap in USD, or `None`.
        clock: stamps the events.
        sinks: get each event, in order.
        longest_wait: seconds that a reservation waits while nothing settles.
    """

    def __init__(
        self,
        run_id: str,
        *,
        cap: Decimal | None,
        clock: Clock,
        sinks: Sequence[Sink] = (),
        longest_wait: float = LONGEST_WAIT,
    ) -> None:
        self.run_id = run_id
        self._clock = clock
        self._sinks = tuple(sinks)
        self._longest_wait = longest_wait
        self._wallet = Wallet(cap=cap)
        self._numbers = count(1)
        self._seq = 0
        self._settled = asyncio.Event()
        self._operations: dict[tuple[int, int], dict[str, JsonValue]] = {}
        self._in_flight = ZERO
        """Reserved by requests that settle without waiting for anything."""
        self._tallies = Tallies()
        self._dearest: dict[Role, Decimal] = defaultdict(Decimal)

    async def wallet(self) -> Wallet:
        """The run's wallet as it is now."""
        return self._wallet

    async def reserve(
        self, spender: Spender, model: str, amount: Decimal, *, keep: Decimal = Decimal(0)
    ) -> Reservation:
        """See `core.ports.RunStore.reserve`."""
        while not self._wallet.fits(amount, keep=keep):
            free = self._wallet.free or ZERO
            if self._in_flight == 0 or amount + keep > free + self._in_flight:
                raise BudgetExceeded(needed=amount, available=free - keep, keep=keep)
            # It would fit if what is in flight came to nothing: its real cost is known once it settles.
            self._settled.clear()
            try:
                async with asyncio.timeout(self._longest_wait):
                    await self._settled.wait()
            except TimeoutError:
                raise BudgetExceeded(needed=amount, available=free - keep, keep=keep) from None
        self._wallet = self._wallet.reserve(amount, keep=keep)
        self._in_flight += amount if spender.role in LEAF_ROLES else ZERO
        self._dearest[spender.role] = max(self._dearest[spender.role], amount)
        reservation = Reservation(
            id=f"{self.run_id}/r{next(self._numbers)}",
            amount=amount,
            role=spender.role,
            model=model,
            attempt=spender.attempt,
            iteration=spender.iteration,
        )
        self._record(MoneyReserved(reservation=reservation, wallet=self.view()))
        return reservation

    async def settle(
        self, charges: Sequence[Charge], *, operation: Operation | None = None, result: JsonValue = None
    ) -> None:
        """See `core.ports.RunStore.settle`."""
        for charge in charges:
            self._wallet = self._wallet.settle(charge.reservation.amount, charge.amount)
            self._in_flight -= charge.reservation.amount if charge.reservation.role in LEAF_ROLES else ZERO
            self._tallies.add(charge)
        if operation is not None:
            self._operations.setdefault((operation.attempt, operation.iteration), {})[operation.key] = result
        self._settled.set()
        for charge in charges:
            self._record(MoneySettled(charge=charge, wallet=self.view(), response=result))
            if charge.overrun:
                self._record(BoundOverrun(charge=charge, by_usd=charge.overrun))

    async def cost(self, attempt: int | None = None, iteration: int | None = None) -> Cost:
        """What was spent so far, by the run or by one iteration."""
        return self._tallies.cost(attempt, iteration)

    async def dearest(self, role: Role) -> Decimal:
        """The largest single reservation of this role so far, in USD."""
        return self._dearest[role]

    async def find(self, operation: str) -> JsonValue | None:
        """The recorded result of a finished operation, or `None`."""
        return next((found[operation] for found in self._operations.values() if operation in found), None)

    async def append(self, event: RunEvent) -> RunEvent:
        """Stamp an event and hand it to the sinks; text deltas pass unnumbered."""
        if isinstance(event, IterationFinished):  # it is never played again
            self._operations.pop((event.iteration.attempt, event.iteration.number), None)
        return self._record(event)

    def view(self) -> WalletView:
        """The wallet as events show it."""
        return WalletView(cap=self._wallet.cap, spent=self._wallet.spent, reserved=self._wallet.reserved)

    def _record(self, event: RunEvent) -> RunEvent:
        kept = not isinstance(event, TextDelta)
        self._seq += kept
        stamp = {"seq": self._seq if kept else 0, "at": self._clock.now(), "run_id": self.run_id}
        event = event.model_copy(update=stamp)
        try:
            for sink in self._sinks:
                sink(event)
        except OSError as error:
            raise StoreUnavailable(f"the run can't be recorded any more: {error}") from error
        return event
