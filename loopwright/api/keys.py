"""Routes of personal API keys."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fastapi import APIRouter

from ..core.records import ApiKey, NewApiKey
from ..service import api_keys as service
from .bodies import NewKey
from .deps import Me, Rt
from .docs import problems

router = APIRouter(prefix="/api/keys", tags=["keys"])


@router.get("", responses=problems())
async def list_keys(rt: Rt, me: Me) -> Sequence[ApiKey]:
    """Your API keys. What they are is not stored; how each begins is."""
    return await service.list_keys(rt.database, me)


@router.post("", status_code=201, responses=problems())
async def make_key(rt: Rt, me: Me, body: NewKey) -> NewApiKey:
    """Make an API key that acts as you: `Authorization: Bearer lw_...`. Its `token` is shown this once.

    A second key of the same name is refused, so a request that is sent again makes none.
    """
    return await service.make_key(rt.database, me, body.name)


@router.delete("/{key_id}", status_code=204, responses=problems(404))
async def revoke_key(rt: Rt, me: Me, key_id: UUID) -> None:
    """Revoke an API key of yours."""
    await service.revoke_key(rt.database, me, key_id)
