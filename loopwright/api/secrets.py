"""Routes of secrets. Values go in and never come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path

from ..core.records import SecretName
from ..service import secrets as service
from .bodies import PutSecret
from .deps import Me, Rt
from .docs import problems

router = APIRouter(prefix="/api/secrets", tags=["secrets"])

Name = Annotated[str, Path(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", examples=["CATALOGUE_TOKEN"])]


@router.get("", responses=problems())
async def list_secrets(rt: Rt, me: Me) -> Sequence[SecretName]:
    """The names of your secrets. Tools and evaluators refer to them as `${NAME}`."""
    return await service.list_secrets(rt.database, me)


@router.put("/{name}", status_code=204, responses=problems())
async def put_secret(rt: Rt, me: Me, name: Name, body: PutSecret) -> None:
    """Store a secret, in place of one of the same name."""
    await service.put_secret(rt.database, rt.vault, me, name, body.value)


@router.delete("/{name}", status_code=204, responses=problems(404))
async def delete_secret(rt: Rt, me: Me, name: Name) -> None:
    """Delete a secret."""
    await service.delete_secret(rt.database, me, name)
