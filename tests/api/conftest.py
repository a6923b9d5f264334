from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from loopwright.store.database import Urls
from tests.api.world import Api, open_api
from tests.postgres import database, pg_server, urls

__all__ = ["database", "pg_server", "urls"]


@pytest.fixture
async def api(urls: Urls, tmp_path: Path) -> AsyncGenerator[Api]:
    """The API with an engine."""
    async with open_api(urls, tmp_path) as opened:
        yield opened


@pytest.fixture
async def idle(urls: Urls, tmp_path: Path) -> AsyncGenerator[Api]:
    """The API in a process that executes no runs: they stay in the queue."""
    async with open_api(urls, tmp_path, engine=False) as opened:
        yield opened
