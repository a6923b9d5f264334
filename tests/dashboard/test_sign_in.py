"""Signing in with a real browser: a password, a provider, back to the page one came from, and out."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from loopwright.store.embedded import EmbeddedServer
from tests.auth_server import KEY, PASSWORD, auth_server
from tests.dashboard.site import CHROMIUM, open_site
from tests.postgres import OWNER

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

AXE = Path(__file__).parent / "vendored" / "axe.min.js"


def test_in_and_out(
    browser: Browser, pg_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with auth_server({"a@example.com": OWNER}) as auth:
        monkeypatch.setenv("SUPABASE_URL", auth.url)
        monkeypatch.setenv("SUPABASE_PUBLISHABLE_KEY", KEY)
        monkeypatch.setenv("LOOPWRIGHT_SIGN_IN_WITH", "github")
        with open_site(pg_server, tmp_path, shared=False) as site:
            context = browser.new_context(base_url=site.address)
            context.set_default_timeout(30_000)
            page = context.new_page()
            complaints: list[str] = []
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.goto("/runs?status=finished")
            page.wait_for_url("**/sign-in?next=*")
            page.evaluate(AXE.read_text(encoding="utf-8"))
            assert page.evaluate("axe.run().then(found => found.violations.map(each => each.id))") == []
            assert complaints == []
            page.fill("[name=email]", "a@example.com")
            page.fill("[name=password]", "mistyped")
            page.keyboard.press("Enter")
            expect(page.locator("#wrong")).to_contain_text("The address or the password is wrong.")
            assert page.input_value("[name=email]") == "a@example.com"
            page.fill("[name=password]", PASSWORD)
            page.click("button.primary")
            page.wait_for_url("**/runs?status=finished")
            assert page.evaluate("document.cookie") == ""  # no script can read who one is
            page.click("[title='Sign out']")
            page.wait_for_url("**/sign-in*")
            page.goto("/usage")
            page.click("text=Github")
            page.wait_for_url("**/usage")
            page.goto("/settings")
            page.click("text=Sign out everywhere")
            page.wait_for_url("**/sign-in*")
            assert not auth.sessions
            context.close()
