"""Stored endpoints, and what they are told: messages, attempts, what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.records import Delivery, DeliveryAttempt, DeliveryDetails, DeliveryState, Endpoint
from .database import Connection
from .paging import Place
from .secrets import Sealed

_COLUMNS: LiteralString = (
    "id, owner_id, name, url, events, loop_id, scope, active, notice, old_until, version, created_at, updated_at"
)

KEPT_DAYS = 30
"""How long what was told is remembered."""


async def list_endpoints(connection: Connection, place: Place, limit: int) -> list[Endpoint]:
    """The endpoints that the caller may see, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Endpoint))
    await cursor.execute(
        f"select {_COLUMNS} from public.endpoints where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "order by created_at desc, id desc limit %s",
        (place.at, place.id, limit + 1),
    )
    return await cursor.fetchall()


async def get_endpoint(connection: Connection, endpoint_id: UUID) -> Endpoint | None:
    """An endpoint, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Endpoint))
    await cursor.execute(f"select {_COLUMNS} from public.endpoints where id = %s", (endpoint_id,))
    return await cursor.fetchone()


async def count_endpoints(connection: Connection, owner_id: str) -> int:
    """How many endpoints somebody has."""
    rows = await connection.execute("select count(*) from public.endpoints where owner_id = %s", (owner_id,))
    row = await rows.fetchone()
    return int(row[0]) if row else 0


_INSERT: LiteralString = f"""
insert into public.endpoints (id, name, url, events, loop_id, scope, active, nonce, sealed, key_id)
values (%(id)s, %(name)s, %(url)s, %(events)s, %(loop_id)s, %(scope)s, %(active)s, %(nonce)s, %(sealed)s, %(key_id)s)
returning {_COLUMNS}
"""

_UPDATE: LiteralString = f"""
update public.endpoints set name = %(name)s, url = %(url)s, events = %(events)s, loop_id = %(loop_id)s,
  scope = %(scope)s, active = %(active)s, notice = case when %(active)s then '' else notice end
where id = %(id)s and version = %(version)s
returning {_COLUMNS}
"""


async def insert_endpoint(
    connection: Connection, endpoint_id: UUID, values: dict[str, Any], secret: Sealed
) -> Endpoint | None:
    """Store an endpoint of the caller's."""
    cursor = connection.cursor(row_factory=class_row(Endpoint))
    sealed = {"nonce": secret.nonce, "sealed": secret.sealed, "key_id": secret.key_id}
    await cursor.execute(_INSERT, {**values, **sealed, "id": endpoint_id})
    return await cursor.fetchone()


async def update_endpoint(connection: Connection, endpoint: Endpoint, values: dict[str, Any]) -> Endpoint | None:
    """Change one that still has the version that was read; `None` if it hasn't, or isn't the caller's to change."""
    cursor = connection.cursor(row_factory=class_row(Endpoint))
    await cursor.execute(_UPDATE, {**values, "id": endpoint.id, "version": endpoint.version})
    return await cursor.fetchone()


async def renew_secret(connection: Connection, endpoint_id: UUID, secret: Sealed, *, old_seconds: int) -> None:
    """Give an endpoint another secret; the one before it holds for so many seconds."""
    await connection.execute(
        "select private.renew_endpoint_secret(%s, %s, %s, %s, %s)",
        (endpoint_id, secret.nonce, secret.sealed, secret.key_id, old_seconds),
    )


async def delete_endpoint(connection: Connection, endpoint: Endpoint) -> bool:
    """Delete an endpoint; false if it isn't the caller's to delete, or has another version by now."""
    cursor = await connection.execute(
        "delete from public.endpoints where id = %s and version = %s", (endpoint.id, endpoint.version)
    )
    return cursor.rowcount == 1


# --- what was told ---

_DELIVERY: LiteralString = """
d.id, d.endpoint_id, d.event, d.run_id, d.state, d.attempts, d.next_at, d.created_at,
(select to_jsonb(a) - 'delivery_id' from public.delivery_attempts a where a.delivery_id = d.id
 order by a.number desc limit 1) as last
"""


async def list_deliveries(
    connection: Connection, endpoint_id: UUID, place: Place, limit: int, state: DeliveryState | None = None
) -> list[Delivery]:
    """What an endpoint was told, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Delivery))
    await cursor.execute(
        f"select {_DELIVERY} from public.deliveries d where d.endpoint_id = %s "
        "and (d.created_at, d.id) < (%s::timestamptz, %s::uuid) and (%s::text is null or d.state = %s) "
        "order by d.created_at desc, d.id desc limit %s",
        (endpoint_id, place.at, place.id, state, state, limit + 1),
    )
    return await cursor.fetchall()


async def get_delivery(connection: Connection, endpoint_id: UUID, delivery_id: UUID) -> DeliveryDetails | None:
    """Something that an endpoint was told, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(DeliveryDetails))
    await cursor.execute(
        f"""
        select {_DELIVERY}, d.payload, coalesce((
          select jsonb_agg(to_jsonb(a) - 'delivery_id' order by a.number)
          from public.delivery_attempts a where a.delivery_id = d.id), '[]') as log
        from public.deliveries d where d.endpoint_id = %s and d.id = %s
        """,
        (endpoint_id, delivery_id),
    )
    return await cursor.fetchone()


async def send_test(connection: Connection, endpoint_id: UUID) -> UUID | None:
    """Have a test sent to an endpoint that the caller may change; `None` if it may not, or it is off."""
    row = await (await connection.execute("select private.send_test(%s)", (endpoint_id,))).fetchone()
    return row[0] if row else None


async def send_again(connection: Connection, delivery_id: UUID) -> bool:
    """Have something sent again; false if it isn't the caller's, or its endpoint is off."""
    row = await (await connection.execute("select private.send_again(%s)", (delivery_id,))).fetchone()
    return bool(row and row[0])


# --- for the sender itself ---


@dataclass(frozen=True)
class Due:
    """Something that is to be sent now."""

    id: UUID
    endpoint_id: UUID
    owner_id: UUID
    """Whose endpoint it is."""
    event: str
    payload: str
    attempts: int
    """The number of this attempt."""
    tries: int
    """Which attempt of the plan this is, from 1."""
    url: str
    nonce: bytes
    sealed: bytes
    key_id: str
    old_nonce: bytes | None
    old_sealed: bytes | None
    old_key_id: str | None

    @property
    def message_id(self) -> str:
        """Its `webhook-id`."""
        return f"msg_{self.id.hex}"

    @property
    def place(self) -> str:
        """What its secrets are bound to."""
        return place_of(self.endpoint_id)

    def secrets(self) -> list[Sealed]:
        """What it is signed with: the secret, and the one before it while that holds."""
        found = [Sealed(self.place, self.nonce, self.sealed, self.key_id)]
        if self.old_nonce and self.old_sealed and self.old_key_id:
            found.append(Sealed(self.place, self.old_nonce, self.old_sealed, self.old_key_id))
        return found


def place_of(endpoint_id: UUID) -> str:
    """What an endpoint's secrets are bound to."""
    return f"endpoint:{endpoint_id}"


async def take_due(
    connection: Connection, *, room: int, each: int, busy: Sequence[UUID], lease_seconds: float
) -> list[Due]:
    """Take what is due: for this process alone, until it is settled or the lease ends.

    Args:
        connection: of the service.
        room: how many at most.
        each: how many at most of one endpoint.
        busy: endpoints that are passed over.
        lease_seconds: after how long others may take what was not settled.
    """
    cursor = connection.cursor(row_factory=class_row(Due))
    await cursor.execute(
        """
        with due as (
          select d.id from (
            select distinct w.endpoint_id from public.deliveries w where w.state = 'waiting' and w.next_at <= now()) w
          join public.endpoints e on e.id = w.endpoint_id
            and e.active and e.id <> all(%(busy)s::uuid[]) and private.may_listen(e.owner_id, e.scope)
          cross join lateral (
            select x.id from public.deliveries x
            where x.endpoint_id = e.id and x.state = 'waiting' and x.next_at <= now()
              and (x.taken_until is null or x.taken_until <= now())
            order by x.next_at, x.id limit %(each)s for update skip locked) d
          limit %(room)s)
        update public.deliveries d
        set attempts = d.attempts + 1, tries = d.tries + 1, taken_until = now() + make_interval(secs => %(lease)s)
        from due, public.endpoints e
        where d.id = due.id and e.id = d.endpoint_id
        returning d.id, d.endpoint_id, e.owner_id, d.event, d.payload, d.attempts, d.tries, e.url, e.nonce, e.sealed,
          e.key_id,
          case when e.old_until > now() then e.old_nonce end as old_nonce,
          case when e.old_until > now() then e.old_sealed end as old_sealed,
          case when e.old_until > now() then e.old_key_id end as old_key_id
        """,
        {"room": room, "each": each, "busy": list(busy), "lease": lease_seconds},
    )
    return await cursor.fetchall()


async def settle(
    connection: Connection, due: Due, attempt: DeliveryAttempt, state: DeliveryState, again_in: float | None
) -> None:
    """Write down how an attempt ended, and what comes next. One that others have taken meanwhile is only logged."""
    async with connection.transaction():
        await connection.execute(
            "insert into public.delivery_attempts (delivery_id, number, at, seconds, status, answer, error) "
            "select %s, %s, %s, %s, %s, %s, %s where exists (select from public.deliveries where id = %s) "
            "on conflict do nothing",
            (
                due.id, attempt.number, attempt.at, attempt.seconds, attempt.status, attempt.answer, attempt.error,
                due.id,
            ),
        )  # fmt: skip
        # Somebody may have asked for it again meanwhile: then it is due, and stays so.
        await connection.execute(
            """
            update public.deliveries set
              taken_until = null,
              state = case when tries >= %(tries)s then %(state)s else state end,
              next_at = case when tries >= %(tries)s then now() + make_interval(secs => %(again)s) else next_at end
            where id = %(id)s and attempts = %(number)s
            """,
            {"tries": due.tries, "state": state, "again": again_in, "id": due.id, "number": attempt.number},
        )


async def reached_since(connection: Connection, due: Due) -> bool:
    """Whether anything has reached an endpoint since the first attempt of this message's plan."""
    rows = await connection.execute(
        """
        select exists (
          select from public.deliveries d join public.delivery_attempts a on a.delivery_id = d.id
          where d.endpoint_id = %(endpoint)s and a.status between 200 and 299 and a.at >= (
            select min(f.at) from public.delivery_attempts f
            where f.delivery_id = %(id)s and f.number > %(before)s))
        """,
        {"endpoint": due.endpoint_id, "id": due.id, "before": due.attempts - due.tries},
    )
    row = await rows.fetchone()
    return bool(row and row[0])


async def switch_off(connection: Connection, due: Due, why: str) -> None:
    """Switch an endpoint off, and write down why."""
    async with connection.transaction():
        rows = await connection.execute(
            "update public.endpoints set active = false, notice = %s where id = %s and active returning name",
            (why, due.endpoint_id),
        )
        if row := await rows.fetchone():
            await connection.execute(
                "insert into public.activity_log (user_id, door, action, subject, detail) "
                "values (%s, 'webhook', 'endpoint_disabled', %s, %s)",
                (due.owner_id, f"endpoint:{due.endpoint_id}", Jsonb({"name": row[0], "reason": why})),
            )


async def forget_old(connection: Connection) -> None:
    """Forget what was told long ago."""
    await connection.execute(
        "delete from public.deliveries where created_at < now() - make_interval(days => %s)", (KEPT_DAYS,)
    )
