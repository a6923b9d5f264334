"""Fixtures of the agents' tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from loopwright.egress import EgressClient, EgressPolicy

from ..feedback.endpoint import Endpoint, running_endpoint
from .provider import Provider, running_provider
from .turns import MakeWorld, World


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with running_provider() as running:
        yield running


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    """A server that `http` tools may reach."""
    async with running_endpoint() as running:
        yield running


@pytest.fixture
async def make_world(provider: Provider, endpoint: Endpoint, tmp_path: Path) -> AsyncGenerator[MakeWorld]:
    async with EgressClient(
        EgressPolicy(allow_hosts=frozenset({endpoint.host, f"127.0.0.1:{provider.port}"}))
    ) as egress:

        def make(**options: Any) -> World:
            return World(provider, egress, tmp_path, **options)

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


@pytest.fixture
async def open_world(provider: Provider, tmp_path: Path) -> AsyncGenerator[World]:
    """A world whose tools may reach every port of this machine."""
    async with EgressClient(EgressPolicy(allow_hosts=frozenset({"127.0.0.1"}))) as egress:
        yield World(provider, egress, tmp_path)
