"""How long the page of a run takes from navigation to loaded, with 20 and with 2,000 iterations, in a real browser.

A real server in a process of its own on a real database; both pages are opened in turns in one browser. Beside the time
by the clock stands what makes it so and doesn't depend on the machine: bytes of the page, nodes of its document. A long
task is a stretch in which a browser can't answer to who scrolls or types.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, sync_playwright

from tests.dashboard.site import CHROMIUM, Site, open_site
from tests.postgres import server

from .stage import Target, arguments, verdict

SIZES = (20, 2_000)

LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd > 0"

LOOK = """new Promise((done) => {
  const [page] = performance.getEntriesByType("navigation");
  let longest = 0;
  const observer = new PerformanceObserver((list) => {
    for (const task of list.getEntries()) longest = Math.max(longest, task.duration);
  });
  observer.observe({ type: "longtask", buffered: true });
  scrollTo(0, document.body.scrollHeight);
  const nodes = document.querySelectorAll("*").length;
  setTimeout(() => done([page.loadEventEnd, longest, page.encodedBodySize, nodes]), 300);
})"""


@dataclass(frozen=True)
class Opened:
    """A page that was opened: milliseconds, and its size."""

    loaded: float
    longest_task: float
    bytes: int
    nodes: int


def opened(page: Page, path: str) -> Opened:
    """Open a page and look at it when it is loaded."""
    page.goto(path)
    page.wait_for_function(LOADED)
    return Opened(*page.evaluate(LOOK))


def report(browser: Browser, site: Site, *, rounds: int, check: bool) -> int:
    """Measure, print, judge."""
    runs = {many: site.seed_run([f"candidate {n}" for n in range(many)], number=900_000 + many) for many in SIZES}
    with site.visit(browser) as context:
        page = context.new_page()
        if not site.shared:
            page.goto(f"/login?token={site.token()}")
        for run in runs.values():
            opened(page, f"/runs/{run}")  # fills the caches of the browser and of the database
        found = {many: [opened(page, f"/runs/{run}") for _ in range(rounds)] for many, run in runs.items()}
    for many, each in found.items():
        print(f"{many:,} iterations: loaded after {median(one.loaded for one in each):.0f} ms, ", end="")
        print(f"longest task {max(one.longest_task for one in each):.0f} ms, ", end="")
        print(f"{each[0].bytes:,} bytes, {each[0].nodes:,} nodes")
    few, most = (median(one.loaded for one in found[many]) for many in SIZES)
    print(f"2,000 over 20 iterations: {most / few:.2f}")
    return verdict([Target("2,000 iterations to the loaded page", most / 1_000, 1, " s")], check=check)


def main() -> int:
    """Open a server and a browser, and measure with them."""
    options = arguments(__doc__, rounds=11).parse_args()
    with server() as running, sync_playwright() as playwright, tempfile.TemporaryDirectory(prefix="lwp-") as home:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        with open_site(running, Path(home), shared=True) as site:
            code = report(browser, site, rounds=options.rounds, check=options.check)
        browser.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
