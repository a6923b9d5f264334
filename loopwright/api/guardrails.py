"""Routes of guardrails."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fastapi import APIRouter, Response

from ..core.guardrails import Verdict
from ..core.records import Guardrail, Page, Record
from ..service import guardrails as service
from ..service.guardrails import GuardrailChange
from .bodies import GuardrailPatch, NewGuardrail, TryGuardrails
from .deps import Cursor, Limit, Me, OnceKey, Rt, Version, VersionOrAny, tagged
from .docs import problems

router = APIRouter(prefix="/api/guardrails", tags=["guardrails"])


class Tried(Record):
    """What the guardrails say of a text."""

    allowed: bool
    """Whether it passes all that were asked."""
    verdicts: Sequence[Verdict]
    not_asked: Sequence[str]
    """Names of those that would ask a model: only runs do, from their own budget."""


@router.get("", responses=problems())
async def list_guardrails(rt: Rt, me: Me, cursor: Cursor = None, limit: Limit = 50) -> Page[Guardrail]:
    """The workspace's guardrails, newest first. What exactly each looks for, only admins see."""
    return await service.list_guardrails(rt.database, me, cursor=cursor, limit=limit)


@router.post("", status_code=201, responses=problems(409))
async def create_guardrail(rt: Rt, me: Me, once: OnceKey, body: NewGuardrail, response: Response) -> Guardrail:
    """Store a guardrail. For admins. It holds for all that starts from now on."""
    made = await service.create_guardrail(rt.database, me, GuardrailChange(**dict(body)), once)
    tagged(response, made)
    return made


@router.post("/try", responses=problems())
async def try_guardrails(rt: Rt, me: Me, body: TryGuardrails) -> Tried:
    """Say what the guardrails make of a text. For admins. Nothing is sent, spent or kept."""
    trial = await service.try_text(rt.database, me, body.text, body.what, body.spec)
    return Tried(allowed=trial.allowed, verdicts=trial.verdicts, not_asked=trial.not_asked)


@router.get("/{guardrail_id}", responses=problems(404))
async def get_guardrail(rt: Rt, me: Me, guardrail_id: UUID, response: Response) -> Guardrail:
    """A guardrail."""
    found = await service.get_guardrail(rt.database, me, guardrail_id)
    tagged(response, found)
    return found


@router.patch("/{guardrail_id}", responses=problems(404, 412, 428))
async def change_guardrail(
    rt: Rt, me: Me, guardrail_id: UUID, version: Version, body: GuardrailPatch, response: Response
) -> Guardrail:
    """Change a guardrail. For admins. Runs that are under way keep those that they began with."""
    changed = await service.change_guardrail(rt.database, me, guardrail_id, version, GuardrailChange(**dict(body)))
    tagged(response, changed)
    return changed


@router.delete("/{guardrail_id}", status_code=204, responses=problems(404, 412))
async def delete_guardrail(rt: Rt, me: Me, guardrail_id: UUID, version: VersionOrAny) -> None:
    """Delete a guardrail. For admins."""
    await service.delete_guardrail(rt.database, me, guardrail_id, version)
