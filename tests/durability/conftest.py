from collections.abc import Generator

import pytest

from tests.postgres import database, pg_server, urls

from .stage import Zygote, running_zygote

__all__ = ["database", "pg_server", "urls"]


@pytest.fixture(scope="session")
def zygote() -> Generator[Zygote]:
    with running_zygote() as made:
        yield made
