"""Stored webhooks, and the messages that came through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, LiteralString
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.records import Webhook, WebhookMessage
from .database import Connection
from .paging import Place
from .secrets import Sealed

_COLUMNS: LiteralString = (
    "id, owner_id, name, loop_id, agent_id, wanted, allow_tools, per_minute, active, version, created_at, updated_at"
)

KEPT_DAYS = 7
"""How long messages are remembered; their signatures are refused after minutes."""


async def list_webhooks(connection: Connection, place: Place, limit: int) -> list[Webhook]:
    """The webhooks that the caller may see, newest first; one more than `limit`."""
    cursor = connection.cursor(row_factory=class_row(Webhook))
    await cursor.execute(
        f"select {_COLUMNS} from public.webhooks where (created_at, id) < (%s::timestamptz, %s::uuid) "
        "order by created_at desc, id desc limit %s",
        (place.at, place.id, limit + 1),
    )
    return await cursor.fetchall()


async def get_webhook(connection: Connection, webhook_id: UUID) -> Webhook | None:
    """A webhook, if the caller may see it."""
    cursor = connection.cursor(row_factory=class_row(Webhook))
    await cursor.execute(f"select {_COLUMNS} from public.webhooks where id = %s", (webhook_id,))
    return await cursor.fetchone()


async def sealed_of(connection: Connection, webhook_id: UUID, name: str) -> Sealed | None:
    """A webhook's sealed secret. For the service itself."""
    cursor = connection.cursor(row_factory=class_row(Sealed))
    await cursor.execute(
        "select %s as name, nonce, sealed, key_id from public.webhooks where id = %s", (name, webhook_id)
    )
    return await cursor.fetchone()


_INSERT: LiteralString = f"""
insert into public.webhooks
  (id, name, loop_id, agent_id, wanted, allow_tools, per_minute, active, nonce, sealed, key_id)
values (%(id)s, %(name)s, %(loop_id)s, %(agent_id)s, %(wanted)s, %(allow_tools)s, %(per_minute)s, %(active)s,
  %(nonce)s, %(sealed)s, %(key_id)s)
returning {_COLUMNS}
"""

_UPDATE: LiteralString = f"""
update public.webhooks set name = %(name)s, loop_id = %(loop_id)s, agent_id = %(agent_id)s, wanted = %(wanted)s,
  allow_tools = %(allow_tools)s, per_minute = %(per_minute)s, active = %(active)s
where id = %(id)s and version = %(version)s
returning {_COLUMNS}
"""


async def insert_webhook(
    connection: Connection, webhook_id: UUID, values: dict[str, Any], secret: Sealed
) -> Webhook | None:
    """Store a webhook of the caller's."""
    cursor = connection.cursor(row_factory=class_row(Webhook))
    given = {"nonce": secret.nonce, "sealed": secret.sealed, "key_id": secret.key_id, "id": webhook_id}
    await cursor.execute(_INSERT, {**values, **given, "wanted": Jsonb(values["wanted"])})
    return await cursor.fetchone()


async def update_webhook(connection: Connection, webhook: Webhook, values: dict[str, Any]) -> Webhook | None:
    """Change one that still has the version that was read; `None` if it hasn't, or isn't the caller's to change."""
    cursor = connection.cursor(row_factory=class_row(Webhook))
    found = {**values, "wanted": Jsonb(values["wanted"]), "id": webhook.id, "version": webhook.version}
    await cursor.execute(_UPDATE, found)
    return await cursor.fetchone()


async def set_secret(connection: Connection, webhook: Webhook, secret: Sealed) -> Webhook | None:
    """Give a webhook another secret."""
    cursor = connection.cursor(row_factory=class_row(Webhook))
    await cursor.execute(
        f"update public.webhooks set nonce = %s, sealed = %s, key_id = %s where id = %s returning {_COLUMNS}",
        (secret.nonce, secret.sealed, secret.key_id, webhook.id),
    )
    return await cursor.fetchone()


async def delete_webhook(connection: Connection, webhook: Webhook) -> bool:
    """Delete a webhook; false if it isn't the caller's to delete, or has another version by now."""
    cursor = await connection.execute(
        "delete from public.webhooks where id = %s and version = %s", (webhook.id, webhook.version)
    )
    return cursor.rowcount == 1


async def claim_message(connection: Connection, webhook_id: UUID, message_id: str, run_id: str) -> bool:
    """Take a message for the run that it starts; waits for another one that is about to. False if it came before."""
    cursor = await connection.execute(
        "insert into public.webhook_messages (webhook_id, message_id, run_id) values (%s, %s, %s) "
        "on conflict do nothing",
        (webhook_id, message_id, run_id),
    )
    return cursor.rowcount == 1


async def came_before(connection: Connection, webhook_id: UUID, message_id: str) -> bool:
    """Whether a message came already. For the service itself; old ones are forgotten."""
    await connection.execute(
        "delete from public.webhook_messages where webhook_id = %s and received_at < now() - make_interval(days => %s)",
        (webhook_id, KEPT_DAYS),
    )
    rows = await connection.execute(
        "select 1 from public.webhook_messages where webhook_id = %s and message_id = %s", (webhook_id, message_id)
    )
    return await rows.fetchone() is not None


async def take_room(connection: Connection, webhook: Webhook) -> float:
    """Take room for one message; 0, or in how many seconds there is room again. For the service itself."""
    rows = await connection.execute("select private.take_room(%s, %s)", (webhook.id, webhook.per_minute))
    row = await rows.fetchone()
    return float(row[0]) if row else 0.0


async def list_messages(connection: Connection, webhook_id: UUID, limit: int) -> Sequence[WebhookMessage]:
    """The last messages, newest first."""
    cursor = connection.cursor(row_factory=class_row(WebhookMessage))
    await cursor.execute(
        "select message_id, run_id, received_at from public.webhook_messages where webhook_id = %s "
        "order by received_at desc limit %s",
        (webhook_id, limit),
    )
    return await cursor.fetchall()
