"""Whether the service lives, and whether it can work."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from pydantic import BaseModel

from ..service.health import check_ready
from .deps import Rt
from .docs import problems

router = APIRouter(prefix="/api/health", tags=["health"])


class Health(BaseModel):
    """The service answers."""

    status: str = "ok"
    version: str


class Ready(Health):
    """The service can work."""

    running: int
    """How many runs this process executes."""
    viewers: int
    """How many live streams it serves."""


_OPEN: dict[str, list[str]] = {"security": []}


@router.get("", responses=problems(), openapi_extra=_OPEN)
async def health() -> Health:
    """Whether the service answers; needs no sign-in."""
    return Health(version=version("loopwright"))


@router.get("/ready", responses=problems(), openapi_extra=_OPEN)
async def ready(rt: Rt) -> Ready:
    """Whether its database answers too, and its engine is up; needs no sign-in."""
    counts = await check_ready(rt)
    return Ready(version=version("loopwright"), running=counts.running, viewers=counts.viewers)
