"""`loopwright members …`: who belongs to the workspace. Works on the database itself, as its owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..core.caller import UserRole
from .database import place_of
from .outcome import REACHED
from .service import guarded, settings_with
from .text import printable

if TYPE_CHECKING:
    from ..store.database import Connection


def list_members() -> int:
    """`loopwright members list`."""

    async def work(connection: Connection) -> None:
        from ..service.members import list_members

        for member in await list_members(connection):
            print(printable(f"{member.id}  {member.role:<7} {member.email}"))

    return _with_database(work)


def add(email: str, role: UserRole) -> int:
    """`loopwright members add`."""

    async def work(connection: Connection) -> None:
        from ..service.members import put_member

        member = await put_member(connection, email, role)
        print(printable(f"{member.email} is {'an admin' if member.role == 'admin' else 'a member'}"))

    return _with_database(work)


def remove(email: str) -> int:
    """`loopwright members remove`."""

    async def work(connection: Connection) -> None:
        from ..service.members import remove_member

        await remove_member(connection, email)
        print(printable(f"{email} is no member any more"))

    return _with_database(work)


def _with_database(work: Callable[[Connection], Awaitable[None]]) -> int:
    async def run() -> int:
        from ..service.database import as_owner

        with place_of(settings_with()) as place:
            async with as_owner(place.url) as connection:
                await work(connection)
        return REACHED

    return guarded(run)
