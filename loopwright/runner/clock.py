"""The clock of a process: it can't be set back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class SteadyClock:
    """Wall time at the start, advanced by the monotonic clock: setting the clock doesn't move a run's time."""

    def __init__(self) -> None:
        self._start = datetime.now(UTC)
        self._mark = time.monotonic()

    def now(self) -> datetime:
        """The time in UTC; never less than it was before."""
        return self._start + timedelta(seconds=time.monotonic() - self._mark)
