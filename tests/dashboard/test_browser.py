"""The dashboard as people have it: a real browser, a real server, a real database, the practice model."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks import pages as benchmark
from loopwright.store.embedded import EmbeddedServer
from tests.auth_server import PASSWORD, AuthServer
from tests.dashboard.site import CHROMIUM, Site, open_site, seed_loop
from tests.postgres import ADMIN, OTHER

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

FINISHED = "#conn[data-state=finished]"
AXE = Path(__file__).parent / "vendored" / "axe.min.js"

FIRST_VISIT = 100_000
"""Bytes over the wire that a page may take of somebody who never was here: itself, style, scripts, pictures."""


def clean(page: Page, found: list[str]) -> Page:
    """Write down what the browser complains of."""
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: found.append(f"dialog {dialog.message}"))
    return page


def positions(page: Page) -> list[int]:
    """The places of the iterations that the page of a run shows, from the top."""
    return page.eval_on_selector_all("#log > details", "rows => rows.map((row) => Number(row.dataset.position))")


def transferred(page: Page) -> int:
    """Bytes that went over the wire for a page and all that belongs to it."""
    return page.evaluate("performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)")


def test_press_run_and_see_it_finish_live(browser: Browser, site: Site) -> None:
    complaints: list[str] = []
    with site.visit(browser) as context:
        page = clean(context.new_page(), complaints)
        page.goto("/")
        assert 5_000 < transferred(page) < FIRST_VISIT
        loop = site.make_loop(page, pace=0.1)
        page.click("button:has-text('Run')")
        page.wait_for_selector("#conn[data-state=live]")
        assert re.match(r"● \d+/12 ", page.title())
        page.wait_for_selector("#log details >> nth=1")
        page.wait_for_selector(FINISHED)
        assert page.inner_text("#conn").strip().startswith("finished: Reached the target 1 in ")
        assert page.title().startswith("✓ ")
        many = int(page.inner_text(".four .stat:nth-child(4) .big").split()[0])
        assert positions(page) == list(range(many, 0, -1))
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


def test_each_template_works_as_it_is_for_who_has_nothing_yet(browser: Browser, site: Site) -> None:
    complaints: list[str] = []
    with site.visit(browser, site.somebody_new()) as context:
        page = clean(context.new_page(), complaints)
        page.goto("/")
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
        expect(page.locator("#log details")).to_have_count(2)


TABS = 20


def test_more_tabs_on_one_run_than_a_browser_has_connections(browser: Browser, site: Site) -> None:
    """A browser opens six connections to a host for all its tabs together."""
    with site.visit(browser) as context:
        first = context.new_page()
        words = f"{site.address}/examples/words?want=400"
        site.make_loop(first, pace=1.0, evaluator_url=words, max_iterations="500")
        first.keyboard.press("r")
        first.wait_for_url("**/runs/*")
        tabs = [first, *(context.new_page() for _ in range(TABS - 1))]
        for tab in tabs[1:]:
            tab.goto(first.url, wait_until="commit")
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
            there = positions(tab)
            assert there == list(range(there[0], there[0] - len(there), -1))


def test_compare_two_runs(browser: Browser, site: Site) -> None:
    first = site.seed_run(["one fish", "red fish in the sea"], number=101)
    second = site.seed_run(["two fish", "blue fish in the sea"], number=102)
    with site.visit(browser) as context:
        page = context.new_page()
        page.goto("/runs")
        for run in (first, second):
            page.check(f"[value={run}]")
        page.click("text=Compare the ticked ones")
        expect(page.locator(".chart .curve")).to_have_count(2)
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


SEEN = """(() => {
  const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  const found = [document.title];
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const text = node.nodeType === Node.TEXT_NODE;
    if (text && !node.parentElement.matches("textarea, script")) found.push(node.data);
    if (!text) for (const name of ["title", "aria-label", "placeholder"]) found.push(node.getAttribute(name) ?? "");
  }
  return found.join("\\n");
})()"""
"""All that a page says, seen or read out; what stands in a field to be edited is as it was typed."""


def test_text_is_text_whatever_it_holds(browser: Browser, site: Site) -> None:
    """Texts of models and evaluators, and names: in transcripts, charts, lists, comparisons, logs and forms."""
    complaints: list[str] = []
    who = site.somebody_new()
    loop, agent = seed_loop(site.urls, NASTY, owner=who)
    runs = [
        site.seed_run([NASTY, "x" * 1_000_000, NASTY + end], number=103 + n, detail=NASTY, owner=who, loop_id=loop)
        for n, end in ((0, "!"), (3, "?"))
    ]
    pages = [
        f"/runs/{runs[0]}", "/", "/?order=name", f"/loops/{loop}", f"/loops/{loop}/edit", "/loops/new", "/runs",
        f"/compare?run={runs[0]}&run={runs[1]}", f"/runs/{runs[0]}/iterations/1", f"/runs/{runs[0]}/iterations/2",
        "/agents", f"/agents/{agent}", "/evaluators", f"/evaluators?loop={loop}", "/schedules", "/webhooks",
        "/usage?by=loop", "/usage?by=model", "/activity", f"/runs/{runs[0]}/iterations/3",
    ]  # fmt: skip
    with site.visit(browser, who) as context:
        page = clean(context.new_page(), complaints)
        for where in pages:
            page.goto(where)
            if where == f"/runs/{runs[0]}":
                page.evaluate("document.querySelectorAll('#log > details').forEach((each) => { each.open = true; })")
                page.wait_for_selector(".told >> nth=2")
                assert "<script>window.pwned" in (page.text_content(".chart desc") or "")
            said = page.evaluate(SEEN)
            assert "\x1b" not in said and "\u202e" not in said, where
            assert page.evaluate("window.pwned") is None, where
            assert page.locator("main a[href*=evil], main a[href^=javascript], main img").count() == 0, where
            if where not in ("/loops/new", f"/runs/{runs[0]}/iterations/2"):
                assert "<script>window.pwned" in said, where  # it is there, as text
        shown = page.inner_text(".told pre >> nth=0")
        assert "<script>window.pwned = 1</script>" in shown and "{{ 7*7 }}" in shown and "😀" in shown
        assert "[U+202E]evil[U+202C]" in shown and "evil.example" not in shown
    # A refused evaluator says why beside its loop: that is an answer of 422, which the browser writes down.
    assert [each for each in complaints if "422" not in each] == []


def test_two_thousand_iterations_open_in_a_second(browser: Browser, site: Site) -> None:
    run = site.seed_run([f"candidate {n}" for n in range(2000)], number=104)
    with site.visit(browser) as context:
        page = context.new_page()
        page.goto(f"/runs/{run}")
        assert 50_000 < transferred(page) < FIRST_VISIT
        answer = page.goto(f"/runs/{run}")
        assert answer is not None and len(answer.body()) < 80_000
        many = page.evaluate("performance.getEntriesByType('resource').filter((e) => e.name.includes('/runs/')).length")
        assert many == 0  # nothing of the run is fetched beside its page
        assert page.locator("#log details").count() == 25
        assert 50 < page.locator(".chart circle").count() <= 310
        page.click("text=Earlier iterations")
        assert page.get_attribute("#log details >> nth=0", "data-position") == "1975"


def test_the_benchmark_of_pages_prints_its_figures(
    browser: Browser, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark.report(browser, site, rounds=1, check=False) == 0
    printed = capsys.readouterr().out
    for figure in ("20 iterations: loaded after ", "2,000 iterations: loaded after ", "2,000 over 20 iterations: "):
        assert figure in printed


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
        expect(page.locator(".card")).to_have_count(1)
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Found by keyboard":
                break
        page.keyboard.press("Enter")
        page.wait_for_url("**/loops/*-*")
        page.keyboard.press("r")
        page.wait_for_url("**/runs/*")
        page.wait_for_selector(FINISHED)


def until_it_is_over(page: Page) -> str:
    """Reload the page of a run, as one does without scripts, until it is over; what it says then."""
    for _ in range(120):
        if page.locator(FINISHED).count():
            return page.inner_text("#conn")
        time.sleep(0.25)
        page.reload()
    raise AssertionError("the run does not end")


def test_it_works_without_scripts(browser: Browser, site: Site) -> None:
    with site.visit(browser, java_script_enabled=False) as context:
        page = context.new_page()
        site.make_loop(page)
        page.click("button:has-text('Run') >> nth=0")
        page.wait_for_url("**/runs/*")
        assert "finished: target reached" in until_it_is_over(page)
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
        # Stop and extend: a loop that would go on and on.
        words = f"{site.address}/examples/words?want=400"
        site.make_loop(page, pace=0.2, evaluator_url=words, max_iterations="500")
        loop = page.url
        page.click("button:has-text('Run') >> nth=0")
        page.click("button:has-text('Stop')")
        assert "Stopping" in page.inner_text(".note")
        assert "finished: cancelled" in until_it_is_over(page)
        page.goto(loop)
        page.click("text=Run with something otherwise")
        page.fill("[name=max_iterations]", "2")
        page.click("text=Run so")
        assert "max iterations, 2 iterations" in until_it_is_over(page)
        page.click("text=Go on with more")
        page.fill("[name=iterations]", "1")
        page.click("button:has-text('Extend')")
        assert "max iterations, 3 iterations" in until_it_is_over(page)
        page.goto("/settings")
        page.fill("[name=key_name]", "without scripts")
        page.click("text=Make a key")
        assert page.inner_text("#fresh-key").startswith("lw_")


SCHEMES: Sequence[tuple[Literal["light", "dark"], str]] = (("light", "{}"), ("dark", "{runOnly: ['cat.color']}"))


def test_axe_finds_nothing_and_nothing_is_wide(browser: Browser, site: Site) -> None:
    """Each page in light, dark and at 375 pixels; nothing moves for who wants none of it, no link leads elsewhere."""
    runs = [site.seed_run(["a fish", "a red fish"], number=110 + n) for n in range(2)]
    found: list[str] = []
    options = {"bypass_csp": True, "reduced_motion": "reduce"}
    with site.visit(browser, **options) as context, site.visit(browser, ADMIN, **options) as of_admin:
        member, admin = context.new_page(), of_admin.new_page()
        admin.goto("/guardrails")
        admin.fill(".guardrail [name=name]", "off")
        admin.fill("[name=pattern]", "nothing like it")
        admin.uncheck("[name=active]")
        admin.click("button:has-text('Make it')")
        admin.wait_for_selector("td a:has-text('off')")
        guardrail = admin.get_attribute("td a", "href") or ""
        page = member
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
        page.goto("/endpoints")
        page.fill("[name=name]", "to elsewhere")
        page.fill("[name=url]", f"{site.address}/told")
        page.click("button:has-text('Make it')")
        page.wait_for_selector("text=shown this once")
        page.click("button:has-text('Send a test')")
        page.wait_for_url("**/endpoints/*note=sent")
        endpoint = page.url.removeprefix(site.address).partition("?")[0]
        message = page.get_attribute("td a", "href") or ""
        pages = [
            "/", "/?q=nothing-like-it", loop, f"{loop}/edit", "/loops/new?template=rubric", f"/runs/{runs[0]}", "/runs",
            f"/runs/{runs[0]}/iterations/2", f"/compare?run={runs[0]}&run={runs[1]}", "/agents", agent, "/tools",
            tool, "/tools/new", "/evaluators", f"/evaluators?loop={loop.rpartition('/')[2]}", "/usage?by=model",
            "/activity", "/settings", "/sign-in", "/nothing", "/schedules", schedule, "/webhooks", webhook,
            "/endpoints", endpoint, message, "/guardrails", guardrail,
        ]  # fmt: skip
        for path in pages:
            page = admin if path.startswith("/guardrails") else member
            page.set_viewport_size({"width": 1280, "height": 800})
            page.goto(path)
            page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
            if path.startswith("/runs/run_") and "iterations" not in path:
                page.wait_for_selector(".told >> nth=1")
            page.add_script_tag(path=AXE)
            # A scheme changes colours only: in the dark one what is of colours is looked at again.
            for scheme, rules in SCHEMES:
                page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                run = f"axe.run({rules}).then(r => r.violations.map(v => [v.id, v.nodes[0].html, v.help]))"
                broken = page.evaluate(run)
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
    with open_site(pg_server, tmp_path, shared=False) as site, site.visit(browser, bypass_csp=True) as context:
        page = context.new_page()
        page.goto("/usage?by=model")
        page.wait_for_url("**/sign-in?next=%2Fusage%3Fby%3Dmodel")
        page.add_script_tag(path=AXE)
        assert page.evaluate("axe.run().then(found => found.violations.map(each => each.id))") == []
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
        there = positions(page)
        assert there == list(range(len(there), 0, -1))
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
        # One into which something was typed keeps it until one is signed in again, in another tab.
        page.goto(f"{loop}/edit")
        page.fill("[name=goal]", "Find the secret code.\nIt has 5 letters.")
        context.clear_cookies()
        page.click("button:has-text('Save')")
        expect(page.locator("main")).to_contain_text("You were signed out")
        expect(page.locator("pre", has_text="It has 5 letters.")).to_be_visible()
        with context.expect_page() as opened:
            page.click("text=Sign in in a new tab")
        opened.value.fill("#token", site.token())
        opened.value.click("button:has-text('Sign in')")
        opened.value.wait_for_url(f"{loop}/edit")
        opened.value.close()
        page.click("button:has-text('Send it again')")
        page.wait_for_url(f"{loop}?note=saved")
        expect(page.locator("pre")).to_have_text("Find the secret code.\nIt has 5 letters.")
        page.keyboard.press("r")
        page.wait_for_selector("#conn[data-state=live]")
        context.clear_cookies()
        page.wait_for_url("**/sign-in?next=%2Fruns%2F*")


def test_times_are_those_of_the_viewer(browser: Browser, site: Site) -> None:
    run = site.seed_run(["a fish"], number=120)
    with site.visit(browser, timezone_id="Asia/Tokyo", locale="en-GB") as context:
        page = context.new_page()
        page.goto(f"/runs/{run}/iterations/1")
        time_shown = page.locator("time").first
        assert time_shown.get_attribute("datetime") == "2026-11-30T12:00:00.000+00:00"
        assert "21:00" in time_shown.inner_text()
        exact = time_shown.get_attribute("title") or ""
        assert exact.startswith("Monday") and "21:00:00" in exact and "30 November 2026" in exact
    with site.visit(browser, timezone_id="Asia/Tokyo", java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"/runs/{run}/iterations/1")
        assert page.locator("time").first.inner_text() == "30 Nov 12:00 UTC"  # and says so


def test_sign_in_and_out(browser: Browser, site: Site, auth: AuthServer) -> None:
    """A password, a provider, back to the page one came from, and out."""
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
