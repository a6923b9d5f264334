"""Money is `Decimal` US dollars, never float."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

LARGEST, SMALLEST = 12, -18
"""Powers of ten that an amount's first digit may have, in USD: `1e999999999` is one digit that takes a gigabyte to
write out."""
ZERO_USD = Decimal(0)


def usd(value: object) -> Decimal:
    """Read an amount of US dollars from a number or a string such as `"0.50"` or `"$0.50"`.

    A float is read by its shortest decimal form, so `0.1` is ten cents and not 0.1000000000000000055.

    Raises:
        ValueError: not a finite, non-negative amount, or one too large or too small to be money.
    """
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float | str):
        raise ValueError("must be an amount of US dollars such as 0.50")
    try:
        amount = value if isinstance(value, Decimal) else Decimal(str(value).strip().removeprefix("$"))
    except InvalidOperation:
        raise ValueError(f"{value!r} is not an amount of US dollars; write it like 0.50") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError("must be a finite amount of US dollars, zero or more")
    if amount and not SMALLEST <= amount.adjusted() <= LARGEST:
        size = "large" if amount > 1 else "small"
        raise ValueError(f"is too {size} to be an amount of US dollars; it must be from 1e{SMALLEST} to 9.99e{LARGEST}")
    return abs(amount) if amount else ZERO_USD


def show_usd(amount: Decimal) -> str:
    """Show an amount to people: `$1.20`, `$0.3125`, and three significant digits below a cent (`$0.000123`)."""
    if amount == amount.quantize(Decimal("0.01")):
        return f"${amount:.2f}"
    digits = 4 if abs(amount) >= Decimal("0.01") else 2 - amount.adjusted()
    shown = f"{amount:.{digits}f}".rstrip("0")
    return f"${shown}" if len(shown.partition(".")[2]) >= 2 else f"${amount:.2f}"


Usd = Annotated[Decimal, BeforeValidator(usd), PlainSerializer(lambda v: f"{v:f}", return_type=str, when_used="json")]
"""A pydantic field of US dollars: read by `usd`, written to JSON as a string so that no digit is lost."""
