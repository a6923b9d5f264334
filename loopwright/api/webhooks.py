"""Routes of webhooks, and the address that messages from elsewhere are sent to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request, Response

from ..core.records import Page, Webhook, WebhookMessage, WebhookWithSecret
from ..service import webhooks as service
from ..service.start import Started, Wanted
from ..service.webhooks import WebhookChange
from .bodies import NewWebhook, WebhookPatch
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])
hooks = APIRouter(prefix="/hooks", tags=["webhooks"])


@router.get("", responses=problems())
async def list_webhooks(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Webhook]:
    """Your webhooks, newest first; for an admin, everybody's."""
    return await service.list_webhooks(rt, me, cursor=cursor, limit=limit)


@router.post("", status_code=201, responses=problems(409))
async def create_webhook(rt: Rt, me: Me, once: OnceKey, body: NewWebhook, response: Response) -> WebhookWithSecret:
    """Store a webhook. Its secret is in this answer and never shown again."""
    webhook = await service.create_webhook(rt, me, _change(body), once)
    tagged(response, webhook)
    return webhook


@router.get("/{webhook_id}", responses=problems(404))
async def get_webhook(rt: Rt, me: Me, webhook_id: UUID, response: Response) -> Webhook:
    """A webhook, without its secret."""
    webhook = await service.get_webhook(rt, me, webhook_id)
    tagged(response, webhook)
    return webhook


@router.patch("/{webhook_id}", responses=problems(404, 409, 412, 428))
async def change_webhook(
    rt: Rt, me: Me, webhook_id: UUID, version: Version, body: WebhookPatch, response: Response
) -> Webhook:
    """Change a webhook."""
    webhook = await service.change_webhook(rt, me, webhook_id, version, _change(body))
    tagged(response, webhook)
    return webhook


@router.post("/{webhook_id}/secret", responses=problems(404, 412))
async def renew_secret(rt: Rt, me: Me, webhook_id: UUID, response: Response) -> WebhookWithSecret:
    """Give it another secret, which is in this answer and never shown again. The old one ends at once."""
    webhook = await service.renew_secret(rt, me, webhook_id)
    tagged(response, webhook)
    return webhook


@router.delete("/{webhook_id}", status_code=204, responses=problems(404, 412))
async def delete_webhook(rt: Rt, me: Me, webhook_id: UUID, version: VersionOrAny) -> None:
    """Delete a webhook. Runs that it started go on."""
    await service.delete_webhook(rt, me, webhook_id, version)


@router.get("/{webhook_id}/messages", responses=problems(404))
async def list_messages(rt: Rt, me: Me, webhook_id: UUID) -> Sequence[WebhookMessage]:
    """The last 50 messages that started a run, newest first."""
    return await service.list_messages(rt, me, webhook_id)


@hooks.post("/{webhook_id}", status_code=202, include_in_schema=False)
async def receive(rt: Rt, webhook_id: UUID, request: Request) -> Started:
    """Take a message that is signed as Standard Webhooks says."""
    return await service.receive(rt, webhook_id, request.headers, await request.body())


def _change(body: NewWebhook | WebhookPatch) -> WebhookChange:
    given: dict[str, Any] = dict(body)
    given["wanted"] = None if body.wanted is None else Wanted(**dict(body.wanted))
    return WebhookChange(**given)
