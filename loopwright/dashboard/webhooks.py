"""Webhooks: addresses that others send messages to, and what came of the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.records import Webhook, WebhookMessage
from ..service import webhooks as service
from ..service.runtime import Runtime
from ..service.start import Wanted
from ..service.webhooks import WebhookChange
from .deps import Cursor, Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong
from .render import Context, page
from .targets import Names, target_key, target_of, targets_of, wrong_of_target
from .text import one_line

router = APIRouter(prefix="/webhooks", route_class=PageRoute)

FIELDS = ("name", "target", "goal", "budget_usd", "allow_tools", "per_minute", "active")


@dataclass(frozen=True, kw_only=True)
class WebhooksContext(Context):
    """The list, and the form of a new one."""

    webhooks: Sequence[Webhook]
    next_cursor: str | None
    targets: Names
    names: dict[str, str]
    values: Fields
    key: str
    wrong: Wrong = field(default_factory=dict[str, str])


async def _list(
    request: Request,
    rt: Runtime,
    me: Caller,
    cursor: str | None = None,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    found = await service.list_webhooks(rt, me, cursor=cursor, limit=50)
    targets = await targets_of(rt, me)
    context = WebhooksContext(
        title="Webhooks",
        nav="/settings",
        webhooks=found.items,
        next_cursor=found.next_cursor,
        targets=targets,
        names=dict(targets),
        values=values or Fields({"active": ["yes"], "per_minute": ["60"]}),
        key=new_key(),
        wrong=wrong or {},
    )
    return page(request, "webhooks.html", context, 422 if wrong else 200)


@router.get("")
async def show_all(request: Request, rt: Rt, me: Me, cursor: Cursor = None) -> Response:
    """The caller's webhooks; for an admin, everybody's."""
    return await _list(request, rt, me, cursor)


@router.post("")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new webhook; its secret is on the page that answers, and on no other."""
    try:
        made = await service.create_webhook(rt, me, change_of(form), once(form))
    except InvalidInput as error:
        return await _list(request, rt, me, values=form, wrong=wrong_of_target(error, FIELDS))
    return await _page(request, rt, me, made.id, secret=made.secret)


@dataclass(frozen=True, kw_only=True)
class WebhookContext(Context):
    """The page of a webhook."""

    webhook: Webhook
    target: str
    address: str
    secret: str | None
    """Shown once."""
    messages: Sequence[WebhookMessage]
    values: Fields
    targets: Names
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request,
    rt: Runtime,
    me: Caller,
    webhook_id: UUID,
    *,
    secret: str | None = None,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    webhook = await service.get_webhook(rt, me, webhook_id)
    targets = await targets_of(rt, me)
    key = target_key(webhook.loop_id, webhook.agent_id)
    context = WebhookContext(
        title=one_line(webhook.name, 60),
        nav="/settings",
        webhook=webhook,
        target=dict(targets).get(key, "something that you can't see"),
        address=f"{str(request.base_url).rstrip('/')}/hooks/{webhook.id}",
        secret=secret,
        messages=await service.list_messages(rt, me, webhook_id),
        values=values or _typed(webhook, key),
        targets=targets,
        wrong=wrong or {},
    )
    return page(request, "webhook.html", context, 422 if wrong else 200)


def _typed(webhook: Webhook, target: str) -> Fields:
    flags = {name: ["yes"] if getattr(webhook, name) else [] for name in ("allow_tools", "active")}
    wanted = {name: [str(webhook.wanted.get(name, ""))] for name in ("goal", "budget_usd")}
    rate = {"per_minute": [str(webhook.per_minute)]}
    return Fields({"name": [webhook.name], "target": [target], **flags, **wanted, **rate})


@router.get("/{webhook_id}")
async def show(request: Request, rt: Rt, me: Me, webhook_id: UUID) -> Response:
    """A webhook."""
    return await _page(request, rt, me, webhook_id)


@router.post("/{webhook_id}")
async def save(request: Request, rt: Rt, me: Me, webhook_id: UUID, form: Form) -> Response:
    """Change a webhook."""
    try:
        await service.change_webhook(rt, me, webhook_id, form.whole("version") or 0, change_of(form))
    except InvalidInput as error:
        return await _page(request, rt, me, webhook_id, values=form, wrong=wrong_of_target(error, FIELDS))
    return RedirectResponse(f"/webhooks/{webhook_id}?note=saved", 303)


@router.post("/{webhook_id}/secret")
async def renew(request: Request, rt: Rt, me: Me, webhook_id: UUID) -> Response:
    """Give it another secret, shown on the page that answers."""
    renewed = await service.renew_secret(rt, me, webhook_id)
    return await _page(request, rt, me, webhook_id, secret=renewed.secret)


@router.post("/{webhook_id}/delete")
async def delete(rt: Rt, me: Me, webhook_id: UUID, form: Form) -> Response:
    """Delete a webhook."""
    await service.delete_webhook(rt, me, webhook_id, form.whole("version") or 0)
    return RedirectResponse("/webhooks?note=deleted", 303)


def change_of(form: Fields) -> WebhookChange:
    """The webhook that was typed.

    Raises:
        InvalidInput: a field can't be read.
    """
    loop_id, agent_id = target_of(form)
    change = WebhookChange(
        name=form.short("name")[:200],
        loop_id=loop_id,
        agent_id=agent_id,
        wanted=Wanted(goal=form.text("goal").strip() or None, budget_usd=form.money("budget_usd")),
        allow_tools=form.flag("allow_tools"),
        per_minute=form.whole("per_minute", most=6000),
        active=form.flag("active"),
    )
    if not change.name:
        form.problems.found.append(Problem(field="name", message="is missing"))
    form.refuse()
    return change
