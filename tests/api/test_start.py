"""A server answers before its engine is up, and loses no run that is started meanwhile."""

from __future__ import annotations

from pathlib import Path

import httpx

from loopwright.app import create_app
from loopwright.service.runtime import engine_behind, open_runtime
from loopwright.settings import Settings
from loopwright.store.database import Urls
from tests.api.world import SERVICE_KEY, Api


async def test_a_run_that_is_started_before_the_engine_is_up_is_executed_when_it_is(urls: Urls, tmp_path: Path) -> None:
    settings = Settings.model_validate({"home": tmp_path, "service_key": SERVICE_KEY, "grace_seconds": 0.1})
    async with open_runtime(settings, engine=False, urls=urls) as runtime:
        runtime.awaits_engine = True
        app = create_app(settings, runtime=runtime)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=40) as http,
        ):
            api = Api(app=app, http=http)
            assert (await api.call("GET", "/api/health")).status_code == 200
            early = await api.call("GET", "/api/health/ready")
            assert (early.status_code, early.headers["retry-after"]) == (503, "2")
            assert "its engine is not up yet" in early.json()["detail"]
            run_id = await api.start(await api.make_loop())
            assert (await api.get(f"/api/runs/{run_id}"))["status"] == "queued"
            async with engine_behind(runtime):
                assert (await api.finished(run_id))["stop_reason"] == "max_iterations"
                assert (await api.call("GET", "/api/health/ready")).status_code == 200
