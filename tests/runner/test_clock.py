"""The clock of a process."""

from __future__ import annotations

import time

import pytest

from loopwright.runner.clock import SteadyClock


def test_the_clock_goes_by_the_monotonic_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    start, mark = clock.now(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)  # somebody sets the clock back by decades
    monkeypatch.setattr(time, "monotonic", lambda: mark + 60)
    assert 55 < (clock.now() - start).total_seconds() < 65
