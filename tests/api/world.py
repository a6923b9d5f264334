"""The API in this process, and people who use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from loopwright.app import create_app
from loopwright.service.runtime import Runtime
from loopwright.settings import Settings
from loopwright.store.database import Urls
from tests.postgres import OWNER

SERVICE_KEY = "service-key-that-is-long-enough-for-anybody"

GOAL = "Find the code of 4 letters from A to F."
AGENT: dict[str, Any] = {"model": "practice", "settings": {"practice_pace": 0.0}}
SLOW: dict[str, Any] = {"model": "practice", "settings": {"practice_pace": 30.0}}
LOOP: dict[str, Any] = {"goal": GOAL, "stop": {"max_iterations": 3, "budget_usd": "0.50"}}


@dataclass(kw_only=True)
class Api:
    """A client of the application, as whom one likes."""

    app: FastAPI
    http: httpx.AsyncClient

    @property
    def runtime(self) -> Runtime:
        return self.app.state.runtime

    async def call(
        self, method: str, path: str, body: object = None, *, user: str | None = OWNER, **headers: str
    ) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if user is not None:
            sent |= {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": user}
        content = None if body is None else json.dumps(body).encode()
        if content is not None:
            sent = {"content-type": "application/json", **sent}
        return await self.http.request(method, path, content=content, headers=sent)

    async def get(self, path: str, *, user: str | None = OWNER, **headers: str) -> Any:
        answer = await self.call("GET", path, user=user, **headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def make(self, path: str, body: object, *, user: str = OWNER, **headers: str) -> Any:
        answer = await self.call("POST", path, body, user=user, **headers)
        assert answer.status_code in (201, 202), answer.text
        return answer.json()

    async def make_loop(
        self,
        *,
        agent: dict[str, Any] = AGENT,
        user: str = OWNER,
        visibility: str = "private",
        name: str = "codes",
        **spec: object,
    ) -> Any:
        made = await self.make("/api/agents", {"name": name, "spec": agent, "visibility": visibility}, user=user)
        body = {"name": name, "agent_id": made["id"], "spec": {**LOOP, **spec}, "visibility": visibility}
        return await self.make("/api/loops", body, user=user)

    async def start(self, loop: Any, body: object = None, *, user: str = OWNER, **headers: str) -> str:
        return (await self.make(f"/api/loops/{loop['id']}/runs", body, user=user, **headers))["run_id"]

    async def finished(self, run_id: str, *, user: str = OWNER) -> Any:
        """The run once it is over."""
        async with asyncio.timeout(30):
            while (run := await self.get(f"/api/runs/{run_id}", user=user))["status"] != "finished":
                await asyncio.sleep(0.02)
        return run

    async def running(self, run_id: str, *, user: str = OWNER) -> None:
        """Return when a worker has the run."""
        async with asyncio.timeout(30):
            while (await self.get(f"/api/runs/{run_id}", user=user))["status"] == "queued":
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_api(urls: Urls, home: Path, *, engine: bool = True, **settings: Any) -> AsyncGenerator[Api]:
    """The application on a database, with users who are acted for by the service key."""
    chosen = Settings(**{"home": home, "service_key": SERVICE_KEY, "_env_file": None, "grace_seconds": 0.1, **settings})
    app = create_app(chosen, urls=urls, engine=engine)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=40) as http:
            yield Api(app=app, http=http)
