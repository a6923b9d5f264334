"""What was paid, by any grouping that a page offers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from ..core.caller import Caller
from ..core.records import Usage
from ..store import views
from ..store.database import Database
from .usage import usage

By = Literal["day", "context", "loop", "model", "role", "user"]


async def spending(database: Database, caller: Caller, by: By, *, since: datetime | None = None) -> Sequence[Usage]:
    """What the caller's runs cost since a time, or for an admin everybody's."""
    if by != "role":
        return await usage(database, caller, by, since=since)
    async with database.as_user(caller.user_id) as connection:
        return await views.usage_by_role(connection, since, None)
