from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from loopwright.store.database import Urls
from tests.api.world import Api, open_api
from tests.postgres import database, pg_server, urls

from .receiver import Receiver, receiving

__all__ = ["database", "pg_server", "urls"]


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    """A server that takes messages."""
    async with receiving() as opened:
        yield opened


@pytest.fixture
async def idle(urls: Urls, tmp_path: Path, receiver: Receiver) -> AsyncGenerator[Api]:
    """The API in a process that neither executes runs nor sends anything; what the receiver listens on is allowed."""
    async with open_api(urls, tmp_path, engine=False, egress_allow=receiver.host) as opened:
        yield opened


@pytest.fixture
async def api(urls: Urls, tmp_path: Path, receiver: Receiver) -> AsyncGenerator[Api]:
    """The API with all that works behind it."""
    async with open_api(urls, tmp_path, egress_allow=receiver.host) as opened:
        yield opened
