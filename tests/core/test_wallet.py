"""The wallet's promise, under every order of reserve and settle."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from loopwright.core.errors import BudgetExceeded
from loopwright.core.wallet import Wallet

MONEY = st.decimals(min_value=0, max_value=10, places=6, allow_nan=False, allow_infinity=False)


class WalletMachine(RuleBasedStateMachine):
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.wallet = Wallet(cap=Decimal("7.5"))
        self.settled = Decimal(0)
        self.open: list[Decimal] = []

    @rule(target=held, amount=MONEY, keep=MONEY)
    def reserve(self, amount: Decimal, keep: Decimal) -> Decimal | None:
        before = self.wallet
        try:
            self.wallet = before.reserve(amount, keep=keep)
        except BudgetExceeded as refused:
            assert before.spent + before.reserved + amount + keep > Decimal("7.5")
            assert refused.needed == amount
            return None
        self.open.append(amount)
        return amount

    @rule(amount=consumes(held), share=st.decimals(min_value=0, max_value=1, places=3))
    def settle(self, amount: Decimal | None, share: Decimal) -> None:
        if amount is None:
            return
        self.wallet = self.wallet.settle(amount, amount * share)
        self.open.remove(amount)
        self.settled += amount * share

    @rule(amount=consumes(held))
    def release(self, amount: Decimal | None) -> None:
        if amount is None:
            return
        self.wallet = self.wallet.settle(amount, Decimal(0))
        self.open.remove(amount)

    @invariant()
    def never_over(self) -> None:
        wallet = self.wallet
        assert wallet.spent >= 0
        assert wallet.reserved >= 0
        assert wallet.spent + wallet.reserved <= Decimal("7.5")
        assert wallet.spent == self.settled
        assert wallet.reserved == sum(self.open)
        assert wallet.overrun == 0


TestWallet = WalletMachine.TestCase


def test_an_overrun_is_booked_in_full_and_counted() -> None:
    wallet = Wallet(cap=Decimal(1)).reserve(Decimal("0.9")).settle(Decimal("0.9"), Decimal("1.2"))
    assert (wallet.spent, wallet.reserved, wallet.overrun, wallet.free) == (Decimal("1.2"), 0, Decimal("0.3"), 0)


@given(MONEY)
def test_a_wallet_without_a_cap_counts_all_the_same(amount: Decimal) -> None:
    wallet = Wallet().reserve(amount).settle(amount, amount)
    assert (wallet.spent, wallet.reserved, wallet.free, wallet.used) == (amount, 0, None, 0.0)


@pytest.mark.parametrize("amount", ["-0.01", "NaN", "Infinity", "-Infinity"])
def test_what_is_not_an_amount_is_refused(amount: str) -> None:
    with pytest.raises(ValueError, match="can't reserve"):
        Wallet(cap=Decimal(1)).reserve(Decimal(amount))
    with pytest.raises(ValueError, match="can't settle"):
        Wallet(cap=Decimal(1)).settle(Decimal(0), Decimal(amount))


def test_more_than_is_reserved_can_not_be_settled() -> None:
    with pytest.raises(ValueError, match=r"0\.1 is reserved"):
        Wallet(cap=Decimal(1)).reserve(Decimal("0.1")).settle(Decimal("0.2"), Decimal("0.1"))
