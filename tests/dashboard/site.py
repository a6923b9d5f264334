"""A real server in a process of its own, on a database of the test's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from playwright.sync_api import Browser, BrowserContext, Page, expect
from psycopg import sql
from psycopg.types.json import Jsonb

from loopwright.store.database import Urls
from loopwright.store.embedded import EmbeddedServer
from tests.api.world import SERVICE_KEY
from tests.postgres import OWNER, urls_of

PATIENCE = 60_000
"""Milliseconds that a browser may take for anything: twenty tabs on a busy machine take their time."""

expect.set_options(timeout=PATIENCE)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

SPEC: dict[str, Any] = {
    "name": "seeded",
    "goal": "Find the code of 4 letters from A to F.",
    "agent": {"model": "practice"},
    "stop": {"target_score": 0.9, "max_iterations": 3000, "budget_usd": "1"},
}


@dataclass(kw_only=True)
class Site:
    """The server, and its database."""

    urls: Urls
    home: Path
    port: int
    shared: bool
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        env = {
            **os.environ,
            "DATABASE_URL": self.urls.app,
            "DATABASE_URL_DIRECT": self.urls.direct,
            "LOOPWRIGHT_HOME": str(self.home),
            **self.environ,
        }
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
            env.pop(name, None)
        if self.shared:
            env["LOOPWRIGHT_SERVICE_KEY"] = SERVICE_KEY
            env["LOOPWRIGHT_EGRESS_ALLOW"] = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "loopwright", "serve", "--port", str(self.port)]
        log = (self.home / "log.txt").open("ab")
        with log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=self.home)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{self.address}/api/health/ready", timeout=5):
                    return
            except OSError:
                assert self.process.poll() is None, (self.home / "log.txt").read_text()
                time.sleep(0.1)
        raise AssertionError((self.home / "log.txt").read_text())

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def token(self) -> str:
        """What the owner signs in with."""
        return (self.home / "log.txt").read_text().partition("token=")[2].split()[0]

    def sign_in(self, page: Page) -> None:
        """Sign in as the owner, by the printed address."""
        page.goto(f"{self.address}/login?token={self.token()}")
        page.wait_for_url(f"{self.address}/")

    # --- people ---

    def visit(self, browser: Browser, user: str = OWNER, **options: Any) -> BrowserContext:
        """A browser as a user has it."""
        headers = {"Authorization": f"Bearer {SERVICE_KEY}", "X-Triggered-By": user} if self.shared else {}
        context = browser.new_context(base_url=self.address, extra_http_headers=headers, **options)
        context.set_default_timeout(PATIENCE)
        return context

    def somebody_new(self) -> str:
        """A user who has done nothing yet."""
        with psycopg.connect(self.urls.direct, autocommit=True) as connection:
            email = f"{uuid.uuid4().hex}@example.com"
            return _returned(connection, "insert into auth.users (email) values (%s) returning id::text", email)

    def make_loop(self, page: Page, *, pace: float = 0.0, template: str = "http", **typed: str) -> str:
        """Make the loop of a template with its form; returns its address."""
        page.goto(f"/loops/new?template={template}")
        for name, value in {"max_iterations": "12", **typed}.items():
            page.fill(f"[name={name}]", value)
        page.click("text=Make the loop")
        page.wait_for_url("**/loops/*-*")
        if pace:
            agent = page.get_attribute(".lead a", "href") or ""
            with psycopg.connect(self.urls.direct, autocommit=True) as connection:
                connection.execute(
                    "update public.agents set spec = spec || %s where id = %s",
                    (Jsonb({"settings": {"practice_pace": pace}}), agent.rpartition("/")[2]),
                )
        return page.url

    def seed_run(self, texts: Sequence[str], **given: Any) -> str:
        """A finished run with these candidates, as if it had run."""
        return seed_run(self.urls, texts, **given)


# --- what can't be had in the time of a test ---


def seed_run(
    urls: Urls, texts: Sequence[str], *, owner: str = OWNER, number: int = 1, detail: str = "as it is",
    loop_id: str | None = None,
) -> str:  # fmt: skip
    """A finished run with these candidates, as if it had run."""
    run_id = f"run_{number:021x}"
    with psycopg.connect(urls.direct) as connection:
        connection.execute(
            """
            insert into public.loop_runs (id, loop_id, loop_name, owner_id, door, spec, goal, status, stop_reason,
              sentence, cap_usd, spent_usd, iterations, best_attempt, best_iteration, best_score, started_at,
              finished_at)
            values (%s, %s, %s, %s, 'ui', %s, %s, 'finished', 'max_iterations', %s, 1, 0.85, %s, 1, %s, %s,
              now() - interval '1 hour', now())
            """,
            (run_id, loop_id, texts[0][:100] or "seeded", owner, Jsonb(SPEC), texts[0], detail[:200], len(texts),
             len(texts), 0.8),
        )  # fmt: skip
        rows = [
            (run_id, n, n, score, Jsonb(_iteration(n, text, score, detail)))
            for n, text in enumerate(texts, start=1)
            for score in [0.8 * n / len(texts)]
        ]
        with connection.cursor() as cursor:
            cursor.executemany(
                "insert into public.loop_iterations (run_id, attempt, number, position, score, cost_usd, "
                "elapsed_seconds, is_best, data) values (%s, 1, %s, %s, %s, 0.001, 1, true, %s)",
                rows,
            )
    return run_id


def seed_loop(urls: Urls, words: str, *, owner: str = OWNER) -> tuple[str, str]:
    """A loop and its agent that are called so, as is all else about them; what was done with them, and paid."""
    spec = {"goal": words, "evaluator": {"kind": "judge", "model": words, "rubric": words}, "stop": SPEC["stop"]}
    with psycopg.connect(urls.direct) as connection:
        agent = _returned(
            connection, "insert into public.agents (owner_id, name, spec) values (%s, %s, %s) returning id::text",
            owner, words[:200], Jsonb({"model": words, "instructions": words}),
        )  # fmt: skip
        loop = _returned(
            connection, "insert into public.loops (owner_id, name, agent_id, spec, worst_case_usd) "
            "values (%s, %s, %s, %s, 0.01) returning id::text", owner, words[:200], agent, Jsonb(spec),
        )  # fmt: skip
        _returned(
            connection, "insert into public.schedules (owner_id, name, loop_id, cron, zone, status, notice) "
            "values (%s, %s, %s, '@daily', 'UTC', 'disabled', %s) returning id::text", owner, words[:200], loop, words,
        )  # fmt: skip
        _returned(
            connection, "insert into public.activity_log (user_id, door, action, subject, detail) "
            "values (%s, 'ui', 'loop_made', %s, %s) returning id::text", owner, f"loop:{loop}", Jsonb({"name": words}),
        )  # fmt: skip
        _returned(
            connection, "insert into public.usage_records (context, owner_id, loop_id, role, model, basis, cost_usd) "
            "values ('loop', %s, %s, 'agent', %s, 'usage', 0.01) returning id::text", owner, loop, words[:100],
        )  # fmt: skip
    return loop, agent


def _returned(connection: psycopg.Connection[Any], statement: LiteralString, *values: object) -> str:
    row = connection.execute(statement, values).fetchone()
    assert row
    return str(row[0])


def _iteration(number: int, text: str, score: float, detail: str) -> dict[str, Any]:
    return {
        "number": number,
        "candidate": {"text": text},
        "feedback": {"score": score, "detail": detail},
        "cost_usd": "0.001",
        "tool_calls": [{"name": text[:60], "arguments": text[:200], "result": text[:200]}],
        "started_at": "2026-11-30T12:00:00Z",
        "seconds": 1.5,
    }


@contextmanager
def open_site(
    running: EmbeddedServer, home: Path, *, shared: bool, environ: Mapping[str, str] | None = None
) -> Generator[Site]:
    """A server that ends with the test."""
    database = f"t{uuid.uuid4().hex[:16]}"
    name = sql.Identifier(database)
    with psycopg.connect(running.url(database="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("create database {} template template_loopwright").format(name))
        site = Site(urls=urls_of(running, database), home=home, port=_free_port(), shared=shared, environ=environ or {})
        try:
            site.start()
            yield site
        finally:
            site.kill()
            connection.execute(sql.SQL("drop database {} with (force)").format(name))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
