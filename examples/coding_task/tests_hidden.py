"""Tests that the agent never hears of: the same task, other cases."""

import pytest
from solution import parse_duration  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("10H", 36000), ("1h1s", 3601), ("5m 5s", 305), ("120", 120), (" 7m ", 420)]
)
def test_reads(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", [" ", "h", "1h2h", "5s5m", "1.5h", "-1s"])
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)
