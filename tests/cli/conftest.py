from __future__ import annotations

from collections.abc import Generator

import pytest

from loopwright.store.embedded import EmbeddedServer
from tests.postgres import pg_server

__all__ = ["pg_server"]


@pytest.fixture(scope="session", autouse=True)
def data_folder(pg_server: EmbeddedServer) -> Generator[None]:
    """One data folder for all runs, whose database is up already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPWRIGHT_HOME", str(pg_server.home))
        yield
