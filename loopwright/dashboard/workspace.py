"""Settings: API keys that are shown once, secrets that never come out, members with their roles and caps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ..core.caller import Caller
from ..core.errors import Conflict, InvalidInput, NotFound, Problem
from ..core.records import ApiKey, Month, NewApiKey, Profile, SecretName, WorkspaceSettings
from ..core.spec import Price
from ..service import api_keys, people
from ..service import secrets as service
from ..service import workspace as workspace_service
from ..service.runtime import Runtime
from ..service.workspace import SettingsChange
from .deps import Form, Me, Rt
from .errors import PageRoute
from .forms import Fields, Wrong, wrong_of
from .render import Context, page
from .run import Meter

router = APIRouter(prefix="/settings", route_class=PageRoute)

FIELDS = ("name", "value", "cap", "own_cap_usd", "key_name", "role")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, kw_only=True)
class SettingsContext(Context):
    """The page."""

    secrets: Sequence[SecretName]
    keys: Sequence[ApiKey]
    fresh: NewApiKey | None
    """The key that was made just now: the one time that it is seen."""
    people: Sequence[tuple[Profile, Month | None]]
    mine: Month | None
    """What the viewer spent this month, and may spend."""
    meter: Meter | None
    own_cap: Decimal | None
    """What the viewer set below an admin's cap."""
    workspace: WorkspaceSettings
    """What holds for everybody."""
    me: str
    role: str
    is_admin: bool
    signs_in: bool
    """Whether people sign in on a page here, and so can sign out everywhere."""
    wrong_person: str
    """The user in whose row something is wrong."""
    values: Fields
    wrong: Wrong = field(default_factory=dict[str, str])


async def _page(
    request: Request, rt: Runtime, me: Caller, *, values: Fields | None = None, wrong: Wrong | None = None,
    wrong_person: str = "", fresh: NewApiKey | None = None,
) -> Response:  # fmt: skip
    spent = {month.owner_id: month for month in await people.months(rt.database, me)}
    mine = spent.get(UUID(me.user_id))
    context = SettingsContext(
        title="Settings",
        nav="/settings",
        secrets=await service.list_secrets(rt.database, me),
        keys=await api_keys.list_keys(rt.database, me),
        fresh=fresh,
        people=[(each, spent.get(each.id)) for each in await people.list_people(rt.database, me)],
        mine=mine,
        own_cap=(await people.get_person(rt.database, me, UUID(me.user_id))).own_cap_usd,
        workspace=await workspace_service.get_settings(rt.database, me),
        meter=Meter.of_money(mine.spent_usd, mine.cap_usd) if mine and mine.cap_usd else None,
        me=me.user_id,
        role=me.role,
        is_admin=me.is_admin,
        signs_in=rt.settings.signs_in,
        wrong_person=wrong_person,
        values=values or Fields(),
        wrong=wrong or {},
    )
    return page(request, "settings.html", context, 422 if wrong else 201 if fresh else 200)


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
        return await _page(request, rt, me, values=Fields({"name": [name]}), wrong=wrong_of(error, FIELDS))
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


@router.post("/keys")
async def make_key(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Make an API key, and show it this once. Sent again, the form finds its name taken."""
    try:
        fresh = await api_keys.make_key(rt.database, me, form.text("key_name"))
    except InvalidInput as error:
        wrong = {"key_name": "; ".join(wrong_of(error, FIELDS).values())}
        return await _page(request, rt, me, values=form, wrong=wrong)
    return await _page(request, rt, me, fresh=fresh)


@router.post("/keys/{key_id}/revoke")
async def revoke_key(rt: Rt, me: Me, key_id: UUID) -> Response:
    """Revoke an API key."""
    await api_keys.revoke_key(rt.database, me, key_id)
    return RedirectResponse("/settings?note=revoked#keys", 303)


@router.post("/own-cap")
async def set_own_cap(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Set what the viewer's own runs may spend in a month, below what an admin set; empty for all of that."""
    try:
        cap = form.money("own_cap_usd", zero=True)
        form.refuse()
        await people.set_own_cap(rt.database, me, UUID(me.user_id), cap)
    except InvalidInput as error:
        return await _page(request, rt, me, values=form, wrong=wrong_of(error, FIELDS))
    return RedirectResponse("/settings?note=saved", 303)


@router.post("/people/{user_id}")
async def change_person(request: Request, rt: Rt, me: Me, user_id: UUID, form: Form) -> Response:
    """Set what a user may do, and what the user's runs may spend in a month; empty for no cap."""
    try:
        cap = form.money("cap", zero=True)
        form.refuse()
        if form.short("role") in ("member", "admin"):
            await people.set_role(rt.database, me, user_id, "admin" if form.short("role") == "admin" else "member")
        await people.set_monthly_cap(rt.database, me, user_id, cap)
    except InvalidInput as error:
        wrong = wrong_of(error, FIELDS)
        return await _page(request, rt, me, values=form, wrong=wrong, wrong_person=str(user_id))
    except Conflict as error:
        return await _page(request, rt, me, values=form, wrong={"role": str(error)}, wrong_person=str(user_id))
    return RedirectResponse("/settings?note=saved#people", 303)


@router.post("/workspace")
async def change_workspace(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Set the cap of members without one, and what may be reached though it isn't public. For admins."""
    try:
        cap = form.money("default_cap", zero=True)
        form.refuse()
        hosts = form.text("allow_hosts").split()
        change = SettingsChange(allow_hosts=hosts, monthly_cap_usd=cap, sets_monthly_cap=True)
        await workspace_service.change_settings(rt.database, me, form.whole("version") or 0, change)
    except InvalidInput as error:
        wrong = {("allow_hosts" if name == "" else name): why for name, why in wrong_of(error, WORKSPACE).items()}
        return await _page(request, rt, me, values=form, wrong=wrong)
    return RedirectResponse("/settings?note=saved#workspace", 303)


WORKSPACE = ("default_cap", "allow_hosts", "model", "input", "output", "cached_input", "cache_write")


@router.post("/prices")
async def set_price(request: Request, rt: Rt, me: Me, form: Form) -> Response:
    """Set what a model costs here, in place of what it cost. For admins."""
    try:
        amounts = {name: form.money(name, zero=True) for name in WORKSPACE[3:]}
        problems = form.problems
        for name in ("input", "output"):
            if amounts[name] is None and not any(problem.field == name for problem in problems.found):
                problems.found.append(Problem(field=name, message="is missing; give dollars per million tokens"))
        form.refuse()
        prices = {form.short("model"): Price.model_validate(amounts)}
        await _change_prices(rt, me, lambda now: {**now, **prices})
    except InvalidInput as error:
        wrong = {("model" if name == "" else name): why for name, why in wrong_of(error, WORKSPACE).items()}
        return await _page(request, rt, me, values=form, wrong=wrong)
    return RedirectResponse("/settings?note=saved#prices", 303)


@router.post("/prices/delete")
async def delete_price(rt: Rt, me: Me, form: Form) -> Response:
    """Have a model cost what the built-in list says again. For admins."""
    model = form.short("model")
    await _change_prices(rt, me, lambda now: {name: price for name, price in now.items() if name != model})
    return RedirectResponse("/settings?note=deleted#prices", 303)


async def _change_prices(rt: Runtime, me: Caller, change: Callable[[Mapping[str, Price]], Mapping[str, Price]]) -> None:
    now = await workspace_service.get_settings(rt.database, me)
    wanted = SettingsChange(prices=change(now.prices))
    await workspace_service.change_settings(rt.database, me, now.version, wanted)
