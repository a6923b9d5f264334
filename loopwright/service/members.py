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
    """Make a user a member with this role, or give a member this role. On a plain Postgres the user is made, too.

    Raises:
        InvalidInput: there is no such user in the Supabase project, or this is no address.
    """
    if "@" not in email:
        raise InvalidInput(Problem(field="EMAIL", message=f"{email} is no mail address"))
    user_id = await profiles.user_of_email(connection, email) or await profiles.make_user(connection, email)
    if user_id is None:
        message = f"there is no user {email} yet; invite this address in the Supabase project, then come back"
        raise InvalidInput(Problem(field="EMAIL", message=message))
    return await profiles.put_member(connection, user_id, role)


async def remove_member(connection: Connection, email: str) -> None:
    """Take a user out of the workspace, at once. What the user made stays.

    Raises:
        InvalidInput: there is no such user, or it is no member.
    """
    user_id = await profiles.user_of_email(connection, email)
    if user_id is None or not await profiles.remove_member(connection, user_id):
        raise InvalidInput(Problem(field="EMAIL", message=f"{email} is no member"))
