"""Members as an operator sees them, who has the database: for the first admin, whom nobody else can make."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.caller import UserRole
from ..core.errors import InvalidInput, Problem
from ..store import profiles
from ..store.database import Connection
from ..store.profiles import Member


async def list_members(connection: Connection) -> Sequence[Member]:
    """The members of the workspace, by address."""
    return await profiles.list_members(connection)


async def put_member(connection: Connection, email: str, role: UserRole) -> Member:
    """Make a user a member with this role, or give a member this role.

    Raises:
        InvalidInput: there is no such user.
    """
    return await profiles.put_member(connection, await _user_id(connection, email), role)


async def remove_member(connection: Connection, email: str) -> None:
    """Take a user out of the workspace, at once. What the user made stays.

    Raises:
        InvalidInput: there is no such user, or it is no member.
    """
    if not await profiles.remove_member(connection, await _user_id(connection, email)):
        raise InvalidInput(Problem(field="EMAIL", message=f"{email} is no member"))


async def _user_id(connection: Connection, email: str) -> str:
    found = await profiles.user_of_email(connection, email)
    if found is None:
        message = f"there is no user {email} yet; invite this address in the Supabase project, then come back"
        raise InvalidInput(Problem(field="EMAIL", message=message))
    return found
