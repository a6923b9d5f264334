"""The settings of the workspace: one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import LiteralString

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from ..core.errors import NotFound
from ..core.records import WorkspaceSettings
from ..core.spec import Price
from .database import Connection

_COLUMNS: LiteralString = "allow_hosts, prices, monthly_cap_usd, version, updated_at"


async def get_settings(connection: Connection) -> WorkspaceSettings:
    """The settings.

    Raises:
        NotFound: the caller is not of the workspace.
    """
    cursor = connection.cursor(row_factory=class_row(WorkspaceSettings))
    await cursor.execute(f"select {_COLUMNS} from public.workspace_settings")
    if (row := await cursor.fetchone()) is None:
        raise NotFound
    return row


async def update_settings(
    connection: Connection,
    version: int,
    *,
    allow_hosts: Sequence[str],
    prices: Mapping[str, Price],
    monthly_cap_usd: Decimal | None,
) -> WorkspaceSettings | None:
    """Change them if they still have the version that was read; `None` if not, or if the caller is no admin."""
    cursor = connection.cursor(row_factory=class_row(WorkspaceSettings))
    table = {model: price.model_dump(mode="json", exclude_none=True) for model, price in prices.items()}
    await cursor.execute(
        "update public.workspace_settings set allow_hosts = %s, prices = %s, monthly_cap_usd = %s "
        f"where version = %s returning {_COLUMNS}",
        (list(allow_hosts), Jsonb(table), monthly_cap_usd, version),
    )
    return await cursor.fetchone()
