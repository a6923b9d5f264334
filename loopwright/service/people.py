"""Users of the workspace: who they are, what they may do, and what they may spend in a month."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from uuid import UUID

from ..core.caller import Caller, Door, UserRole
from ..core.errors import Conflict, InvalidInput, NotAllowed, NotFound, Problem
from ..core.money import show_usd
from ..core.records import Month, Profile
from ..store import activity, profiles, workspace
from ..store.database import Database


async def caller_of(database: Database, user_id: str, door: Door) -> Caller | None:
    """A user as a caller; `None` if there is no such user in the workspace."""
    async with database.as_user(user_id) as connection:
        profile = await profiles.get_profile(connection, user_id)
    return Caller(user_id=user_id, role=profile.role, door=door) if profile else None


async def list_people(database: Database, caller: Caller) -> Sequence[Profile]:
    """The users of the workspace."""
    async with database.as_user(caller.user_id) as connection:
        return await profiles.list_profiles(connection)


async def get_person(database: Database, caller: Caller, user_id: UUID) -> Profile:
    """A user of the workspace.

    Raises:
        NotFound: there is no such user.
    """
    async with database.as_user(caller.user_id) as connection:
        if profile := await profiles.get_profile(connection, str(user_id)):
            return profile
    raise NotFound


async def set_monthly_cap(database: Database, caller: Caller, user_id: UUID, cap: Decimal | None) -> Profile:
    """Set what a user's runs may spend in a calendar month. For admins.

    Raises:
        NotAllowed: the caller is no admin.
        NotFound: there is no such user.
    """
    if not caller.is_admin:
        raise NotAllowed("only an admin sets what users may spend")
    async with database.as_service() as connection:
        profile = await profiles.set_monthly_cap(connection, str(user_id), cap)
    if profile is None:
        raise NotFound
    async with database.as_user(caller.user_id) as connection:
        detail = None if cap is None else f"{cap:f}"
        await activity.note(connection, caller.door, "monthly_cap_set", f"user:{user_id}", cap_usd=detail)
    return profile


async def set_own_cap(database: Database, caller: Caller, user_id: UUID, cap: Decimal | None) -> Profile:
    """Set what the caller allows the own runs in a calendar month: less than an admin does, never more.

    An admin's cap that is lowered afterwards holds, too: of both the lower one.

    Raises:
        NotAllowed: the user is another one.
        InvalidInput: it is above what an admin set.
        NotFound: the caller is not of the workspace.
    """
    if str(user_id) != caller.user_id:
        raise NotAllowed("only the user sets `own_cap_usd`; an admin sets `monthly_cap_usd`")
    async with database.as_user(caller.user_id) as connection:
        profile = await profiles.get_profile(connection, caller.user_id)
        if profile is None:
            raise NotFound
        most = profile.monthly_cap_usd
        if most is None:
            most = (await workspace.get_settings(connection)).monthly_cap_usd
        if cap is not None and most is not None and cap > most:
            message = f"is above the {show_usd(most)} that an admin set; choose at most that"
            raise InvalidInput(Problem(field="own_cap_usd", message=message))
        changed = await profiles.set_own_cap(connection, caller.user_id, cap)
        if changed is None:
            raise NotFound
        detail = None if cap is None else f"{cap:f}"
        await activity.note(connection, caller.door, "own_cap_set", f"user:{caller.user_id}", cap_usd=detail)
    return changed


async def set_role(database: Database, caller: Caller, user_id: UUID, role: UserRole) -> Profile:
    """Make a user an admin, or a member again. For admins.

    Raises:
        NotAllowed: the caller is no admin.
        NotFound: there is no such user.
        Conflict: it is the last admin.
    """
    if not caller.is_admin:
        raise NotAllowed("only an admin says who is one")
    async with database.as_user(caller.user_id) as connection:
        outcome = await profiles.set_role(connection, str(user_id), role)
        if outcome == "last":
            raise Conflict("this is the last admin; make somebody else an admin first")
        profile = await profiles.get_profile(connection, str(user_id))
        if outcome != "ok" or profile is None:
            raise NotFound
        await activity.note(connection, caller.door, "role_set", f"user:{user_id}", role=role)
    return profile


async def months(database: Database, caller: Caller) -> Sequence[Month]:
    """What the caller spent this month, or for an admin what everybody did."""
    async with database.as_user(caller.user_id) as connection:
        return await profiles.months(connection)
