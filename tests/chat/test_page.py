"""The page of conversations: by forms alone, and in a browser that sees the answer come."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from loopwright.store.embedded import EmbeddedServer
from tests.api.world import SERVICE_KEY
from tests.builtins.world import Brain, Say, Seen, brain_on_a_port
from tests.dashboard.conftest import browser
from tests.dashboard.site import CHROMIUM, Site, open_site
from tests.postgres import ADMIN, OTHER, OWNER

from .world import Chat

__all__ = ["browser"]

AXE = Path(__file__).parent.parent / "dashboard" / "vendored" / "axe.min.js"
ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)> ~~~ </div>\u202e"


async def page_of(chat: Chat, path: str, *, user: str = OWNER) -> httpx.Response:
    return await chat.api.call("GET", path, user=user, accept="text/html")


async def typed(chat: Chat, path: str, *, user: str = OWNER, **fields: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": user}
    return await chat.api.http.post(path, data=fields, headers=headers)


async def test_a_conversation_by_forms_alone(chat: Chat) -> None:
    assert "make an agent" in (await page_of(chat, "/chat")).text
    agent = await chat.make_agent(builtins=())
    form = {"agent_id": agent["id"], "cap_usd": "0.25", "text": "How many seas are there?", "once": "k1"}
    wrong = await typed(chat, "/chat", **{**form, "cap_usd": "lots", "agent_id": "x", "text": " "})
    assert wrong.status_code == 422
    assert "choose who answers" in wrong.text and "is empty; write a message" in wrong.text
    chat.brain.think = lambda _: f"There are seven. {ATTACK}"
    first = await typed(chat, "/chat", **form)
    twice = await typed(chat, "/chat", **form)
    assert (first.status_code, first.headers["location"]) == (303, twice.headers["location"])
    address = first.headers["location"].partition("#")[0]
    thread = address.rpartition("/")[2]
    await chat.until(thread, "waiting")
    assert len(chat.brain.seen) == 1
    shown = (await page_of(chat, address)).text
    assert "How many seas are there?" in shown and "There are seven." in shown
    assert "<script>alert" not in shown and "[U+202E]" in shown
    assert "$0.000072" in shown and "$0.25" in shown and "Waiting for you." in shown
    assert "How many seas are there?" in (await page_of(chat, "/chat")).text
    # Its run is no page of its own, and how it was answered is.
    run = (await chat.thread(thread))["run_id"]
    assert (await page_of(chat, f"/runs/{run}")).headers["location"] == address
    assert "There are seven." in (await page_of(chat, f"/runs/{run}/iterations/1")).text
    assert "Fork" not in (await page_of(chat, f"/runs/{run}/iterations/1")).text
    # While one is being answered, what was typed is kept.
    chat.brain.may_answer.clear()
    await typed(chat, f"{address}/messages", text="and lakes?", once="k2")
    busy = await typed(chat, f"{address}/messages", text="and rivers?", once="k3")
    assert busy.status_code == 409 and "and rivers?" in busy.text and "being answered" in busy.text
    assert "Stop" in busy.text and (await typed(chat, f"{address}/stop")).status_code == 303
    await chat.until(thread, "waiting")
    assert "Stopped before it was answered." in (await page_of(chat, address)).text
    low = await typed(chat, f"{address}/change", title="Seas", cap_usd="0.000001")
    assert low.status_code == 422 and "is spent already" in low.text
    assert (await typed(chat, f"{address}/change", title="Seas", cap_usd="0.5")).status_code == 303
    assert '<h1 dir="auto">Seas</h1>' in (await page_of(chat, address)).text
    assert (await typed(chat, f"{address}/archive", archived="yes")).headers["location"].startswith("/chat?")
    assert "Seas" not in (await page_of(chat, "/chat")).text
    assert "Seas" in (await page_of(chat, "/chat?archived=true")).text
    assert "Bring it back" in (await page_of(chat, address)).text
    await typed(chat, f"{address}/archive")
    assert "Seas" in (await page_of(chat, "/chat")).text


async def test_a_cap_that_is_reached_says_the_way_out(chat: Chat) -> None:
    thread = await chat.begin(builtins=())
    await chat.say(thread, "hello")
    spent = (await chat.thread(thread))["spent_usd"]
    await chat.api.call("PATCH", f"/api/threads/{thread}", {"cap_usd": spent})
    shown = (await page_of(chat, f"/chat/{thread}")).text
    assert "The cap is reached: raise it below to go on." in shown
    refused = await typed(chat, f"/chat/{thread}/messages", text="more", once="k1")
    assert refused.status_code == 409 and "Raise the cap" in refused.text


@pytest.mark.parametrize("user", [OTHER, ADMIN])
async def test_somebody_elses_page_is_not_there(chat: Chat, user: str) -> None:
    thread = await chat.begin(builtins=())
    await chat.say(thread, "a secret")
    for path in (f"/chat/{thread}", f"/chat/{thread}/live"):
        assert (await page_of(chat, path, user=user)).status_code == 404
    for path in ("messages", "stop", "change", "archive"):
        answer = await typed(chat, f"/chat/{thread}/{path}", user=user, text="hello", title="mine", cap_usd="")
        assert answer.status_code == 404, path
    assert "a secret" not in (await page_of(chat, "/chat", user=user)).text


async def test_builtins_are_granted_on_the_page_of_an_agent(chat: Chat) -> None:
    agent = await chat.make_agent(builtins=("list_loops",))
    shown = (await page_of(chat, f"/agents/{agent['id']}")).text
    assert "start_loop" in shown and "loop_done" not in shown
    ids = [(await chat.house.builtin(name))["id"] for name in ("list_loops", "start_loop")]
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": OWNER}
    form = {"name": "helper", "model": "practice", "instructions": "", "version": "1", "tool_ids": ids}
    saved = await chat.api.http.post(f"/agents/{agent['id']}", data=form, headers=headers)
    assert saved.status_code == 303
    assert set((await chat.api.get(f"/api/agents/{agent['id']}"))["tool_ids"]) == set(ids)


# --- in a browser ---


@pytest.fixture(scope="module")
def brain() -> Generator[Brain]:
    with brain_on_a_port() as found:
        yield found


@pytest.fixture(scope="module")
def site(pg_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory, brain: Brain) -> Generator[Site]:
    with open_site(pg_server, tmp_path_factory.mktemp("chat"), shared=True) as opened:
        settings = ask(opened, "GET", "/api/settings", user=ADMIN)
        hosts = {"allow_hosts": [*settings["allow_hosts"], brain.host]}
        ask(opened, "PATCH", "/api/settings", hosts, user=ADMIN)
        yield opened


def ask(site: Site, method: str, path: str, body: object = None, *, user: str = OWNER) -> Any:
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": user, "if-match": "*"}
    answer = httpx.request(method, f"{site.address}{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.headers["content-type"] == "application/json" else answer.text


def agent_on(site: Site, brain: Brain, name: str) -> None:
    """An agent of this name that can have the loop `small` run."""
    brain.words = None
    brain.seen.clear()
    brain.may_answer.set()
    brain.may_finish.clear()
    tools = {tool["name"]: tool["id"] for tool in ask(site, "GET", "/api/tools")["items"] if tool["is_builtin"]}
    spec = {"model": "openai:gpt-4o-mini", "base_url": brain.url, "max_output_tokens": 500, "loop_done": False}
    names = ("start_loop", "check_loop", "list_loops")
    agent = {"name": name, "spec": spec, "tool_ids": [tools[name] for name in names]}
    ask(site, "POST", "/api/agents", agent)
    worker = ask(site, "POST", "/api/agents", {"name": "worker", "spec": spec})
    stop = {"max_iterations": 1, "budget_usd": "0.05"}
    loop = {"name": "small", "agent_id": worker["id"], "spec": {"goal": "the goal of small", "stop": stop}}
    ask(site, "POST", "/api/loops", loop)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_the_answer_is_seen_while_it_comes(browser: Browser, site: Site, brain: Brain) -> None:
    def think(seen: Seen) -> Say:
        if "the goal of small" in seen.goal:
            return "a small text"
        if "small" in seen.goal and not seen.results:
            return [("start_loop", {"loop": "small"})]
        return "There are seven seas, as everybody knows."

    agent_on(site, brain, "sailor")
    brain.think, brain.words = think, 3
    complaints: list[str] = []
    with site.visit(browser) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.goto("/chat")
        page.select_option("[name=agent_id]", label="sailor")
        page.fill("[name=cap_usd]", "0.25")
        page.fill("[name=text]", "How many seas are there?")
        page.click("button:has-text('Send')")
        page.wait_for_url("**/chat/*-*")
        expect(page.locator("#now .words")).to_have_text("There are seven")
        # Who comes back while it is written sees it from its beginning.
        page.reload()
        expect(page.locator("#now .words")).to_have_text("There are seven")
        brain.may_finish.set()
        expect(page.locator(".given")).to_have_text("There are seven seas, as everybody knows.")
        expect(page.locator("#now")).to_be_hidden()
        expect(page.locator("#cost .sub")).to_have_text("Waiting for you.")
        expect(page.locator("#cost .big")).to_contain_text("$0.000072")
        # The next one starts a loop, and the page follows it to its end.
        page.fill("[name=text]", "Have small run.")
        page.click("button:has-text('Send')")
        expect(page.locator(".runs li")).to_contain_text("small")
        expect(page.locator(".runs .badge")).to_have_text("max iterations")
        expect(page.locator(".runs li")).to_contain_text("of at most $0.05")
        address = page.url
        page.click(".runs a")
        page.wait_for_url("**/runs/run_*")
    assert complaints == []
    with site.visit(browser, bypass_csp=True, reduced_motion="reduce") as context:
        page = context.new_page()
        for path in (address, "/chat"):
            page.goto(path)
            look_at(page, complaints)
    assert complaints == []


def look_at(page: Page, complaints: list[str]) -> None:
    """Axe finds nothing, in light and dark, and at 375 pixels nothing is wide."""
    page.evaluate("document.querySelectorAll('main details').forEach((each) => { each.open = true; })")
    page.add_script_tag(path=AXE)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # pyright: ignore[reportArgumentType]
        complaints += page.evaluate("axe.run().then(r => r.violations.map(v => v.id + ' ' + v.nodes[0].html))")
    page.set_viewport_size({"width": 375, "height": 700})
    wide = page.evaluate("document.documentElement.scrollWidth")
    complaints += [f"{page.url} is {wide} wide"] if wide > 375 else []
    page.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_it_works_without_scripts_and_an_answer_outlives_the_server(browser: Browser, site: Site, brain: Brain) -> None:
    agent_on(site, brain, "keeper")
    brain.think = lambda _: "An answer that came through."
    brain.may_answer.clear()
    with site.visit(browser, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto("/chat")
        page.select_option("[name=agent_id]", label="keeper")
        page.fill("[name=text]", "Are you there?")
        page.click("button:has-text('Send')")
        expect(page.locator(".turn .meta")).to_contain_text("Reload this page to see the answer.")
        while not brain.seen:
            page.wait_for_timeout(20)
        site.kill()
        brain.may_answer.set()
        site.start()
        for _ in range(300):
            page.reload()
            if page.locator(".given").count():
                break
            page.wait_for_timeout(200)
        expect(page.locator(".given")).to_have_text("An answer that came through.")
        # What was in flight when the power went is charged whole, and the answer is paid once.
        thread = ask(site, "GET", "/api/threads")["items"][0]
        assert len(brain.seen) == 2
        (message,) = ask(site, "GET", f"/api/threads/{thread['id']}")["items"]
        assert message["cost_usd"] == thread["spent_usd"] and message["status"] == "answered"


def test_what_was_paid_before_a_kill_is_not_paid_again(site: Site, brain: Brain) -> None:
    """The server dies after the agent has started a loop, and before it could say so."""
    agent_on(site, brain, "diver")
    held = threading.Event()

    def think(seen: Seen) -> Say:
        if "the goal of small" in seen.goal:
            return "a small text"
        if not seen.results:
            return [("start_loop", {"loop": "small"})]
        if not held.is_set():
            brain.may_answer.clear()
            held.set()
        return "It has begun."

    brain.think = think
    (agent,) = [each for each in ask(site, "GET", "/api/agents")["items"] if each["name"] == "diver"]
    thread = ask(site, "POST", "/api/threads", {"agent_id": agent["id"], "cap_usd": "0.25"})["id"]

    def post() -> None:
        with suppress(httpx.HTTPError):
            ask(site, "POST", f"/api/threads/{thread}/messages", {"text": "Have it run, diver."})

    posting = threading.Thread(target=post)
    posting.start()
    assert held.wait(60)
    site.kill()
    posting.join()
    brain.may_answer.set()
    site.start()
    found: Any = {"status": "answering"}
    until = time.monotonic() + 120
    while found["status"] == "answering" and time.monotonic() < until:
        time.sleep(0.1)
        found = ask(site, "GET", f"/api/threads/{thread}")
    (message,) = found["items"]
    assert message["answer"] == "It has begun."
    assert len(message["runs"]) == 1
    mine = [seen for seen in brain.seen if "diver" in seen.goal]
    assert [len(seen.results) for seen in mine] == [0, 1, 1]  # only what was in flight is asked again
    assert mine[1].results[0]["run_id"] == mine[2].results[0]["run_id"] == message["runs"][0]["run_id"]
    assert Decimal(found["spent_usd"]) <= Decimal("0.25")
