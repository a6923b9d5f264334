"""The dashboard as people have it: a real browser, a real server, a real database, the practice model."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from loopwright.store.embedded import EmbeddedServer
from tests.dashboard.site import CHROMIUM, Site, open_site
from tests.postgres import OTHER

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

FINISHED = "#conn[data-state=finished]"
AXE = Path(__file__).parent / "vendored" / "axe.min.js"


def clean(page: Page, found: list[str]) -> Page:
    """Write down what the browser complains of."""
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: found.append(f"dialog {dialog.message}"))
    return page


def test_press_run_and_see_it_finish_live(browser: Browser, site: Site) -> None:
    complaints: list[str] = []
    with site.visit(browser) as context:
        page = clean(context.new_page(), complaints)
        page.goto("/")
        bodies = page.evaluate("performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)")
        assert 5_000 < bodies < 100_000
        loop = site.make_loop(page, pace=0.1)
        page.click("button:has-text('Run')")
        page.wait_for_selector("#conn[data-state=live]")
        assert re.match(r"● \d+/12 ", page.title())
        page.wait_for_selector("#log details >> nth=1")
        page.wait_for_selector(FINISHED)
        assert page.inner_text("#conn").strip().startswith("finished: Reached the target 1 in ")
        assert page.title().startswith("✓ ")
        rows = page.locator("#log details")
        many = int(page.inner_text(".four .stat:nth-child(4) .big").split()[0])
        assert [int(row.get_attribute("data-position") or 0) for row in rows.all()] == list(range(many, 0, -1))
        assert page.inner_text("#best-text").strip() == "BEACH"
        page.click("#log details >> nth=0 >> summary")
        page.wait_for_selector("text=Against the best before it")
        page.click("text=What the agent was shown")
        expect(page.locator(".told pre").last).to_contain_text("You work in a feedback loop")
        page.reload()
        assert page.locator("#log details").count() == many
        page.goto(loop)
        assert "target reached" in page.inner_text("tbody")
    assert complaints == []


def test_each_template_works_as_it_is_on_an_empty_installation(
    browser: Browser, pg_server: EmbeddedServer, tmp_path: Path
) -> None:
    complaints: list[str] = []
    with open_site(pg_server, tmp_path, shared=False) as site, site.visit(browser) as context:
        page = clean(context.new_page(), complaints)
        site.sign_in(page)
        names = [each.inner_text() for each in page.locator(".card h2").all()]
        assert len(names) == 3 and page.locator("text=no key needed").count() == 3
        addresses = [each.get_attribute("href") or "" for each in page.locator(".card .button").all()]
        for address in addresses:
            page.goto(address)
            page.click("text=Make the loop")
            page.wait_for_url("**/loops/*-*")
            page.click("button:has-text('Run') >> nth=0")
            page.wait_for_selector(FINISHED)
            said = page.inner_text("#conn")
            assert "Reached the target" in said, (address, said)
            scores = page.locator("#log .s").all_inner_texts()
            assert len(scores) >= 3, (address, scores)  # it took several, each by the remarks on those before
        page.goto("/")
        assert page.locator(".card").count() == 3 and page.locator(".badge.good").count() == 3
    assert complaints == []


def test_leaving_stops_nothing_and_stop_does(browser: Browser, site: Site) -> None:
    with site.visit(browser) as context:
        page = context.new_page()
        site.make_loop(page, pace=0.3, evaluator_url=f"{site.address}/examples/words?want=400", max_iterations="500")
        page.keyboard.press("r")
        page.wait_for_url("**/runs/*")
        run = page.url
        page.wait_for_selector("#log details")
        before = page.locator("#log details").count()
        page.close()
        time.sleep(1)
        page = context.new_page()
        page.goto(run)
        page.wait_for_selector("#conn[data-state=live]")
        expect(page.locator(f"#log details[data-position='{before + 2}']")).to_be_visible()
        page.click("#pause")
        expect(page.locator("#conn")).to_contain_text("paused; the run goes on")
        stood = page.locator("#log details").count()
        time.sleep(1.2)
        assert page.locator("#log details").count() == stood
        page.click("#pause")
        expect(page.locator(f"#log details[data-position='{stood + 1}']")).to_be_visible()
        page.keyboard.press("s")
        page.wait_for_selector(FINISHED)
        assert "Cancelled" in page.inner_text(".four .stat .big >> nth=0")
        # More of it, and another one from the middle.
        page.click("text=Go on with more")
        page.fill("[name=iterations]", "nonsense")
        page.click("button:has-text('Extend')")
        expect(page.locator("#extend .wrong")).to_contain_text("must be a whole number")
        page.fill("[name=iterations]", "2")
        page.click("button:has-text('Extend')")
        page.wait_for_selector("#conn[data-state=live]")
        page.keyboard.press("s")
        page.wait_for_selector(FINISHED)
        page.click("#log details >> nth=-1 >> summary")
        page.fill(".told [name=max_iterations]", "2")
        page.click("text=Fork from here")
        page.wait_for_url(lambda url: url != run and "/runs/run_" in url and "?" not in url)
        page.wait_for_selector(FINISHED)
        assert "begun from iteration 1 of" in page.inner_text(".crumb")
        assert page.locator("#log details").count() == 2


TABS = 8


def test_more_tabs_on_one_run_than_a_browser_has_connections(browser: Browser, site: Site) -> None:
    """A browser opens six connections to a host for all its tabs together."""
    with site.visit(browser) as context:
        first = context.new_page()
        words = f"{site.address}/examples/words?want=400"
        site.make_loop(first, pace=0.5, evaluator_url=words, max_iterations="500")
        first.keyboard.press("r")
        first.wait_for_url("**/runs/*")
        tabs = [first]
        for _ in range(TABS - 1):
            tabs.append(context.new_page())
            tabs[-1].goto(first.url, wait_until="domcontentloaded")
        for tab in tabs:
            tab.wait_for_selector("#conn[data-state=live]")
        streaming = [tab for tab in tabs if tab.inner_text("#conn .say") == "live"]
        assert len(streaming) == 3
        done = first.locator("#log details").count()
        for tab in tabs:
            expect(tab.locator(f"#log details[data-position='{done + 1}']")).to_be_visible()
        elsewhere = context.new_page()
        elsewhere.goto("/usage")  # another page loads beside them
        streaming[0].close()
        tabs.remove(streaming[0])
        for _ in range(100):  # its place is taken
            if sum(tab.inner_text("#conn .say") == "live" for tab in tabs) == 3:
                break
            tabs[0].wait_for_timeout(100)
        else:
            raise AssertionError("nobody took the place of the tab that was closed")
        tabs[-1].keyboard.press("s")
        for tab in tabs:
            tab.wait_for_selector(FINISHED)
            positions = [int(row.get_attribute("data-position") or 0) for row in tab.locator("#log details").all()]
            assert positions == list(range(positions[0], positions[0] - len(positions), -1))


def test_compare_two_runs(browser: Browser, site: Site) -> None:
    first = site.seed_run(["one fish", "red fish in the sea"], number=101)
    second = site.seed_run(["two fish", "blue fish in the sea"], number=102)
    with site.visit(browser) as context:
        page = context.new_page()
        page.goto("/runs")
        for run in (first, second):
            page.check(f"[value={run}]")
        page.click("text=Compare the ticked ones")
        assert page.locator(".chart .curve").count() == 2
        before = page.inner_text(".sides del"), page.inner_text(".sides ins")
        assert set(before) <= {"red", "blue"}
        page.click("text=Compare the others with run B")  # the other way round
        page.wait_for_url(lambda url: url.find(second) < url.find(first) or url.find(first) < url.find(second))
        expect(page.locator(".sides ins")).to_have_text(before[0])
        page.goto(f"/compare?run={first}")
        assert "two to four" in page.inner_text("main")


NASTY = (
    "<script>window.pwned = 1</script><img src=x onerror='window.pwned=2'><a href='javascript:pwned=3'>x</a>"
    " \x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \u202eevil\u202c 😀 </pre></details>{{ 7*7 }}"
)


def test_text_is_text_whatever_it_holds(browser: Browser, site: Site) -> None:
    complaints: list[str] = []
    run = site.seed_run([NASTY, "x" * 1_000_000, NASTY + "!"], number=103, detail=NASTY)
    with site.visit(browser) as context:
        page = clean(context.new_page(), complaints)
        page.goto(f"/runs/{run}")
        page.evaluate("document.querySelectorAll('#log > details').forEach((each) => { each.open = true; })")
        page.wait_for_selector(".told >> nth=2")
        for where in (
            f"/runs/{run}/iterations/3",
            f"/runs/{run}/iterations/2",
            "/runs",
        ):
            page.goto(where)
        page.goto(f"/runs/{run}/iterations/3")
        shown = page.inner_text(".told pre >> nth=0")
        assert "<script>window.pwned = 1</script>" in shown and "{{ 7*7 }}" in shown and "😀" in shown
        assert "[U+202E]evil[U+202C]" in shown and "\x1b" not in shown and "evil.example" not in shown
        assert page.evaluate("window.pwned") is None
        assert page.locator("main a[href*=evil], main a[href^=javascript], main img").count() == 0
    assert complaints == []


def test_two_thousand_iterations_open_in_a_second(browser: Browser, site: Site) -> None:
    run = site.seed_run([f"candidate {n}" for n in range(2000)], number=104)
    with site.visit(browser) as context:
        page = context.new_page()
        page.goto(f"/runs/{run}")  # warm
        answer = page.goto(f"/runs/{run}")
        assert answer is not None and len(answer.body()) < 120_000
        many = page.evaluate("performance.getEntriesByType('resource').filter((e) => e.name.includes('/runs/')).length")
        assert many == 0  # nothing of the run is fetched beside its page
        assert page.locator("#log details").count() == 25
        assert 50 < page.locator(".chart circle").count() <= 310
        page.click("text=Earlier iterations")
        assert page.get_attribute("#log details >> nth=0", "data-position") == "1975"


def test_others_see_nothing_of_it(browser: Browser, site: Site) -> None:
    run = site.seed_run(["mine"], number=105)
    with site.visit(browser) as mine, site.visit(browser, OTHER) as theirs:
        loop = site.make_loop(mine.new_page())
        page = theirs.new_page()
        for path in (loop, f"{loop}/edit", f"/runs/{run}", f"/runs/{run}/live", f"/runs/{run}/iterations/1"):
            answer = page.goto(path)
            assert answer is not None and answer.status == 404, path
        for path in (f"/api/runs/{run}/events", f"/api/runs/{run}/export", f"/runs/{run}/best"):
            assert theirs.request.get(path).status == 404, path
        page.goto("/")
        assert loop.rpartition("/")[2] not in page.content()


def test_by_keyboard_alone(browser: Browser, site: Site) -> None:
    with site.visit(browser) as context:
        page = context.new_page()
        site.make_loop(page, name="Found by keyboard")
        page.goto("/")
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("found by key")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=found*")
        assert page.locator(".card").count() == 1
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Found by keyboard":
                break
        page.keyboard.press("Enter")
        page.wait_for_url("**/loops/*-*")
        page.keyboard.press("r")
        page.wait_for_url("**/runs/*")
        page.wait_for_selector(FINISHED)


def test_it_works_without_scripts(browser: Browser, site: Site) -> None:
    with site.visit(browser, java_script_enabled=False) as context:
        page = context.new_page()
        site.make_loop(page)
        page.click("button:has-text('Run') >> nth=0")
        page.wait_for_url("**/runs/*")
        for _ in range(60):
            if page.locator(FINISHED).count():
                break
            time.sleep(0.25)
            page.reload()
        assert "finished: target reached" in page.inner_text("#conn")
        page.click("#log details >> nth=0 >> summary")
        page.click("#log a >> nth=0")
        assert "Candidate" in page.inner_text("main")
        for path in (
            "/",
            "/runs",
            "/agents",
            "/tools",
            "/evaluators",
            "/usage",
            "/activity",
            "/settings",
            "/loops/new",
        ):
            answer = page.goto(path)
            assert answer is not None and answer.status == 200, path
            assert page.locator("main h1").count() == 1, path
        page.goto("/settings")
        page.fill("[name=key_name]", "without scripts")
        page.click("text=Make a key")
        assert page.inner_text("#fresh-key").startswith("lw_")


def test_axe_finds_nothing_and_nothing_is_wide(browser: Browser, site: Site) -> None:
    """Each page in light, dark and at 375 pixels; nothing moves for who wants none of it, no link leads elsewhere."""
    runs = [site.seed_run(["a fish", "a red fish"], number=110 + n) for n in range(2)]
    found: list[str] = []
    with site.visit(browser, bypass_csp=True, reduced_motion="reduce") as context:
        page = context.new_page()
        loop = site.make_loop(page).removeprefix(site.address)
        agent = page.get_attribute(".lead a", "href") or ""
        page.goto("/tools/new")
        page.click("button:has-text('Save')")
        page.wait_for_url("**/tools/*note=saved")
        tool = page.url.removeprefix(site.address)
        page.goto("/schedules")
        page.fill("[name=name]", "each morning")
        page.fill("[name=cron]", "30 9 * * 1-5")
        page.click("button:has-text('Make it')")
        page.wait_for_url("**/schedules/*note=saved")
        schedule = page.url.removeprefix(site.address)
        page.set_viewport_size({"width": 375, "height": 700})
        page.goto("/webhooks")
        page.fill("[name=name]", "from elsewhere")
        page.click("button:has-text('Make it')")
        page.wait_for_selector("text=shown this once")
        assert page.evaluate("document.documentElement.scrollWidth") == 375  # a secret has no place to break
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto("/webhooks")
        webhook = page.get_attribute("td a", "href") or ""
        pages = [
            "/", "/?q=nothing-like-it", loop, f"{loop}/edit", "/loops/new?template=rubric", f"/runs/{runs[0]}", "/runs",
            f"/runs/{runs[0]}/iterations/2", f"/compare?run={runs[0]}&run={runs[1]}", "/agents", agent, "/tools",
            tool, "/tools/new", "/evaluators", f"/evaluators?loop={loop.rpartition('/')[2]}", "/usage?by=model",
            "/activity", "/settings", "/sign-in", "/nothing", "/schedules", schedule, "/webhooks", webhook,
        ]  # fmt: skip
        for path in pages:
            page.goto(path)
            page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
            if path.startswith("/runs/run_") and "iterations" not in path:
                page.wait_for_selector(".told >> nth=1")
            page.add_script_tag(path=AXE)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                broken = page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes[0].html, v.help]))")
                found += [f"{path} in {scheme}: {each}" for each in broken]
            if page.evaluate("document.getAnimations().length"):
                found.append(f"{path} moves")
            hosts = page.evaluate("[...document.links].map((a) => a.host).filter((h) => h !== location.host)")
            found += [f"{path} leads to {host}" for host in hosts]
            page.set_viewport_size({"width": 375, "height": 700})
            wide = page.evaluate("document.documentElement.scrollWidth")
            found += [f"{path} is {wide} wide"] if wide > 375 else []
            page.set_viewport_size({"width": 1280, "height": 800})
    assert not found, "\n".join(found)


def test_the_page_outlives_its_server_and_its_session(
    browser: Browser, pg_server: EmbeddedServer, tmp_path: Path
) -> None:
    with open_site(pg_server, tmp_path, shared=False) as site, site.visit(browser) as context:
        page = context.new_page()
        page.goto("/usage?by=model")
        page.wait_for_url("**/sign-in?next=%2Fusage%3Fby%3Dmodel")
        page.fill("#token", "wrong")
        page.click("button:has-text('Sign in')")
        expect(page.locator("#wrong")).to_contain_text("not the token")
        page.fill("#token", f"{site.address}/login?token={site.token()}")
        page.click("button:has-text('Sign in')")
        page.wait_for_url("**/usage?by=model")
        site.make_loop(page, pace=0.25)
        loop = page.url
        page.keyboard.press("r")
        page.wait_for_url("**/runs/*")
        page.wait_for_selector("#log details")
        site.kill()
        page.wait_for_selector("#conn[data-state=reconnecting]")
        site.start()
        page.wait_for_selector(FINISHED, timeout=60_000)
        assert page.inner_text("#best-text").strip() == "BEACH"
        positions = [int(row.get_attribute("data-position") or 0) for row in page.locator("#log details").all()]
        assert positions == list(range(len(positions), 0, -1))
        run = page.url
        context.clear_cookies()
        page.reload()
        page.wait_for_url("**/sign-in?next=*")
        page.fill("#token", site.token())
        page.click("button:has-text('Sign in')")
        page.wait_for_url(run)
        # A form that is sent after the session leads back to its page; and a live page goes to sign in by itself.
        page.goto(loop)
        context.clear_cookies()
        page.click("button:has-text('Run') >> nth=0")
        page.wait_for_url(f"**/sign-in?next={quote(loop.removeprefix(site.address), safe='')}")
        page.fill("#token", site.token())
        page.click("button:has-text('Sign in')")
        page.wait_for_url(loop)
        page.keyboard.press("r")
        page.wait_for_selector("#conn[data-state=live]")
        context.clear_cookies()
        page.wait_for_url("**/sign-in?next=%2Fruns%2F*")
