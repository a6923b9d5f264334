"""When a schedule is due: a cron expression on the clock of a zone, by the library that DBOS's scheduler uses.

Where the clock is put forward, a time that doesn't exist comes at the moment of the jump. Where it is put back, an hour
comes twice: what is due by the hour (`*` for the hours) is due in both, what is due at a set hour in the first only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from croniter import CroniterError, croniter

from ..core.errors import InvalidInput, Problem, Problems

MOST_MISSED = 100
"""How many due times are made up for after a downtime, at most: the last ones."""

_FIELD = re.compile(r"[0-9*/,\-?#a-z]+", re.IGNORECASE)
_WINDOWS = (timedelta(hours=2), timedelta(days=5), timedelta(days=120), timedelta(days=3660))


@dataclass(frozen=True)
class Cron:
    """Due times."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def of(cls, expression: str, zone: str) -> Cron:
        """Read an expression and a zone.

        Raises:
            InvalidInput: one of them is none; nothing would ever be due.
        """
        problems = Problems()
        found: ZoneInfo | None = None
        with problems.collecting():
            found = _zone(zone)
        with problems.collecting():
            _check(expression)
        problems.refuse()
        assert found is not None  # noqa: S101 - else there was a problem
        return cls(expression, found)

    @classmethod
    def stored(cls, expression: str, zone: str) -> Cron:
        """What was checked when it was stored."""
        return cls(expression, _zone(zone))

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Due times after a moment, in UTC; ends where nothing is due any more."""
        moment = moment.astimezone(UTC)
        times = croniter(self.expression, moment.astimezone(self.zone), second_at_beginning=True)
        while True:
            try:
                due = times.get_next(datetime)
            except CroniterError:
                return
            if due.astimezone(UTC) > moment and not self._comes_again(due):
                yield due.astimezone(UTC)

    def next_after(self, moment: datetime) -> datetime | None:
        """The first due time after a moment."""
        return next(self.after(moment), None)

    def between(self, first: datetime, last: datetime) -> list[datetime]:
        """Due times in [first, last]: the last ones, one more than `MOST_MISSED` where there are more."""
        found: list[datetime] = []
        for window in _WINDOWS:
            start = max(first, last - window)
            found = []
            for due in self.after(start - timedelta(microseconds=1)):
                if due > last:
                    break
                found.append(due)
            if start == first or len(found) > MOST_MISSED:
                break
        return found[-(MOST_MISSED + 1) :]

    def _comes_again(self, due: datetime) -> bool:
        """Whether a set hour comes for the second time, since the clock was put back."""
        hour = (
            "*" if self.expression == "@hourly" else "0" if self.expression[0] == "@" else self.expression.split()[-4]
        )
        return bool(due.fold) and not hour.startswith("*")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"{name[:64]!r} is no time zone; take a name such as Europe/London or UTC"
        raise InvalidInput(Problem(field="zone", message=message)) from None


def _check(expression: str) -> None:
    way_out = "write five fields such as `30 9 * * 1-5`: minute, hour, day of the month, month, day of the week"
    fields = expression.split(" ")
    alias = expression.startswith("@") and len(fields) == 1
    if len(expression) > 200 or not (alias or (len(fields) == 5 and all(map(_FIELD.fullmatch, fields)))):
        raise InvalidInput(Problem(field="cron", message=f"is no cron expression of five fields; {way_out}"))
    if any(field[:1].lower() in ("h", "r") for field in fields):
        raise InvalidInput(Problem(field="cron", message=f"has a field that is chosen by chance; {way_out}"))
    try:
        croniter(expression, datetime(2026, 1, 1, tzinfo=UTC), second_at_beginning=True).get_next(datetime)
    except (CroniterError, ValueError) as error:
        raise InvalidInput(Problem(field="cron", message=f"can't be used: {str(error)[:200]}; {way_out}")) from None
