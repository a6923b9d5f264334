"""The settings of the workspace: what every loop may reach, what models cost, what members may spend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from ..core.caller import Caller
from ..core.errors import NotAllowed, Problem, Problems, VersionStale
from ..core.records import WorkspaceSettings
from ..core.spec import Price
from ..store import activity
from ..store import workspace as store
from ..store.database import Database
from .changes import ANY_VERSION

_MODEL = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, kw_only=True)
class SettingsChange:
    """The settings as they are to be; `None` leaves a part as it is."""

    allow_hosts: Sequence[str] | None = None
    prices: Mapping[str, Price] | None = None
    monthly_cap_usd: Decimal | None = None
    sets_monthly_cap: bool = False
    """Whether `monthly_cap_usd` is meant: `None` is a value of it, no cap."""


async def get_settings(database: Database, caller: Caller) -> WorkspaceSettings:
    """The settings; every member may read them."""
    async with database.as_user(caller.user_id) as connection:
        return await store.get_settings(connection)


async def change_settings(
    database: Database, caller: Caller, version: int, wanted: SettingsChange
) -> WorkspaceSettings:
    """Change the settings. For admins. Runs that are under way keep what they began with.

    Raises:
        NotAllowed: the caller is no admin.
        VersionStale: they were changed meanwhile.
        InvalidInput: everything that is wrong with the change.
    """
    if not caller.is_admin:
        raise NotAllowed("only an admin changes the settings of the workspace")
    _check(wanted)
    async with database.as_user(caller.user_id) as connection:
        now = await store.get_settings(connection)
        changed = await store.update_settings(
            connection,
            now.version if version == ANY_VERSION else version,
            allow_hosts=now.allow_hosts if wanted.allow_hosts is None else list(dict.fromkeys(wanted.allow_hosts)),
            prices=now.prices if wanted.prices is None else wanted.prices,
            monthly_cap_usd=wanted.monthly_cap_usd if wanted.sets_monthly_cap else now.monthly_cap_usd,
        )
        if changed is None:
            raise VersionStale
        await activity.note(connection, caller.door, "settings_changed", "workspace", fields=list(_named(wanted)))
        return changed


def _named(wanted: SettingsChange) -> Iterable[str]:
    if wanted.allow_hosts is not None:
        yield "allow_hosts"
    if wanted.prices is not None:
        yield "prices"
    if wanted.sets_monthly_cap:
        yield "monthly_cap_usd"


def _check(wanted: SettingsChange) -> None:
    from ..egress import EgressClient, EgressPolicy  # heavy, and seldom needed

    problems = Problems()
    for host in wanted.allow_hosts or ():
        with problems.collecting():
            EgressClient(EgressPolicy(allow_hosts=frozenset({host})))
    for model in wanted.prices or ():
        if not _MODEL.fullmatch(model):
            message = f"{model!r:.220} is no model string; write it like openai:my-model"
            problems.found.append(Problem(field="prices", message=message))
    problems.refuse()
