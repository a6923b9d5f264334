"""Users of the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import LiteralString
from uuid import UUID

from psycopg.rows import class_row

from ..core.caller import UserRole
from ..core.records import Month, Profile
from .database import Connection

_COLUMNS: LiteralString = "id, role, display_name, monthly_cap_usd, own_cap_usd, created_at"


async def get_profile(connection: Connection, user_id: str) -> Profile | None:
    """A user."""
    cursor = connection.cursor(row_factory=class_row(Profile))
    await cursor.execute(f"select {_COLUMNS} from public.profiles where id = %s", (user_id,))
    return await cursor.fetchone()


async def list_profiles(connection: Connection) -> list[Profile]:
    """All users of the workspace, by name."""
    cursor = connection.cursor(row_factory=class_row(Profile))
    await cursor.execute(f"select {_COLUMNS} from public.profiles order by display_name, id limit 1000")
    return await cursor.fetchall()


async def set_monthly_cap(connection: Connection, user_id: str, cap: Decimal | None) -> Profile | None:
    """Set what a user's runs may spend in a month. For the service itself."""
    cursor = connection.cursor(row_factory=class_row(Profile))
    await cursor.execute(
        f"update public.profiles set monthly_cap_usd = %s where id = %s returning {_COLUMNS}",
        (cap, user_id),
    )
    return await cursor.fetchone()


async def set_own_cap(connection: Connection, user_id: str, cap: Decimal | None) -> Profile | None:
    """Set what a user allows the own runs in a month, as that user; `None` if it is somebody else's."""
    cursor = connection.cursor(row_factory=class_row(Profile))
    await cursor.execute(
        f"update public.profiles set own_cap_usd = %s where id = %s returning {_COLUMNS}",
        (cap, user_id),
    )
    return await cursor.fetchone()


async def set_role(connection: Connection, user_id: str, role: UserRole) -> str:
    """Set a user's role, as an admin: `ok`, `none` for no such user, `last` where no admin would be left."""
    row = await (await connection.execute("select private.set_role(%s, %s)", (user_id, role))).fetchone()
    return str(row[0]) if row else "none"


async def months(connection: Connection) -> list[Month]:
    """What the users that the caller may see spent this month."""
    cursor = connection.cursor(row_factory=class_row(Month))
    await cursor.execute(
        """
        select p.id as owner_id, m.month,
          least(coalesce(p.monthly_cap_usd, w.monthly_cap_usd), p.own_cap_usd) as cap_usd,
          coalesce(s.spent_usd, 0) as spent_usd, coalesce(s.reserved_usd, 0) as reserved_usd
        from public.profiles p
        cross join (select date_trunc('month', now() at time zone 'utc')::date as month) m
        cross join public.workspace_settings w
        left join public.monthly_spend s on s.owner_id = p.id and s.month = m.month
        where p.id = (select auth.uid()) or (select private.is_admin())
        order by p.id limit 1000
        """
    )
    return await cursor.fetchall()


async def make_owner(connection: Connection, user_id: str, role: UserRole) -> None:
    """Make the one user of a local installation, unless it is there. For the owner of the database."""
    await connection.execute(
        "insert into auth.users (id, email) values (%s, 'owner@localhost') on conflict do nothing", (user_id,)
    )
    await connection.execute(
        "update public.profiles set role = %s, display_name = 'owner' where id = %s and role <> %s",
        (role, user_id, role),
    )


# --- for the owner of the database, outside row-level security ---


@dataclass(frozen=True)
class Member:
    """A member with the address by which people know it."""

    id: UUID
    email: str
    role: UserRole
    created_at: datetime


_MEMBER: LiteralString = "select u.id, coalesce(u.email, '') as email, p.role, p.created_at"


async def list_members(connection: Connection) -> list[Member]:
    """The members of the workspace, by address."""
    cursor = connection.cursor(row_factory=class_row(Member))
    await cursor.execute(f"{_MEMBER} from public.profiles p join auth.users u on u.id = p.id order by u.email")
    return await cursor.fetchall()


async def user_of_email(connection: Connection, email: str) -> str | None:
    """The user with an address, however it is written."""
    cursor = await connection.execute(
        "select id from auth.users where lower(email) = lower(%s) and deleted_at is null", (email,)
    )
    row = await cursor.fetchone()
    return str(row[0]) if row else None


async def make_user(connection: Connection, email: str) -> str | None:
    """Make a user, where that is ours to do; `None` on a Supabase project, which makes its users itself."""
    cursor = await connection.execute(
        "insert into auth.users (email) select %s "
        "where not exists (select from pg_roles where rolname = 'supabase_auth_admin') returning id",
        (email,),
    )
    row = await cursor.fetchone()
    return str(row[0]) if row else None


async def put_member(connection: Connection, user_id: str, role: UserRole) -> Member:
    """Make a user a member with this role."""
    cursor = connection.cursor(row_factory=class_row(Member))
    await cursor.execute(
        f"""
        with p as (
          insert into public.profiles (id, role, display_name)
          select id, %s, coalesce(split_part(email, '@', 1), '') from auth.users where id = %s
          on conflict (id) do update set role = excluded.role returning id, role, created_at)
        {_MEMBER} from p join auth.users u on u.id = p.id
        """,
        (role, user_id),
    )
    row = await cursor.fetchone()
    assert row  # noqa: S101 - the user was found in this transaction's database
    return row


async def remove_member(connection: Connection, user_id: str) -> bool:
    """Take a user out of the workspace, with all sign-ins; false if it was no member."""
    await connection.execute("delete from public.sign_ins where user_id = %s", (user_id,))
    return (await connection.execute("delete from public.profiles where id = %s", (user_id,))).rowcount == 1
