"""The wallet: cap, spent, reserved. A request is reserved before it is sent and settled after."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, ConfigDict

from .errors import BudgetExceeded
from .money import Usd

Role = Literal["agent", "subagent", "judge", "evaluator", "guardrail", "compaction", "run"]
"""Who spent the money: the breakdown of a run's cost. `run` is a run that the agent started by `start_loop`."""

LEAF_ROLES: frozenset[Role] = frozenset({"agent", "subagent", "judge", "guardrail", "compaction"})
"""Roles whose reservations are worth waiting for: as a rule they settle without waiting for another one. An evaluator's
is held while its judge reserves, so whoever waited for it could wait for ever. There are exceptions, such as a stream
that is open while a tool of it asks another agent; therefore stores wait only so long while nothing settles."""

LONGEST_WAIT = 120.0
"""Seconds that a reservation waits while nothing settles. Then it is refused, for what it waits for may itself wait: a
tool that asks an agent while the stream that called it is open."""

Basis = Literal["usage", "reserved", "reported", "released"]
"""How a charge was found: from the response's usage; the whole reservation, because the usage can't be known;
a figure that an evaluator reported; or nothing, because the request surely cost nothing."""

ZERO = Decimal(0)


class Tokens(BaseModel):
    """Tokens of one or more requests. `cached` and `cache_write` are parts of `input`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            cache_write=self.cache_write + other.cache_write,
        )


class Reservation(BaseModel):
    """Money set aside for one paid request that is about to be sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    amount: Usd
    role: Role
    model: str
    attempt: int = 1
    iteration: int = 0


class Charge(BaseModel):
    """What one reserved request came to."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    reservation: Reservation
    amount: Usd
    basis: Basis
    tokens: Tokens = Tokens()
    why: str = ""
    """For a charge that isn't from usage: what happened."""

    @property
    def overrun(self) -> Decimal:
        """By how much the request cost more than was reserved, in USD. Anything but 0 is a bug in the bound."""
        return max(ZERO, self.amount - self.reservation.amount)


@dataclass(frozen=True, kw_only=True)
class Wallet:
    """A run's money in USD. Every change returns a new wallet.

    `spent + reserved <= cap` holds in any order of reserve and settle as long as no request costs more than was
    reserved for it; one that does is booked in full and counted in `overrun`, never hidden.
    """

    cap: Decimal | None = None
    """The budget; `None` where the loop has none."""
    spent: Decimal = ZERO
    reserved: Decimal = ZERO
    overrun: Decimal = ZERO

    @property
    def free(self) -> Decimal | None:
        """What may still be reserved; `None` without a cap, never negative."""
        return None if self.cap is None else max(ZERO, self.cap - self.spent - self.reserved)

    @property
    def used(self) -> float:
        """Share of the cap that is spent, 0.0 to 1.0 (more after an overrun); 0.0 without a cap."""
        return float(self.spent / self.cap) if self.cap else 0.0

    def fits(self, amount: Decimal, *, keep: Decimal = ZERO) -> bool:
        """Whether `amount` can be reserved while `keep` stays free."""
        return self.free is None or amount + keep <= self.free

    def reserve(self, amount: Decimal, *, keep: Decimal = ZERO) -> Wallet:
        """Set `amount` aside.

        Raises:
            BudgetExceeded: it does not fit; the wallet is unchanged.
            ValueError: a negative or non-finite amount.
        """
        if not amount.is_finite() or amount < 0:
            raise ValueError(f"can't reserve {amount}")
        if not self.fits(amount, keep=keep):
            raise BudgetExceeded(needed=amount, available=(self.free or ZERO) - keep, keep=keep)
        return replace(self, reserved=self.reserved + amount)

    def settle(self, reserved: Decimal, actual: Decimal) -> Wallet:
        """Turn a reservation of `reserved` into `actual` spent; 0 releases it.

        Raises:
            ValueError: a negative or non-finite amount, or more than is reserved.
        """
        if not actual.is_finite() or actual < 0:
            raise ValueError(f"can't settle {actual}")
        if reserved < 0 or reserved > self.reserved:
            raise ValueError(f"can't settle a reservation of {reserved}: {self.reserved} is reserved")
        return replace(
            self,
            spent=self.spent + actual,
            reserved=self.reserved - reserved,
            overrun=self.overrun + max(ZERO, actual - reserved),
        )
