"""Endpoints in tests: made over the API, told by cancelled runs, which need nobody who executes them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from loopwright.service.delivering import Delivering
from loopwright.store.database import connect_direct
from tests.api.world import Api
from tests.postgres import OWNER

from .receiver import Receiver


async def make_endpoint(api: Api, receiver: Receiver, *, user: str = OWNER, **changes: Any) -> Any:
    return await api.make("/api/endpoints", {"name": "ops", "url": receiver.url, **changes}, user=user)


async def end_a_run(api: Api, loop: Any = None, *, user: str = OWNER) -> str:
    """A run that is over: cancelled while it waited in the queue."""
    loop = loop or await api.make_loop(user=user)
    run_id = await api.start(loop, user=user)
    assert (await api.call("POST", f"/api/runs/{run_id}/cancel", user=user)).status_code == 202
    return run_id


async def deliveries(api: Api, endpoint: Any, *, user: str = OWNER) -> list[Any]:
    return (await api.get(f"/api/endpoints/{endpoint['id']}/deliveries", user=user))["items"]


async def send_all(api: Api, *, plan: Sequence[float] = (0, 0), rounds: int = 10, **options: Any) -> None:
    """Send what is due until nothing is."""
    delivering = Delivering(runtime=api.runtime, plan=plan, **options)
    for _ in range(rounds):
        if not await delivering.look():
            return
        await delivering.settled()


async def settled(api: Api, endpoint: Any) -> list[Any]:
    """What an endpoint was told, once nothing waits."""
    async with asyncio.timeout(60):
        while True:
            found = await deliveries(api, endpoint)
            if all(each["state"] != "waiting" for each in found):
                return found
            await asyncio.sleep(0.05)


async def change(api: Api, statement: str, *values: object) -> None:
    async with await connect_direct(api.runtime.database.urls) as c:
        await c.execute(statement, values)  # pyright: ignore[reportArgumentType, reportCallIssue]
