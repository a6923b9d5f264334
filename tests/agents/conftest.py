"""Fixtures of the agents' tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from .provider import Provider, running_provider


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with running_provider() as running:
        yield running
