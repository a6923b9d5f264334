"""Settings: secrets that go in and never come out, members and their caps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import InvalidInput, NotFound, Problem
from ..core.records import Month, Profile, SecretName
from ..service import people
from ..service import secrets as service
from ..service.runtime import Runtime
from .deps import Form, Me, Rt
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page

router = APIRouter(prefix="/settings", route_class=PageRoute)

FIELDS = ("name", "value", "cap")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, kw_only=True)
class SettingsContext(Context):
    """The page."""

    secrets: Sequence[SecretName]
    people: Sequence[tuple[Profile, Month | None]]
    mode: str
    me: str
    is_admin: bool
    values: Fields
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request, rt: Runtime, me: Caller, values: Fields | None = None, wrong: Wrong | None = None
) -> Response:
    spent = {month.owner_id: month for month in await people.months(rt.database, me)}
    context = SettingsContext(
        title="Settings",
        nav="/settings",
        secrets=await service.list_secrets(rt.database, me),
        people=[(each, spent.get(each.id)) for each in await people.list_people(rt.database, me)],
        mode=rt.settings.mode,
        me=me.user_id,
        is_admin=me.is_admin,
        values=values or Fields(),
        wrong=wrong or {},
    )
    return page(request, "settings.html", context, 422 if wrong else 200)


@router.get("")
async def show(request: Request, rt: Rt, me: Me) -> Response:
    """The page."""
    return await _page(request, rt, me)


@router.post("/secrets")
async def put_secret(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Store a secret. Its value is not shown again, not even in this form."""
    name = form.short("name")
    try:
        _check(name, form.text("value"))
        await service.put_secret(rt.database, rt.vault, me, name, form.text("value"))
    except InvalidInput as error:
        return await _page(request, rt, me, Fields({"name": [name]}), wrong_of(error, FIELDS))
    return RedirectResponse("/settings?note=saved", 303)


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        message = "is letters, digits and _ without a digit in front, such as OPENAI_API_KEY"
        raise InvalidInput(Problem(field="name", message=message))
    if not 1 <= len(value) <= 65_536:
        raise InvalidInput(Problem(field="value", message="is missing; paste the secret"))


@router.post("/secrets/{name}/delete")
async def delete_secret(rt: Rt, me: Me, name: str) -> Response:
    """Delete a secret."""
    if not _NAME.fullmatch(name):
        raise NotFound
    await service.delete_secret(rt.database, me, name)
    return RedirectResponse("/settings?note=deleted", 303)


@router.post("/people/{user_id}")
async def set_cap(request: Request, rt: Rt, me: Me, user_id: UUID, form: Form) -> Response:
    """Set what a user's runs may spend in a month; empty for no cap."""
    try:
        cap = form.money("cap", zero=True)
        form.refuse()
        await people.set_monthly_cap(rt.database, me, user_id, cap)
    except InvalidInput as error:
        return await _page(request, rt, me, form, wrong_of(error, FIELDS))
    return RedirectResponse("/settings?note=saved", 303)
