"""Who did what, when, through which door."""

from __future__ import annotations

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.records import Activity, Page
from ..store.activity import list_activity as read
from ..store.database import Database


async def list_activity(database: Database, caller: Caller, *, cursor: str | None, limit: int) -> Page[Activity]:
    """What the caller did, or for an admin what everybody did; newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidInput(Problem(field="cursor", message="take `next_cursor` of the page before, or leave it out"))
    async with database.as_user(caller.user_id) as connection:
        found = await read(connection, before=int(cursor) if cursor else None, limit=limit + 1)
    shown = found[:limit]
    return Page(items=shown, next_cursor=str(shown[-1].id) if len(found) > limit else None)
