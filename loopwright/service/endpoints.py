"""Endpoints: looking at them and editing them, and what they were told. What sends is `delivering`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from ..core.caller import Caller
from ..core.errors import Conflict, EgressRefused, NotFound, Problem, Problems
from ..core.hosts import is_loopback
from ..core.records import (
    Delivery,
    DeliveryDetails,
    DeliveryState,
    Endpoint,
    EndpointWithSecret,
    EventName,
    Page,
    Scope,
)
from ..signatures import new_secret
from ..store import activity, loops
from ..store import endpoints as store
from ..store.database import Connection
from ..store.endpoints import place_of
from ..store.paging import page, read_cursor
from ..store.workspace import get_settings
from .changes import editable, written
from .checks import RESOLVE_SECONDS
from .once import Once, do_once, replayed
from .runtime import Runtime

if TYPE_CHECKING:
    from ..egress import EgressPolicy

MOST_ENDPOINTS = 50
"""How many somebody may have: each is told of each run, in the transaction that ends it."""

OLD_SECONDS = 24 * 3600
"""How long the secret before the present one holds."""

OFF = "it is switched off; switch it on first"


@dataclass(frozen=True, kw_only=True)
class EndpointChange:
    """An endpoint as it is to be; `None` leaves a part as it is."""

    name: str | None = None
    url: str | None = None
    events: Sequence[EventName] | None = None
    loop_id: UUID | None = None
    every_loop: bool = False
    """Whether it is told of runs of all loops again."""
    scope: Scope | None = None
    active: bool | None = None


async def list_endpoints(runtime: Runtime, caller: Caller, *, cursor: str | None, limit: int) -> Page[Endpoint]:
    """The caller's endpoints, or for an admin everybody's; newest first.

    Raises:
        InvalidInput: the cursor is none.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        return page(await store.list_endpoints(connection, read_cursor(cursor), limit), limit)


async def get_endpoint(runtime: Runtime, caller: Caller, endpoint_id: UUID) -> Endpoint:
    """An endpoint.

    Raises:
        NotFound: there is none that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if endpoint := await store.get_endpoint(connection, endpoint_id):
            return endpoint
    raise NotFound


async def create_endpoint(
    runtime: Runtime, caller: Caller, change: EndpointChange, once: Once | None = None
) -> EndpointWithSecret:
    """Store an endpoint. Its secret is in this answer and in no other, not even in a repeated one.

    Raises:
        InvalidInput: everything that is wrong with it.
        Conflict: the caller has too many.
    """
    if answer := await replayed(runtime.database, caller, once, Endpoint):
        return _showing(answer, None)
    standard: dict[str, Any] = {"events": ["run.finished"], "loop_id": None, "scope": "own", "active": True}
    values = standard | _given(change)
    await _check(runtime, caller, values)
    endpoint_id, secret = uuid4(), new_secret()
    sealed = runtime.vault.seal(caller.user_id, place_of(endpoint_id), secret)

    async def insert(connection: Connection) -> Endpoint:
        if await store.count_endpoints(connection, caller.user_id) >= MOST_ENDPOINTS:
            raise Conflict(f"you have {MOST_ENDPOINTS} endpoints already; delete one first")
        made = written(await store.insert_endpoint(connection, endpoint_id, values, sealed))
        await activity.note(connection, caller.door, "endpoint_created", f"endpoint:{made.id}", name=made.name)
        return made

    made, now = await do_once(runtime.database, caller, once, Endpoint, insert)
    return _showing(made, secret if now else None)


async def change_endpoint(
    runtime: Runtime, caller: Caller, endpoint_id: UUID, version: int, change: EndpointChange
) -> Endpoint:
    """Change an endpoint. What waits is sent to where it is then.

    Raises:
        NotFound: there is none that the caller may see.
        VersionStale: it was changed meanwhile.
        InvalidInput: everything that is wrong with the change.
    """
    endpoint = editable(await get_endpoint(runtime, caller, endpoint_id), caller, version)
    names = ("name", "url", "events", "loop_id", "scope", "active")
    values: dict[str, Any] = {name: getattr(endpoint, name) for name in names} | _given(change)
    await _check(runtime, caller, values)
    async with runtime.database.as_user(caller.user_id) as connection:
        changed = written(await store.update_endpoint(connection, endpoint, values))
        await activity.note(connection, caller.door, "endpoint_changed", f"endpoint:{endpoint_id}", name=changed.name)
    return changed


async def renew_secret(runtime: Runtime, caller: Caller, endpoint_id: UUID) -> EndpointWithSecret:
    """Give an endpoint another secret, which is in this answer and in no other. For a day messages are signed with the
    old one, too.

    Raises:
        NotFound: there is none that the caller may see.
    """
    endpoint = editable(await get_endpoint(runtime, caller, endpoint_id), caller, 0)
    secret = new_secret()
    sealed = runtime.vault.seal(str(endpoint.owner_id), place_of(endpoint_id), secret)
    async with runtime.database.as_user(caller.user_id) as connection:
        await store.renew_secret(connection, endpoint_id, sealed, old_seconds=OLD_SECONDS)
        changed = written(await store.get_endpoint(connection, endpoint_id))
        await activity.note(connection, caller.door, "endpoint_secret_renewed", f"endpoint:{endpoint_id}")
    return _showing(changed, secret)


async def delete_endpoint(runtime: Runtime, caller: Caller, endpoint_id: UUID, version: int) -> None:
    """Delete an endpoint, with what it was told; what waits is not sent any more.

    Raises:
        NotFound: there is none that the caller may see.
        VersionStale: it was changed meanwhile.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        endpoint = editable(await store.get_endpoint(connection, endpoint_id), caller, version)
        if not await store.delete_endpoint(connection, endpoint):
            written(None)
        await activity.note(connection, caller.door, "endpoint_deleted", f"endpoint:{endpoint_id}", name=endpoint.name)


# --- what it was told ---


async def list_deliveries(
    runtime: Runtime,
    caller: Caller,
    endpoint_id: UUID,
    *,
    cursor: str | None = None,
    limit: int = 50,
    state: DeliveryState | None = None,
) -> Page[Delivery]:
    """What an endpoint was told in the last 30 days, newest first.

    Raises:
        NotFound: there is no such endpoint that the caller may see.
        InvalidInput: the cursor is none.
    """
    place = read_cursor(cursor)
    await get_endpoint(runtime, caller, endpoint_id)
    async with runtime.database.as_user(caller.user_id) as connection:
        return page(await store.list_deliveries(connection, endpoint_id, place, limit, state), limit)


async def get_delivery(runtime: Runtime, caller: Caller, endpoint_id: UUID, delivery_id: UUID) -> DeliveryDetails:
    """Something that an endpoint was told, with all attempts.

    Raises:
        NotFound: there is nothing like it that the caller may see.
    """
    async with runtime.database.as_user(caller.user_id) as connection:
        if delivery := await store.get_delivery(connection, endpoint_id, delivery_id):
            return delivery
    raise NotFound


async def send_again(runtime: Runtime, caller: Caller, endpoint_id: UUID, delivery_id: UUID) -> DeliveryDetails:
    """Have something sent again, now, with the same id; where that fails, by the whole plan once more.

    Raises:
        NotFound: there is nothing like it that the caller may see.
        Conflict: its endpoint is off.
    """
    await get_delivery(runtime, caller, endpoint_id, delivery_id)
    async with runtime.database.as_user(caller.user_id) as connection:
        if not await store.send_again(connection, delivery_id):
            raise Conflict(OFF)
        await activity.note(connection, caller.door, "delivery_repeated", f"endpoint:{endpoint_id}")
    return await get_delivery(runtime, caller, endpoint_id, delivery_id)


async def send_test(runtime: Runtime, caller: Caller, endpoint_id: UUID) -> DeliveryDetails:
    """Have a test sent, once.

    Raises:
        NotFound: there is no such endpoint that the caller may see.
        Conflict: it is off.
    """
    editable(await get_endpoint(runtime, caller, endpoint_id), caller, 0)
    async with runtime.database.as_user(caller.user_id) as connection:
        made = await store.send_test(connection, endpoint_id)
        if made is None:
            raise Conflict(OFF)
        await activity.note(connection, caller.door, "endpoint_tested", f"endpoint:{endpoint_id}")
    return await get_delivery(runtime, caller, endpoint_id, made)


# --- where it may lie ---


async def policy_for(runtime: Runtime, url: str) -> EgressPolicy:
    """Where messages may go: the rules are those of tools.

    Raises:
        EgressRefused: it is no URL that can be sent to.
    """
    from ..egress import EgressPolicy, host_and_port  # heavy, and not needed to answer

    async with runtime.database.service_session() as connection:
        workspace = await get_settings(connection)
    named = host_and_port(url)
    loopback = runtime.settings.mode == "local" and is_loopback(named.rpartition(":")[0])
    own = frozenset({named}) if loopback else frozenset[str]()
    return EgressPolicy(allow_hosts=runtime.settings.egress_allow.union(workspace.allow_hosts, own))


async def _check(runtime: Runtime, caller: Caller, values: dict[str, Any]) -> None:
    """Refuse what could not work.

    Raises:
        InvalidInput: all of it.
    """
    problems = Problems()
    if refusal := await _refusal(runtime, values.get("url") or ""):
        problems.found.append(Problem(field="url", message=refusal))
    if values["scope"] == "workspace" and not caller.is_admin:
        message = "only an admin's endpoint is told of everybody's runs; leave it at `own`"
        problems.found.append(Problem(field="scope", message=message))
    if values["loop_id"] is not None:
        async with runtime.database.as_user(caller.user_id) as connection:
            if await loops.get_loop(connection, values["loop_id"]) is None:
                message = "there is no loop with this id that you may see"
                problems.found.append(Problem(field="loop_id", message=message))
    problems.refuse()


async def _refusal(runtime: Runtime, url: str) -> str | None:
    """Why nothing may be sent to a URL, as far as can be said now. It is checked again whenever something is sent."""
    from ..egress import EgressClient, EgressFailed, checked_url

    try:
        checked_url(url)
        async with EgressClient(await policy_for(runtime, url)) as egress, asyncio.timeout(RESOLVE_SECONDS):
            await egress.check(url)
    except EgressRefused as error:
        way_out = "the workspace's `allow_hosts` (PATCH /api/settings, for admins) or LOOPWRIGHT_EGRESS_ALLOW"
        return str(error).replace("`allow_hosts`", way_out)
    except (EgressFailed, TimeoutError):
        return None  # the host may come up later
    return None


def _given(change: EndpointChange) -> dict[str, Any]:
    given = {each.name: getattr(change, each.name) for each in fields(change) if each.name != "every_loop"}
    found = {name: value for name, value in given.items() if value is not None}
    if "events" in found:
        found["events"] = list(dict.fromkeys(found["events"]))
    return {"loop_id": None, **found} if change.every_loop else found


def _showing(endpoint: Endpoint, secret: str | None) -> EndpointWithSecret:
    values: dict[str, Any] = dict(endpoint)
    return EndpointWithSecret(**values, secret=secret)
