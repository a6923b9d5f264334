"""Routes of endpoints: addresses elsewhere that are told when runs end."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Response

from ..core.records import Delivery, DeliveryDetails, DeliveryState, Endpoint, EndpointWithSecret, Page
from ..service import endpoints as service
from ..service.endpoints import EndpointChange
from .bodies import EndpointPatch, NewEndpoint
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/endpoints", tags=["endpoints"])

InState = Annotated[DeliveryState | None, Query(description="Only those that came so far.")]


@router.get("", responses=problems())
async def list_endpoints(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Endpoint]:
    """Your endpoints, newest first; for an admin, everybody's."""
    return await service.list_endpoints(rt, me, cursor=cursor, limit=limit)


@router.post("", status_code=201, responses=problems(409))
async def create_endpoint(rt: Rt, me: Me, once: OnceKey, body: NewEndpoint, response: Response) -> EndpointWithSecret:
    """Store an endpoint. Its secret is in this answer and never shown again."""
    endpoint = await service.create_endpoint(rt, me, EndpointChange(**dict(body)), once)
    tagged(response, endpoint)
    return endpoint


@router.get("/{endpoint_id}", responses=problems(404))
async def get_endpoint(rt: Rt, me: Me, endpoint_id: UUID, response: Response) -> Endpoint:
    """An endpoint, without its secret."""
    endpoint = await service.get_endpoint(rt, me, endpoint_id)
    tagged(response, endpoint)
    return endpoint


@router.patch("/{endpoint_id}", responses=problems(404, 412, 428))
async def change_endpoint(
    rt: Rt, me: Me, endpoint_id: UUID, version: Version, body: EndpointPatch, response: Response
) -> Endpoint:
    """Change an endpoint, or switch it on again. What waits is sent to where it is then."""
    given: dict[str, Any] = dict(body)
    every_loop = body.loop_id is None and "loop_id" in body.model_fields_set
    change = EndpointChange(**given, every_loop=every_loop)
    endpoint = await service.change_endpoint(rt, me, endpoint_id, version, change)
    tagged(response, endpoint)
    return endpoint


@router.post("/{endpoint_id}/secret", responses=problems(404, 412))
async def renew_secret(rt: Rt, me: Me, endpoint_id: UUID, response: Response) -> EndpointWithSecret:
    """Give it another secret, which is in this answer and never shown again. The old one holds for a day, too."""
    endpoint = await service.renew_secret(rt, me, endpoint_id)
    tagged(response, endpoint)
    return endpoint


@router.delete("/{endpoint_id}", status_code=204, responses=problems(404, 412))
async def delete_endpoint(rt: Rt, me: Me, endpoint_id: UUID, version: VersionOrAny) -> None:
    """Delete an endpoint, with what it was told. What waits is not sent any more."""
    await service.delete_endpoint(rt, me, endpoint_id, version)


@router.post("/{endpoint_id}/test", status_code=202, responses=problems(404, 409))
async def send_test(rt: Rt, me: Me, endpoint_id: UUID) -> DeliveryDetails:
    """Send it a test. It is sent in a moment, once."""
    return await service.send_test(rt, me, endpoint_id)


@router.get("/{endpoint_id}/deliveries", responses=problems(404))
async def list_deliveries(
    rt: Rt, me: Me, endpoint_id: UUID, cursor: Cursor = None, limit: Limit = 50, state: InState = None
) -> Page[Delivery]:
    """What it was told in the last 30 days, newest first, each with its last attempt."""
    return await service.list_deliveries(rt, me, endpoint_id, cursor=cursor, limit=limit, state=state)


@router.get("/{endpoint_id}/deliveries/{delivery_id}", responses=problems(404))
async def get_delivery(rt: Rt, me: Me, endpoint_id: UUID, delivery_id: UUID) -> DeliveryDetails:
    """Something that it was told, with all attempts."""
    return await service.get_delivery(rt, me, endpoint_id, delivery_id)


@router.post("/{endpoint_id}/deliveries/{delivery_id}/again", status_code=202, responses=problems(404, 409))
async def send_again(rt: Rt, me: Me, endpoint_id: UUID, delivery_id: UUID) -> DeliveryDetails:
    """Send it again, with the same id: at once, and where that fails by the whole plan."""
    return await service.send_again(rt, me, endpoint_id, delivery_id)
