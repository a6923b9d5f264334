"""What editing agents, tools and loops has in common: versions, and whose things they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..core.caller import Caller
from ..core.errors import Conflict, NotAllowed, NotFound, VersionStale
from ..core.records import Editable

V = TypeVar("V", bound=Editable)

ANY_VERSION = 0
"""`If-Match: *`: whatever the version is."""


def editable(found: V | None, caller: Caller, version: int) -> V:
    """What was found, if the caller may change it and has read its version.

    Raises:
        NotFound: nothing that the caller may see.
        NotAllowed: it is somebody else's.
        VersionStale: it was changed meanwhile.
    """
    if found is None:
        raise NotFound
    if found.owner_id is None:
        raise NotAllowed("this comes with Loopwright and can't be changed")
    if str(found.owner_id) != caller.user_id and not caller.is_admin:
        raise NotAllowed("this is shared with you to use; only its owner or an admin changes it")
    if version not in (ANY_VERSION, found.version):
        raise VersionStale
    return found


def written(row: V | None) -> V:
    """The row after a change.

    Raises:
        VersionStale: it was changed at the same time.
    """
    if row is None:
        raise VersionStale
    return row


def refuse_in_use(what: str, users: Sequence[str]) -> None:
    """Refuse to delete what is used.

    Raises:
        Conflict: names who uses it.
    """
    if users:
        names = ", ".join(repr(name) for name in users)
        raise Conflict(f"the {what} is used by {names}; give those another one first, or delete them")
