"""Amounts of US dollars: what is one and what is not."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pydantic import ValidationError

from loopwright.core.errors import InvalidInput
from loopwright.core.money import usd
from loopwright.core.spec import HttpEvaluator, Price
from loopwright.core.stop import Budget


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("0.50", "0.50"),
        (" $0.5", "0.5"),
        (0.1, "0.1"),
        (3, "3"),
        ("1e-18", "1e-18"),
        ("9.99e12", "9.99e12"),
        ("0", "0"),
        ("-0", "0"),
        ("0e-300000000", "0"),
        ("0e999999999", "0"),
    ],
)
def test_an_amount(value: object, amount: str) -> None:
    assert usd(value) == Decimal(amount)
    assert len(f"{usd(value):f}") < 25


@pytest.mark.parametrize("value", ["1e999999999", "1e13", Decimal("1e20"), 10**20, 1e300])
def test_too_large_to_be_money(value: object) -> None:
    with pytest.raises(ValueError, match="too large"):
        usd(value)


@pytest.mark.parametrize("value", ["1e-300000000", "9.9e-19", Decimal("1e-30"), 5e-324])
def test_too_small_to_be_money(value: object) -> None:
    with pytest.raises(ValueError, match="too small"):
        usd(value)


@pytest.mark.parametrize("value", ["1e999999999", "1e-300000000"])
def test_budgets_prices_and_declared_costs_are_such_amounts(value: str) -> None:
    with pytest.raises(InvalidInput, match="to be an amount of US dollars"):
        Budget(value)
    with pytest.raises(ValidationError, match="to be an amount of US dollars"):
        Price.model_validate({"input": value, "output": 1})
    with pytest.raises(ValidationError, match="to be an amount of US dollars"):
        HttpEvaluator.model_validate({"kind": "http", "url": "http://a", "max_cost_usd": value})
