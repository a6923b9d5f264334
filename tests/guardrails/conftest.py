from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from loopwright.store.database import Urls
from tests.api.conftest import api, idle
from tests.api.world import open_api
from tests.builtins.world import House, brain_on_a_port
from tests.postgres import database, pg_server, urls

__all__ = ["api", "database", "idle", "pg_server", "urls"]


@pytest.fixture
async def house(urls: Urls, tmp_path: Path) -> AsyncGenerator[House]:
    """The service with a model that does what the test says."""
    with brain_on_a_port() as brain:
        async with open_api(urls, tmp_path, egress_allow=brain.host) as api:
            yield House(api=api, brain=brain)
