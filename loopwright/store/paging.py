"""Lists by pages: newest first, each beginning after the last row of the one before, so that new rows shift nothing."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

from ..core.errors import InvalidInput, Problem
from ..core.records import Page

LAST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_CURSOR = re.compile(r"[A-Za-z0-9_-]{1,160}")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Row(Protocol):
    """What a list is ordered by."""

    @property
    def id(self) -> object:
        """What tells rows of one moment apart."""
        ...

    @property
    def created_at(self) -> datetime:
        """What comes first."""
        ...


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Place:
    """A row's place in a list: pages begin after it. The first page begins at the end of time."""

    at: str = "infinity"
    id: str = LAST_UUID

    def encode(self) -> str:
        """The place as an opaque text for URLs."""
        return base64.urlsafe_b64encode(f"1|{self.at}|{self.id}".encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, *, uuids: bool = True) -> Place:
    """The place that a cursor stands for.

    Raises:
        InvalidInput: it is not one that a list gave out.
    """
    if cursor is None:
        return Place()
    wrong = InvalidInput(Problem(field="cursor", message="take `next_cursor` of the page before, or leave it out"))
    if not _CURSOR.fullmatch(cursor):
        raise wrong
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        version, at, row_id = text.split("|")
        when = datetime.fromisoformat(at)
        if uuids:
            row_id = str(UUID(row_id))
    except (ValueError, binascii.Error):
        raise wrong from None
    place = Place(when.isoformat(), row_id)
    if version != "1" or when.tzinfo is None or not _ID.fullmatch(row_id) or place.encode() != cursor:
        raise wrong
    return place


def page(rows: Sequence[R], limit: int) -> Page[R]:
    """A page of rows, of which one more than the limit was read."""
    shown = rows[:limit]
    last = shown[-1] if len(rows) > limit else None
    return Page(items=shown, next_cursor=Place(last.created_at.isoformat(), str(last.id)).encode() if last else None)
