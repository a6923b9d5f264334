from __future__ import annotations

from tests.api.conftest import api, idle
from tests.postgres import database, pg_server, urls

__all__ = ["api", "database", "idle", "pg_server", "urls"]
