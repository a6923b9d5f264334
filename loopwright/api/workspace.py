"""Routes of the workspace's settings."""

from __future__ import annotations

from fastapi import APIRouter, Response

from ..core.records import WorkspaceSettings
from ..service import workspace as service
from ..service.workspace import SettingsChange
from .bodies import SettingsPatch
from .deps import Me, Rt, Version, tagged
from .docs import problems

router = APIRouter(prefix="/api/settings", tags=["settings"])


@router.get("", responses=problems())
async def get_settings(rt: Rt, me: Me, response: Response) -> WorkspaceSettings:
    """What every loop may reach, what models cost, and what members may spend in a month."""
    settings = await service.get_settings(rt.database, me)
    tagged(response, settings)
    return settings


@router.patch("", responses=problems(412, 428))
async def change_settings(
    rt: Rt, me: Me, version: Version, body: SettingsPatch, response: Response
) -> WorkspaceSettings:
    """Change the settings. For admins. Runs that are under way keep what they began with."""
    wanted = SettingsChange(**dict(body), sets_monthly_cap="monthly_cap_usd" in body.model_fields_set)
    settings = await service.change_settings(rt.database, me, version, wanted)
    tagged(response, settings)
    return settings
