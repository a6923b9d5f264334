"""Photographs the dashboard: a real server, a real browser, a run of the practice model and some runs made up for it.

python docs/make_screenshots.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from psycopg.types.json import Jsonb

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from loopwright.service.runtime import LOCAL_OWNER  # noqa: E402
from tests.dashboard.site import CHROMIUM, Site, open_site  # noqa: E402
from tests.postgres import server  # noqa: E402

DOCS = ROOT / "docs" / "images"

IN_DOCS = {"loops-light-1280", "run-light-1280", "run-dark-1280", "run-light-375", "compare-light-1280"}
"""What the documentation shows; into another folder go all of them."""

GOAL = "Write a tagline for a bakery that is open all night. At most 60 characters, warm, and no pun on dough."

TRIES: tuple[tuple[str, float, str], ...] = (
    ("Fresh bread, any hour.", 0.52, "Says when, says nothing warm. Could be any bakery."),
    ("The oven never sleeps, so neither do our rolls.", 0.61, "Warm, but the rolls don't sleep: the picture is odd."),
    ("Bread at three in the morning? Come in.", 0.74, "Alive: a time, an invitation. The warmth is missing."),
    ("Still up? So is our oven.", 0.71, "Short and friendly; says little of bread."),
    ("Three in the morning, and the bread is warm.", 0.83, "A time, a picture, warmth. The invitation got lost."),
    ("It's three in the morning, and the bread is warm. Come in.", 0.92, "Everything is there, in 58 characters."),
)

LOOPS: tuple[tuple[str, str, tuple[float, ...], str, str], ...] = (
    ("Tagline", GOAL, (0.74, 0.83, 0.71, 0.92), "target_reached", "openai:gpt-4o-mini"),
    ("Release notes", "Turn the list of changes into notes that a customer understands.",
     (0.55, 0.6, 0.78, 0.8, 0.81), "no_improvement", "anthropic:claude-haiku-4-5"),
    ("SQL for the weekly report", "Write the query whose rows equal the expected ones.", (0.2, 0.4, 0.9, 1.0),
     "budget", "openai:gpt-4o"),
    ("Support reply", "Answer the ticket in the tone of the handbook.", (0.8, 0.66, 0.7), "error",
     "openai:gpt-4o-mini"),
)  # fmt: skip


def fill(site: Site) -> list[str]:
    """Make up loops with runs; returns the runs of the first."""
    runs: list[str] = []
    with psycopg.connect(site.urls.direct) as connection:
        for which, (name, goal, bests, reason, model) in enumerate(LOOPS):
            agent = {"model": model, "instructions": "You write short and clear."}
            row = connection.execute(
                "insert into public.agents (owner_id, name, spec) values (%s, %s, %s) returning id",
                (LOCAL_OWNER, "Copywriter" if which == 0 else f"{name} agent", Jsonb(agent)),
            ).fetchone()
            spec: dict[str, Any] = {
                "goal": goal,
                "evaluator": {"kind": "judge", "model": "openai:gpt-4.1-mini", "rubric": "Vivid, true, short."},
                "stop": {"target_score": 0.9, "max_iterations": 20, "budget_usd": "0.50"},
            }
            loop = connection.execute(
                "insert into public.loops (owner_id, name, agent_id, spec, worst_case_usd) "
                "values (%s, %s, %s, %s, 0.0142) returning id",
                (LOCAL_OWNER, name, row[0] if row else None, Jsonb(spec)),
            ).fetchone()
            for nth, best in enumerate(bests):
                last = nth == len(bests) - 1
                run = _run(
                    connection, (which, nth, len(bests)), best, loop, name=name, goal=goal,
                    spec={**spec, "name": name, "agent": agent}, reason=reason if last else "max_iterations",
                )  # fmt: skip
                if which == 0:
                    runs.append(run)
    return runs


def _run(
    connection: psycopg.Connection[Any], place: tuple[int, int, int], best: float, loop: Any, *, name: str, goal: str,
    spec: dict[str, Any], reason: str,
) -> str:  # fmt: skip
    which, nth, many = place
    run_id = f"run_{which:03x}{nth:03x}{'c0ffee1dea5'[:11]}{which}{nth}"
    whole = nth == many - 1
    tries = [each for n, each in enumerate(TRIES) if each[1] <= best + 1e-9 and (whole or (n + nth) % 3)]
    spent = 0.0113 * len(tries) if reason != "budget" else 0.4991
    connection.execute(
        """
        insert into public.loop_runs (id, loop_id, loop_name, owner_id, door, spec, goal, status, stop_reason, sentence,
          error, cap_usd, spent_usd, iterations, best_attempt, best_iteration, best_score, created_at, started_at,
          finished_at)
        values (%s, %s, %s, %s, 'ui', %s, %s, 'finished', %s, %s, %s, 0.5, %s, %s, 1, %s, %s,
          now() - make_interval(hours => %s), now() - make_interval(hours => %s), now() - make_interval(hours => %s,
          secs => -47))
        """,
        (run_id, loop[0], name, LOCAL_OWNER, Jsonb(spec), goal, reason, f"Best score {best:g}.",
         "three iterations in a row failed" if reason == "error" else None, spent, len(tries), len(tries), best,
         *[3 * (many - nth) + which] * 3),
    )  # fmt: skip
    for number, (text, score, detail) in enumerate(tries, start=1):
        data = {
            "number": number, "candidate": {"text": text}, "feedback": {"score": score, "detail": detail},
            "cost_usd": "0.0113", "tokens": {"input": 1200 + 90 * number, "output": 64},
            "started_at": "2026-11-30T12:00:00Z", "seconds": 2.4,
        }  # fmt: skip
        better = score == max(each[1] for each in tries[:number])
        connection.execute(
            "insert into public.loop_iterations (run_id, attempt, number, position, score, cost_usd, elapsed_seconds, "
            "is_best, data) values (%s, 1, %s, %s, %s, 0.0113, %s, %s, %s)",
            (run_id, number, number, score, 2.4 * number, better, Jsonb(data)),
        )
        for role, model, cost in (("agent", spec["agent"]["model"], 0.0081), ("judge", "openai:gpt-4.1-mini", 0.0032)):
            connection.execute(
                "insert into public.usage_records (context, owner_id, run_id, loop_id, role, model, attempt, "
                "iteration, basis, cost_usd, input_tokens, output_tokens, at) "
                "values ('loop', %s, %s, %s, %s, %s, 1, %s, 'usage', %s, 1200, 64, now() - make_interval(days => %s))",
                (LOCAL_OWNER, run_id, loop[0], role, model, number, cost, nth),
            )
    return run_id


@contextmanager
def visit(browser: Browser, site: Site, scheme: str, width: int) -> Iterator[tuple[BrowserContext, Page]]:
    """A browser that is signed in."""
    height = 860 if width > 500 else 780
    with site.visit(
        browser, color_scheme=scheme, viewport={"width": width, "height": height}, timezone_id="Europe/Berlin",
        locale="en-GB", device_scale_factor=1 if width > 500 else 2, reduced_motion="reduce",
    ) as context:  # fmt: skip
        page = context.new_page()
        page.goto(f"/login?token={site.token()}")
        yield context, page


def shoot(folder: Path) -> None:
    """All pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="lws-"))
    with server() as running, sync_playwright() as playwright, open_site(running, home, shared=False) as site:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with visit(browser, site, "light", 1280) as (_, page):
            page.screenshot(path=folder / "start.png")
            live = site.make_loop(page, pace=0.5)
        runs = fill(site)
        with visit(browser, site, "light", 1280) as (_, page):
            page.goto(live)
            page.keyboard.press("r")
            page.wait_for_selector("#log details >> nth=3", timeout=60_000)
            page.screenshot(path=folder / "live.png")
            page.wait_for_selector("#conn[data-state=finished]", timeout=60_000)
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 375), ("dark", 375)):
            with visit(browser, site, scheme, width) as (_, page):
                _pages(page, runs, folder, f"{scheme}-{width}")
        browser.close()


def _pages(page: Page, runs: list[str], folder: Path, kind: str) -> None:
    page.goto("/")
    loop = page.get_attribute("h2 a:has-text('Tagline')", "href") or "/"
    for name, path in (
        ("loops", "/"), ("loop", loop), ("edit", f"{loop}/edit"), ("run", f"/runs/{runs[-1]}"),
        ("compare", f"/compare?run={runs[1]}&run={runs[-1]}"), ("usage", "/usage?by=role"), ("settings", "/settings"),
        ("evaluators", f"/evaluators?loop={loop.rpartition(chr(47))[2]}"), ("schedules", "/schedules"),
        ("webhooks", "/webhooks"), ("agents", "/agents"), ("tools", "/tools"), ("activity", "/activity"),
        ("usage-by-day", "/usage"),
    ):  # fmt: skip
        page.goto(path)
        if name == "run":
            page.click("#log details >> nth=0 >> summary")
            page.wait_for_selector(".told")
        if folder != DOCS or f"{name}-{kind}" in IN_DOCS:
            page.screenshot(path=folder / f"{name}-{kind}.png", full_page=name != "edit")


if __name__ == "__main__":
    shoot(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
