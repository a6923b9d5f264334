"""Endpoints: addresses elsewhere that are told when runs end, and what came of each message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, Problem
from ..core.records import Delivery, DeliveryDetails, Endpoint
from ..service import endpoints as service
from ..service.endpoints import EndpointChange
from ..service.overview import loop_names
from ..service.runtime import Runtime
from .deps import Cursor, Form, Me, Rt, new_key, once
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .targets import Names
from .text import one_line

router = APIRouter(prefix="/endpoints", route_class=PageRoute)

FIELDS = ("name", "url", "loop", "scope", "active")


@dataclass(frozen=True, kw_only=True)
class EndpointsContext(Context):
    """The list, and the form of a new one."""

    endpoints: Sequence[Endpoint]
    next_cursor: str | None
    loops: Names
    names: dict[str, str]
    values: Fields
    key: str
    is_admin: bool
    wrong: Wrong = field(default_factory=dict[str, str])


async def _list(
    request: Request,
    rt: Runtime,
    me: Caller,
    cursor: str | None = None,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    found = await service.list_endpoints(rt, me, cursor=cursor, limit=50)
    loops = await _loops_of(rt, me)
    context = EndpointsContext(
        title="Endpoints",
        nav="/settings",
        endpoints=found.items,
        next_cursor=found.next_cursor,
        loops=loops,
        names=dict(loops),
        values=values or Fields({"active": ["yes"]}),
        key=new_key(),
        is_admin=me.is_admin,
        wrong=wrong or {},
    )
    return page(request, "endpoints.html", context, 422 if wrong else 200)


async def _loops_of(rt: Runtime, me: Caller) -> Names:
    """The loops of whose runs an endpoint can be told, behind all of them."""
    found = [(str(key), one_line(name, 80)) for key, name in await loop_names(rt.database, me)]
    return [("", "all loops"), *found]


@router.get("")
async def show_all(request: Request, rt: Rt, me: Me, cursor: Cursor = None) -> Response:
    """The caller's endpoints; for an admin, everybody's."""
    return await _list(request, rt, me, cursor)


@router.post("")
async def create(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a new endpoint; its secret is on the page that answers, and on no other."""
    try:
        made = await service.create_endpoint(rt, me, change_of(form), once(form))
    except InvalidInput as error:
        return await _list(request, rt, me, values=form, wrong=_wrong(error))
    return await _page(request, rt, me, made.id, secret=made.secret)


@dataclass(frozen=True, kw_only=True)
class EndpointContext(Context):
    """The page of an endpoint."""

    endpoint: Endpoint
    about: str
    """Of what it is told."""
    secret: str | None
    """Shown once."""
    deliveries: Sequence[Delivery]
    next_cursor: str | None
    loops: Names
    values: Fields
    is_admin: bool
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request,
    rt: Runtime,
    me: Caller,
    endpoint_id: UUID,
    *,
    cursor: str | None = None,
    secret: str | None = None,
    values: Fields | None = None,
    wrong: Wrong | None = None,
) -> Response:
    endpoint = await service.get_endpoint(rt, me, endpoint_id)
    log = await service.list_deliveries(rt, me, endpoint_id, cursor=cursor, limit=25)
    loops = await _loops_of(rt, me)
    context = EndpointContext(
        title=one_line(endpoint.name, 60),
        nav="/settings",
        endpoint=endpoint,
        about=_about(endpoint, dict(loops)),
        secret=secret,
        deliveries=log.items,
        next_cursor=log.next_cursor,
        loops=loops,
        values=values or _typed(endpoint),
        is_admin=me.is_admin,
        wrong=wrong or {},
    )
    return page(request, "endpoint.html", context, 422 if wrong else 200)


def _about(endpoint: Endpoint, names: dict[str, str]) -> str:
    whose = "everybody's runs" if endpoint.scope == "workspace" else "its owner's runs"
    if endpoint.loop_id is None:
        return whose
    return f"{whose} of {names.get(str(endpoint.loop_id), 'a loop that you can not see')}"


def _typed(endpoint: Endpoint) -> Fields:
    return Fields(
        {
            "name": [endpoint.name],
            "url": [endpoint.url],
            "loop": [str(endpoint.loop_id or "")],
            "scope": [endpoint.scope],
            "active": ["yes"] if endpoint.active else [],
        }
    )


@router.get("/{endpoint_id}")
async def show(request: Request, rt: Rt, me: Me, endpoint_id: UUID, cursor: Cursor = None) -> Response:
    """An endpoint, with what it was told."""
    return await _page(request, rt, me, endpoint_id, cursor=cursor)


@router.post("/{endpoint_id}")
async def save(request: Request, rt: Rt, me: Me, endpoint_id: UUID, form: Form) -> Response:
    """Change an endpoint."""
    try:
        await service.change_endpoint(rt, me, endpoint_id, form.whole("version") or 0, change_of(form))
    except InvalidInput as error:
        return await _page(request, rt, me, endpoint_id, values=form, wrong=_wrong(error))
    return RedirectResponse(f"/endpoints/{endpoint_id}?note=saved", 303)


@router.post("/{endpoint_id}/secret")
async def renew(request: Request, rt: Rt, me: Me, endpoint_id: UUID) -> Response:
    """Give it another secret, shown on the page that answers."""
    renewed = await service.renew_secret(rt, me, endpoint_id)
    return await _page(request, rt, me, endpoint_id, secret=renewed.secret)


@router.post("/{endpoint_id}/test")
async def send_test(rt: Rt, me: Me, endpoint_id: UUID) -> Response:
    """Send it a test."""
    await service.send_test(rt, me, endpoint_id)
    return RedirectResponse(f"/endpoints/{endpoint_id}?note=sent", 303)


@router.post("/{endpoint_id}/delete")
async def delete(rt: Rt, me: Me, endpoint_id: UUID, form: Form) -> Response:
    """Delete an endpoint."""
    await service.delete_endpoint(rt, me, endpoint_id, form.whole("version") or 0)
    return RedirectResponse("/endpoints?note=deleted", 303)


@dataclass(frozen=True, kw_only=True)
class DeliveryContext(Context):
    """The page of a message."""

    delivery: DeliveryDetails
    body: str
    """What it says, laid out."""


@router.get("/{endpoint_id}/deliveries/{delivery_id}")
async def show_delivery(request: Request, rt: Rt, me: Me, endpoint_id: UUID, delivery_id: UUID) -> Response:
    """A message, with all attempts."""
    delivery = await service.get_delivery(rt, me, endpoint_id, delivery_id)
    body = json.dumps(json.loads(delivery.payload), indent=2, ensure_ascii=False)
    context = DeliveryContext(title="Message", nav="/settings", delivery=delivery, body=body)
    return page(request, "delivery.html", context)


@router.post("/{endpoint_id}/deliveries/{delivery_id}/again")
async def send_again(rt: Rt, me: Me, endpoint_id: UUID, delivery_id: UUID) -> Response:
    """Send it again."""
    await service.send_again(rt, me, endpoint_id, delivery_id)
    return RedirectResponse(f"/endpoints/{endpoint_id}/deliveries/{delivery_id}?note=sent", 303)


def change_of(form: Fields) -> EndpointChange:
    """The endpoint that was typed.

    Raises:
        InvalidInput: a field can't be read.
    """
    change = EndpointChange(
        name=form.short("name")[:200],
        url=form.short("url")[:2000],
        loop_id=_loop_of(form),
        every_loop=not form.short("loop"),
        scope="workspace" if form.short("scope") == "workspace" else "own",
        active=form.flag("active"),
    )
    if not change.name:
        form.problems.found.append(Problem(field="name", message="is missing"))
    form.refuse()
    return change


def _loop_of(form: Fields) -> UUID | None:
    typed = form.short("loop")
    try:
        return UUID(typed) if typed else None
    except ValueError:
        form.problems.found.append(Problem(field="loop", message="choose one of the loops"))
        return None


def _wrong(error: InvalidInput) -> dict[str, str]:
    named = [Problem(field=each.field.replace("loop_id", "loop"), message=each.message) for each in error.problems]
    return wrong_of(InvalidInput(*named), FIELDS)
