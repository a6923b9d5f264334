"""Tests whose results the agent is shown."""

import pytest
from solution import parse_duration  # pyright: ignore[reportMissingImports, reportUnknownVariableType]


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("2m", 120), ("2h", 7200), ("1h30m", 5400), ("1h 2m 3s", 3723), ("90", 90)]
)
def test_reads(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "abc", "1x", "30m1h"])
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)
