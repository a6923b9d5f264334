from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import psycopg
import pytest

from loopwright.cancellation import end_all
from loopwright.store.database import POOL_SIZE, Database, Urls
from loopwright.store.embedded import EmbeddedServer


@pytest.mark.parametrize("turns", range(6))
async def test_who_is_cancelled_in_the_moment_a_connection_comes_free_is_cancelled(urls: Urls, turns: int) -> None:
    """The pool's own wait drops such a cancellation on Python 3.11: the task went on, and whoever had cancelled it
    waited for ever."""

    async def use() -> None:
        async with database.service_session() as connection:
            await connection.execute("select 1")
        await asyncio.Event().wait()

    async with Database(urls=urls) as database:
        async with AsyncExitStack() as all_taken:
            for _ in range(POOL_SIZE):
                await all_taken.enter_async_context(database.service_session())
            waiting = asyncio.create_task(use())
            await asyncio.sleep(0.05)
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=5)
        assert waiting.cancelled()
        async with database.service_session() as connection:  # and no connection is lost
            assert await (await connection.execute("select 1")).fetchone() == (1,)


async def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    lost = 0

    async def loses_one() -> None:
        nonlocal lost
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            lost += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(loses_one())
    await asyncio.sleep(0)
    await end_all([task])
    assert task.cancelled()
    assert lost == 1


def test_the_embedded_server_has_room_for_several_processes(pg_server: EmbeddedServer) -> None:
    with psycopg.connect(pg_server.url(database="postgres")) as connection:
        row = connection.execute("show max_connections").fetchone()
    assert row is not None and int(row[0]) == 400  # a process takes up to 45
