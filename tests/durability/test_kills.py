"""Workers are killed at random points; their runs come to what undisturbed ones come to, and nothing is paid twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.store.embedded import EmbeddedServer

from .harness import run_schedules
from .stage import Zygote

SCHEDULES = 16
"""The first of the many that `make kills` runs, and CI with it."""
PARTS = 2
"""So that several test processes share them."""


@pytest.mark.parametrize("part", range(PARTS))
async def test_killed_at_any_point_a_run_ends_like_an_undisturbed_one(
    part: int, pg_server: EmbeddedServer, zygote: Zygote, tmp_path: Path
) -> None:
    harness = await run_schedules(pg_server, zygote, range(part, SCHEDULES, PARTS), tmp_path)
    assert harness.kills >= SCHEDULES // PARTS // 2
