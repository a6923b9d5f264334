from __future__ import annotations

import pytest

from tests.postgres import data_folder, pg_server

__all__ = ["data_folder", "pg_server"]


@pytest.fixture(scope="session", autouse=True)
def one_data_folder(data_folder: None) -> None:
    """All runs of the command line are kept in one folder, whose database is up already."""
