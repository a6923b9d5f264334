"""What was paid, by context, loop, model, user or day."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.records import Usage
from ..store.database import Database
from ..store.usage import GroupBy, sum_usage

__all__ = ["GroupBy", "as_csv", "usage"]

COLUMNS = ("group", "label", "cost_usd", "requests", "input_tokens", "output_tokens", "cached_tokens")


async def usage(
    database: Database,
    caller: Caller,
    group_by: GroupBy,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Sequence[Usage]:
    """What the caller's runs cost, or for an admin everybody's, in [since, until).

    Raises:
        InvalidInput: a time without a zone, or the end is before the beginning.
    """
    for field, time in (("since", since), ("until", until)):
        if time is not None and time.tzinfo is None:
            raise InvalidInput(Problem(field=field, message="needs a time zone, such as 2026-12-01T00:00:00Z"))
    if since and until and until < since:
        raise InvalidInput(Problem(field="until", message="is before `since`"))
    async with database.as_user(caller.user_id) as connection:
        return await sum_usage(connection, group_by, since, until)


def as_csv(rows: Sequence[Usage]) -> str:
    """The same as a table for spreadsheets."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(COLUMNS)
    for row in rows:
        table.writerow([_cell(value) for value in row.model_dump(mode="json").values()])
    return out.getvalue()


def _cell(value: object) -> object:
    """A text that a spreadsheet would take for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
