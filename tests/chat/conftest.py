from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from loopwright.store.database import Urls
from tests.api.world import open_api
from tests.builtins.world import House, brain_on_a_port
from tests.postgres import database, pg_server, urls

from .world import Chat

__all__ = ["database", "pg_server", "urls"]


@pytest.fixture
async def chat(urls: Urls, tmp_path: Path) -> AsyncGenerator[Chat]:
    """The service with a model that says what the test wants, and an agent that has every builtin."""
    with brain_on_a_port() as brain:
        async with open_api(urls, tmp_path, egress_allow=brain.host) as api:
            yield Chat(House(api=api, brain=brain))
