from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from loopwright.store.database import Urls
from loopwright.store.embedded import EmbeddedServer
from tests.api.world import Api, open_api
from tests.auth_server import KEY, AuthServer, auth_server
from tests.dashboard.site import CHROMIUM, Site, open_site
from tests.postgres import OWNER, database, pg_server, urls

__all__ = ["database", "pg_server", "urls"]


@pytest.fixture
async def api(urls: Urls, tmp_path: Path) -> AsyncGenerator[Api]:
    """The application in this process."""
    async with open_api(urls, tmp_path, egress_allow="127.0.0.1:1") as opened:
        yield opened


@pytest.fixture(scope="module")
def browser(pg_server: EmbeddedServer) -> Generator[Browser]:
    """A browser. Its event loop runs in this thread while it is open: what needs another one comes before it."""
    _ = pg_server
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def auth() -> Generator[AuthServer]:
    """Where the users of `site` sign in."""
    with auth_server({"a@example.com": OWNER}) as running:
        yield running


@pytest.fixture(scope="module")
def site(pg_server: EmbeddedServer, auth: AuthServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[Site]:
    """A server in a process of its own, with users who sign in, or whom its service key acts for."""
    environ = {"SUPABASE_URL": auth.url, "SUPABASE_PUBLISHABLE_KEY": KEY, "LOOPWRIGHT_SIGN_IN_WITH": "github"}
    with open_site(pg_server, tmp_path_factory.mktemp("site"), shared=True, environ=environ) as opened:
        yield opened
