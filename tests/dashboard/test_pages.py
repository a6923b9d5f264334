"""The pages without a browser: who gets what, what is refused, what is kept when something is wrong."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import html
import re
from contextvars import ContextVar
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from jinja2 import meta

import loopwright.dashboard
from loopwright.dashboard import (
    activity,
    agents,
    chat,
    compare,
    endpoints,
    errors,
    evaluators,
    guardrails,
    loop_form,
    loops,
    render,
    run,
    runs,
    schedules,
    session,
    sign_in,
    tools,
    usage,
    webhooks,
    workspace,
)
from loopwright.dashboard.pages import PARTS
from loopwright.store.database import Urls
from tests.api.world import SERVICE_KEY, Api
from tests.dashboard.site import seed_run
from tests.postgres import ADMIN, OTHER, OWNER

ROOT = Path(loopwright.dashboard.__file__).parent

MACROS = {"area", "badge", "chart_svg", "choice", "diff_parts", "field", "wrongs"}

CONTEXTS = {
    "activity.html": activity.ActivityContext,
    "agent.html": agents.AgentContext,
    "agents.html": agents.AgentsContext,
    "chat.html": chat.ChatContext,
    "thread.html": chat.ThreadContext,
    "thread_live.html": chat.ThreadContext,
    "compare.html": compare.CompareContext,
    "confirm.html": sign_in.ConfirmContext,
    "delivery.html": endpoints.DeliveryContext,
    "endpoint.html": endpoints.EndpointContext,
    "endpoints.html": endpoints.EndpointsContext,
    "error.html": errors.ErrorContext,
    "evaluators.html": evaluators.EvaluatorsContext,
    "guardrail.html": guardrails.GuardrailContext,
    "guardrails.html": guardrails.GuardrailsContext,
    "iteration.html": run.IterationContext,
    "_iteration.html": run.IterationContext,
    "loop.html": loops.LoopContext,
    "loop_form.html": loop_form.LoopFormContext,
    "loops.html": loops.LoopsContext,
    "run.html": run.RunContext,
    "run_live.html": run.RunContext,
    "runs.html": runs.RunsContext,
    "schedule.html": schedules.ScheduleContext,
    "schedules.html": schedules.SchedulesContext,
    "settings.html": workspace.SettingsContext,
    "sign_in.html": session.SignInContext,
    "tool.html": tools.ToolContext,
    "tools.html": tools.ToolsContext,
    "usage.html": usage.UsageContext,
    "webhook.html": webhooks.WebhookContext,
    "webhooks.html": webhooks.WebhooksContext,
}


async def get(api: Api, path: str, user: str = OWNER, **headers: str) -> httpx.Response:
    return await api.call("GET", path, user=user, accept="text/html", **headers)


async def post(api: Api, path: str, user: str | None = OWNER, /, **typed: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {SERVICE_KEY}", "x-triggered-by": user} if user else {}
    return await api.http.post(path, data=typed, headers=headers)


FORM = {
    "name": "Sea", "goal": "Write a line about the sea.", "model": "practice", "evaluator_kind": "",
    "max_iterations": "3", "budget_usd": "0.10",
}  # fmt: skip


async def test_what_every_page_carries(api: Api) -> None:
    for path in ("/", "/chat", "/runs", "/loops/new", "/settings", "/nothing-here", "/sign-in"):
        answer = await get(api, path)
        assert answer.headers["content-type"] == "text/html; charset=utf-8", path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(r"<script(?![^>]*src=)|\sstyle=|\son[a-z]+=|https?://(?!localhost)", answer.text), path
    asset = re.findall(r'/static/[^"]+', (await get(api, "/")).text)[0]
    assert "immutable" in (await get(api, asset)).headers["cache-control"]


async def test_who_is_not_signed_in_comes_back_after_it(api: Api) -> None:
    answer = await api.call("GET", "/usage?by=role", user=None)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fusage%3Fby%3Drole")
    assert (await api.call("GET", "/", user=None, sec_fetch_dest="empty")).status_code == 401
    assert [session.own(each) for each in ("/a?b", "//evil", "https://evil", "/\\evil", "")] == [
        "/a?b",
        "/",
        "/",
        "/",
        "/",
    ]


async def test_a_form_of_another_site_is_refused(api: Api) -> None:
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "https://evil.example"}):
        answer = await api.http.post("/loops/new", data=FORM, headers=headers)
        assert answer.status_code == 403
    assert (await api.http.post("/api/loops", data=FORM)).status_code == 415  # the API takes JSON only
    too_large = await api.http.post("/loops/new", data={"goal": "x" * 1_100_000})
    assert too_large.status_code == 413
    assert (await post(api, "/loops/new", **{**FORM, "goal": "a\0b"})).status_code == 400


async def test_make_edit_run_and_delete_a_loop(api: Api) -> None:
    made = await post(api, "/loops/new", **FORM, once="k1")
    assert made.status_code == 303, made.text
    path = made.headers["location"]
    assert (await post(api, "/loops/new", **FORM, once="k1")).headers["location"] == path  # sent twice, made once
    page = await get(api, path)
    assert "on <b>practice</b>" in page.text and "after 3 iterations" in page.text and "$0.10" in page.text
    edit = (await get(api, f"{path}/edit")).text
    agent = re.findall(r'<option value="([0-9a-f-]{36})" selected>', edit)[0]
    changed = {**FORM, "agent_id": agent, "max_iterations": "2", "version": "1", "visibility": "private"}
    assert (await post(api, f"{path}/edit", **changed)).headers["location"] == f"{path}?note=saved"
    stale = await post(api, f"{path}/edit", **changed)
    assert stale.status_code == 412 and "read it again" in stale.text
    started = await post(api, f"{path}/run", once="k2", max_iterations="1")
    run_page = started.headers["location"]
    finished = await api.finished(run_page.rpartition("/")[2])
    assert (finished["iterations"], finished["door"]) == (1, "ui")
    assert (await post(api, f"{path}/run", once="k2", max_iterations="1")).headers["location"] == run_page
    assert (await post(api, f"{path}/delete", version="2")).headers["location"] == "/?note=deleted"
    assert (await get(api, run_page)).status_code == 200  # the run stays


async def test_what_was_typed_stays_when_something_is_wrong(api: Api) -> None:
    typed = {**FORM, "goal": "Keep <me>", "max_iterations": "many", "budget_usd": "-1", "target_score": "high"}
    answer = await post(api, "/loops/new", **typed)
    assert answer.status_code == 422
    assert "Keep &lt;me&gt;" in answer.text and 'value="many"' in answer.text
    for words in ("must be a whole number", "US dollars", "must be a number such as 0.9"):
        assert words in answer.text
    none = await post(api, "/loops/new", **{**FORM, "max_iterations": "", "budget_usd": ""})
    assert none.status_code == 422 and re.search(r'data-wrong="stop">[^<]*max_iterations', none.text)
    assert (await api.get("/api/agents"))["items"] == []  # nothing is left of a loop that wasn't made
    checked = await post(api, "/loops/check", **{**FORM, "model": "openai:no-such-model"})
    assert set(checked.json()["wrong"]) == {"model"}
    assert (await post(api, "/loops/check", **FORM)).json()["worst"].startswith("$0.")


async def test_forms_of_a_run_keep_what_was_typed(api: Api) -> None:
    run_id = await api.start(await api.make_loop())
    await api.finished(run_id)
    more = await post(api, f"/runs/{run_id}/extend", iterations="lots", budget_usd="0.07")
    assert more.status_code == 422 and 'value="lots"' in more.text and 'value="0.07"' in more.text
    fork = await post(api, f"/runs/{run_id}/fork", iteration="2", max_iterations="7", budget_usd="much")
    assert fork.status_code == 422 and 'value="much"' in fork.text and 'value="7"' in fork.text
    assert "US dollars" in fork.text and "Iteration 2" in fork.text


async def test_a_form_sent_after_the_session_leads_back_to_its_page(api: Api) -> None:
    for referer, back in (
        ("http://localhost/settings?note=saved", "%2Fsettings%3Fnote%3Dsaved"),
        ("http://elsewhere.example/settings", "%2F"),
        ("http://[", "%2F"),
    ):
        answer = await api.http.post("/settings/keys", data={"key_name": ""}, headers={"referer": referer})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/sign-in?next={back}")


async def test_what_was_typed_outlives_the_session(api: Api) -> None:
    typed = {**FORM, "goal": 'Two "lines"\n<of> it', "once": "k9"}
    out = await post(api, "/loops/new", None, **typed)
    assert out.status_code == 401 and out.headers["cache-control"] == "no-store" and "Nothing was saved" in out.text
    assert 'href="/sign-in?next=%2F" target="_blank"' in out.text
    kept = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', out.text)}
    assert kept == typed
    made = await post(api, "/loops/new", **kept)  # what its button sends
    assert made.status_code == 303
    spec = (await api.get(f"/api{made.headers['location']}"))["spec"]
    assert spec["goal"] == typed["goal"]
    secret = await post(api, "/settings/secrets", None, name="A_KEY", value="s3cret-value")
    assert (
        secret.status_code == 401
        and "s3cret-value" not in secret.text
        and 'name="value" type="password"' in secret.text
    )
    script = await api.http.post("/loops/check", data=FORM, headers={"sec-fetch-dest": "empty"})
    assert (script.status_code, script.text) == (401, "sign in")


async def test_what_was_typed_is_shown_where_it_could_not_be_saved(api: Api) -> None:
    path = (await post(api, "/agents/new", name="Writer", model="practice")).headers["location"].partition("?")[0]
    assert (await post(api, path, name="Writer", model="practice", version="1")).status_code == 303
    stale = await post(api, path, name="Writer", model="practice", instructions="Long <work>", version="1")
    assert stale.status_code == 412 and ">Long &lt;work&gt;</pre>" in stale.text and "Send it again" not in stale.text
    bidi = await post(api, f"/agents/{OWNER}", name="a\u202eb")
    assert bidi.status_code == 404 and "a[U+202E]b" in bidi.text and "\u202e" not in bidi.text


async def test_what_the_form_has_no_field_for_stays(api: Api) -> None:
    loop = await api.make_loop(history={"recent": 1}, stop={"any": [{"max_iterations": 3}, {"budget_usd": "0.5"}]})
    edit = (await get(api, f"/loops/{loop['id']}/edit")).text
    assert "&#34;any&#34;" in edit  # shown as JSON
    plain = await api.make_loop(history={"recent": 1}, name="plain")
    typed = {**FORM, "agent_id": plain["agent_id"], "version": "1", "max_iterations": "7"}
    assert (await post(api, f"/loops/{plain['id']}/edit", **typed)).status_code == 303
    spec = (await api.get(f"/api/loops/{plain['id']}"))["spec"]
    assert spec["history"] == {"recent": 1} and spec["stop"] == {"max_iterations": 7, "budget_usd": "0.10"}


async def test_whose_is_whose(api: Api) -> None:
    loop = await api.make_loop()
    run_id = await api.start(loop)
    await api.finished(run_id)
    agent = loop["agent_id"]
    for path in (f"/loops/{loop['id']}", f"/runs/{run_id}", f"/runs/{run_id}/live", f"/agents/{agent}"):
        assert (await get(api, path)).status_code == 200, path
        assert (await get(api, path, OTHER)).status_code == 404, path
        assert (await get(api, path, ADMIN)).status_code == 200, path
    for path in (f"/loops/{loop['id']}/run", f"/runs/{run_id}/stop", f"/runs/{run_id}/extend", f"/agents/{agent}/try"):
        assert (await post(api, path, OTHER, message="x", iterations="1")).status_code == 404, path
    shared = await api.make_loop(visibility="workspace", name="shared")
    assert (await get(api, f"/loops/{shared['id']}/edit", OTHER)).status_code == 403
    assert (await get(api, "/loops/nonsense")).status_code == 404


async def test_agents_and_tools(api: Api) -> None:
    made = await post(api, "/agents/new", name="Writer", model="practice", max_output_tokens="100", once="a")
    path = made.headers["location"].partition("?")[0]
    tried = await post(api, f"{path}/try", message="Find the code of 4 letters from A to F.", once="t")
    trial = await api.finished(tried.headers["location"].rpartition("/")[2])
    assert (trial["iterations"], trial["loop_id"], trial["cap_usd"]) == (1, None, "0.10")
    assert (await post(api, f"{path}/try", message=" ")).status_code == 422
    wrong = await post(api, path, name="Writer", model="openai:no-such", version="1")
    assert wrong.status_code == 422 and "no price is known" in wrong.text
    spec = '{"kind": "http", "name": "find", "description": "d", "url": "https://example.com/find"}'
    tool = (await post(api, "/tools/new", spec=spec, active="yes", once="b")).headers["location"].partition("?")[0]
    assert "find" in (await get(api, tool)).text
    assert (await post(api, "/tools/new", spec="{")).status_code == 422
    assert (await post(api, f"{tool}/delete", version="1")).status_code == 303
    assert (await post(api, f"{path}/delete", version="1")).status_code == 303


async def test_an_evaluator_is_tried_as_a_run_would_ask_it(api: Api) -> None:
    refused = await post(api, "/evaluators/try", url="http://10.0.0.1/score", candidate="x")
    assert refused.status_code == 422 and "LOOPWRIGHT_EGRESS_ALLOW" in refused.text
    away = await post(api, "/evaluators/try", url="http://127.0.0.1:1/score", candidate="x")
    assert away.status_code == 200 and "A run would refuse this" in away.text
    scored = await api.http.post("/examples/words?want=3", json={"candidate": "one two three", "goal": "g"})
    assert scored.json() == {"score": 1.0, "detail": "The text has 3 words, and 3 are wanted."}


async def test_secrets_go_in_and_caps_are_set_by_admins(api: Api) -> None:
    assert (await post(api, "/settings/secrets", name="A_KEY", value="s3cret-value")).status_code == 303
    page = (await get(api, "/settings")).text
    assert "A_KEY" in page and "s3cret-value" not in page
    wrong = await post(api, "/settings/secrets", name="1 bad", value="s3cret-value")
    assert wrong.status_code == 422 and "s3cret-value" not in wrong.text
    assert (await post(api, f"/settings/people/{OWNER}", cap="5")).status_code == 403
    assert (await post(api, f"/settings/people/{OWNER}", ADMIN, cap="5")).status_code == 303
    assert "of $5.00" in (await get(api, "/usage")).text
    assert (await post(api, "/settings/secrets/A_KEY/delete")).status_code == 303
    assert "secret deleted" in (await get(api, "/activity")).text


async def test_a_member_lowers_the_own_cap_and_raises_it_no_higher_than_an_admin_set(api: Api) -> None:
    assert (await post(api, "/settings/own-cap", own_cap_usd="0.40")).status_code == 303
    assert "of $0.40" in (await get(api, "/usage")).text  # where nobody set another
    assert (await post(api, f"/settings/people/{OWNER}", ADMIN, cap="5")).status_code == 303
    above = await post(api, "/settings/own-cap", own_cap_usd="5.01")
    assert above.status_code == 422 and 'value="5.01"' in above.text
    assert re.search(r'id="wrong-own_cap_usd" role="alert">is above the \$5\.00 that an admin set', above.text)
    wrong = await post(api, "/settings/own-cap", own_cap_usd="little")
    assert wrong.status_code == 422 and 'value="little"' in wrong.text
    assert 'value="0.40"' in (await get(api, "/settings")).text
    assert (await post(api, "/settings/own-cap", own_cap_usd="")).status_code == 303
    assert "of $5.00" in (await get(api, "/usage")).text
    assert "own cap set" in (await get(api, "/activity")).text


async def test_an_api_key_is_shown_once(api: Api) -> None:
    made = await post(api, "/settings/keys", key_name="nightly <b>")
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    (token,) = re.findall(r"lw_[\w-]{40,}", made.text)
    assert "nightly &lt;b&gt;" in made.text
    page = (await get(api, "/settings")).text
    assert token not in page and f"{token[:8]}…" in page and "never</span>" in page
    again = await post(api, "/settings/keys", key_name="nightly <b>")  # the form sent again, or a reload
    assert again.status_code == 422 and 'value="nightly &lt;b&gt;"' in again.text and "lw_…" in again.text
    assert (await api.http.get("/", headers={"authorization": f"Bearer {token}"})).status_code == 200
    (key_id,) = re.findall(r"/settings/keys/([0-9a-f-]{36})/revoke", page)
    assert (await post(api, f"/settings/keys/{key_id}/revoke", OTHER)).status_code == 404
    assert (await post(api, f"/settings/keys/{key_id}/revoke")).status_code == 303
    assert (await api.http.get("/", headers={"authorization": f"Bearer {token}"})).status_code == 303


async def test_roles_are_given_by_admins_and_the_last_one_stays(api: Api) -> None:
    assert f"/settings/people/{OWNER}" not in (await get(api, "/settings")).text
    assert (await post(api, f"/settings/people/{OWNER}", role="admin", cap="")).status_code == 403
    last = await post(api, f"/settings/people/{ADMIN}", ADMIN, role="member", cap="7")
    assert last.status_code == 422 and "this is the last admin" in last.text and 'value="7"' in last.text
    wrong = await post(api, f"/settings/people/{OWNER}", ADMIN, role="admin", cap="much")
    assert wrong.status_code == 422 and 'value="much"' in wrong.text
    assert (await post(api, f"/settings/people/{OWNER}", ADMIN, role="admin", cap="5")).status_code == 303
    page = (await get(api, "/settings")).text
    assert "You are an admin" in page and "of $5.00" in page


async def test_what_holds_for_everybody_is_set_by_admins(api: Api) -> None:
    price = {"model": "openai:my-model", "input": "0.5", "output": "2", "cached_input": "", "cache_write": ""}
    everybody = {"default_cap": "12", "allow_hosts": "a.internal:8443\nb.internal", "version": "1"}
    for path, typed in (("prices", price), ("workspace", everybody), ("prices/delete", {"model": "x"})):
        assert (await post(api, f"/settings/{path}", **typed)).status_code == 403, path
    wrong = await post(api, "/settings/prices", ADMIN, **{**price, "input": "cheap", "output": ""})
    assert wrong.status_code == 422 and 'value="cheap"' in wrong.text and "per million tokens</span>" in wrong.text
    assert (await post(api, "/settings/prices", ADMIN, **{**price, "model": "no model"})).status_code == 422
    assert (await post(api, "/settings/prices", ADMIN, **price)).status_code == 303
    assert (await post(api, "/settings/workspace", ADMIN, **everybody)).status_code == 412  # changed by the price
    everybody["version"] = "2"
    bad = await post(api, "/settings/workspace", ADMIN, **{**everybody, "allow_hosts": "http://x/y"})
    assert bad.status_code == 422 and "http://x/y" in bad.text and 'value="12"' in bad.text
    assert (await post(api, "/settings/workspace", ADMIN, **everybody)).status_code == 303
    page = (await get(api, "/settings")).text
    for words in ("openai:my-model", "$0.50", "a.internal:8443, b.internal", "may spend $12.00", "of $12.00"):
        assert words in page, words
    assert (await post(api, "/settings/prices/delete", ADMIN, model="openai:my-model")).status_code == 303
    assert "my-model" not in (await get(api, "/settings")).text


async def test_usage_by_everything(api: Api) -> None:
    await api.finished(await api.start(await api.make_loop(name="=cmd()")))
    for by in ("day", "context", "loop", "model", "role", "user"):
        assert (await get(api, f"/usage?by={by}")).text.count("<tr>") == 2, by
    await api.finished(await api.start(await api.make_loop(user=OTHER), user=OTHER), user=OTHER)
    assert (await get(api, "/usage?by=user")).text.count("<tr>") == 2  # a member's own
    everybody = (await get(api, "/usage?by=user", ADMIN)).text
    assert everybody.count("<tr>") == 3 and "?by=user" in everybody
    assert "?by=user" not in (await get(api, "/usage")).text
    table = await get(api, "/usage/csv?by=loop")
    assert "attachment" in table.headers["content-disposition"] and "'=cmd()" in table.text


_asking: ContextVar[list[object] | None] = ContextVar("asking", default=None)


async def test_a_long_run_asks_and_shows_no_more_than_a_short_one(
    api: Api, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes 2,000 iterations open as fast as 20: as many queries, a bounded page, a bounded document."""
    asked: list[object] = []
    _asking.set(asked)  # here and in what is asked from here, and not in what the process does beside it
    execute = psycopg.AsyncCursor[Any].execute

    async def counted(self: psycopg.AsyncCursor[Any], query: Any, *rest: Any, **options: Any) -> Any:
        if (mine := _asking.get()) is not None:
            mine.append(query)
        return await execute(self, query, *rest, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)
    found: dict[int, tuple[int, int, int]] = {}
    for many in (20, 2000):
        run_id = seed_run(urls, [f"candidate {n}" for n in range(many)], number=many)
        for path in (f"/runs/{run_id}", f"/runs/{run_id}/live?after={many - 1}"):
            asked.clear()
            page = await get(api, path)
            assert page.status_code == 200
        found[many] = (len(asked), len(page.content), len(re.findall(r"<[a-z]", page.text)))
        assert len(re.findall('class="iteration', (await get(api, f"/runs/{run_id}")).text)) <= run.ROWS
    (few_asked, _, _), (asked_most, size, nodes) = found[20], found[2000]
    assert 0 < asked_most == few_asked < 20
    assert size < 60_000 and nodes < 1_200


async def test_search_filter_and_sort(api: Api) -> None:
    for name in ("beta 100%", "alpha"):
        await api.make_loop(name=name)
    by_name = (await get(api, "/?order=name")).text
    assert by_name.index("alpha</a>") < by_name.index("beta 100%</a>")
    assert "alpha</a>" not in (await get(api, "/?q=0%25")).text
    assert "alpha</a>" in (await get(api, "/?status=never")).text
    assert "No loop fits" in (await get(api, "/?status=error")).text


@pytest.mark.parametrize("name", sorted(CONTEXTS))
def test_a_template_uses_what_its_context_has(name: str) -> None:
    env = render.environment()
    assert env.loader is not None
    todo, used = [name], set[str]()
    while todo:
        source = env.loader.get_source(env, todo.pop())[0]
        tree = env.parse(source)
        used |= meta.find_undeclared_variables(tree)
        todo += [each for each in meta.find_referenced_templates(tree) if each and each != "_macros.html"]
    given = {each.name for each in fields(CONTEXTS[name])} | {"path", *env.globals}
    assert used - given - MACROS - {"loop"} == set()


def test_every_template_has_a_context() -> None:
    pages = {path.name for path in (ROOT / "templates").glob("[!_]*.html")} - {"base.html"}
    assert pages == {name for name in CONTEXTS if not name.startswith("_")}


def test_routes_are_short() -> None:
    for part in PARTS:
        tree = ast.parse(Path(part.__file__ or "").read_text())
        for node in tree.body:
            if isinstance(node, ast.AsyncFunctionDef) and node.decorator_list:
                assert (node.end_lineno or 0) - node.body[0].lineno < 15, node.name


def test_vendored_files_are_what_they_are_said_to_be() -> None:
    for folder, note in (
        (ROOT, ROOT / "VENDORED.md"),
        *((p, p / "VENDORED.md") for p in [Path(__file__).parent / "vendored"]),
    ):
        for name, digest in re.findall(r"^\| (\S+) \|.*\| ([0-9a-f]{64}) \|$", note.read_text(), re.M):
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name


async def test_a_schedule_is_made_paused_resumed_and_deleted_with_forms(api: Api) -> None:
    loop = await api.make_loop(name="Sea")
    typed = {"name": "Mornings", "target": f"loop:{loop['id']}", "cron": "30 9 * * 1-5", "zone": "Europe/London"}
    rest = {"backfill": "one", "overlap": "skip", "jitter_seconds": "", "goal": "", "budget_usd": "", "once": "k1"}
    refused = await post(api, "/schedules", **{**typed, **rest, "cron": "often", "once": "k0"})
    assert refused.status_code == 422
    assert "is no cron expression" in refused.text
    made = await post(api, "/schedules", **{**typed, **rest})
    assert made.status_code == 303, made.text
    address = made.headers["location"].partition("?")[0]
    shown = (await get(api, address)).text
    assert shown.count("<li><time") == 5
    assert "next <time" in (await get(api, "/")).text
    for step, word in (("pause", "paused"), ("resume", "active")):
        assert (await post(api, f"{address}/{step}")).status_code == 303
        assert f"It is {word}." in (await get(api, address)).text
    assert (await get(api, address, OTHER)).status_code == 404
    assert (await post(api, address, **{**typed, **rest, "zone": "Asia/Tokyo"}, version="3")).status_code == 303
    assert "clock of Asia/Tokyo" in (await get(api, address)).text
    assert (await post(api, f"{address}/delete", version="4")).status_code == 303
    assert "Nothing starts by the clock yet" in (await get(api, "/schedules")).text


async def test_a_webhook_is_made_with_a_form_and_its_secret_is_shown_once(api: Api) -> None:
    loop = await api.make_loop(name="Sea")
    typed = {"name": "Tickets", "target": f"loop:{loop['id']}", "goal": "", "budget_usd": "", "active": "yes"}
    made = await post(api, "/webhooks", **typed, once="k1")
    assert made.status_code == 200, made.text
    assert "whsec_" in made.text
    [hook] = (await api.get("/api/webhooks"))["items"]
    assert (hook["name"], hook["allow_tools"]) == ("Tickets", False)
    address = f"/webhooks/{hook['id']}"
    assert "whsec_" not in (await get(api, address)).text
    assert "whsec_" in (await post(api, f"{address}/secret")).text
    assert (await get(api, address, OTHER)).status_code == 404
    assert (await post(api, address, **{**typed, "target": "nothing"}, version="2")).status_code == 422
    assert (await post(api, address, **{**typed, "allow_tools": "yes"}, version="2")).status_code == 303
    assert (await post(api, f"{address}/delete", version="3")).status_code == 303
    assert "Nobody sends messages here yet" in (await get(api, "/webhooks")).text


async def test_an_admin_edits_and_tries_guardrails_and_members_know_of_them(api: Api) -> None:
    typed = {"name": "No secrets", "kind": "deny_pattern", "scope": "both", "pattern": r"top\s+secret", "active": "yes"}
    assert (await post(api, "/guardrails", ADMIN, **{**typed, "pattern": "("})).status_code == 422
    wrong = await post(api, "/guardrails", ADMIN, **{**typed, "kind": "max_length", "characters": "many"})
    assert "must be a whole number" in wrong.text
    assert (await post(api, "/guardrails", ADMIN, **typed, once="k1")).status_code == 303
    [rule] = (await api.get("/api/guardrails", user=ADMIN))["items"]
    address = f"/guardrails/{rule['id']}"
    shown = await get(api, address, ADMIN)
    assert "It goes by a pattern that is denied, and is in force." in shown.text
    assert r"top\s+secret" in shown.text
    for text, kind, words in (("the TOP secret", "alert", "It is refused."), ("nothing", "note", "It passes.")):
        tried = await post(api, "/guardrails/try", ADMIN, text=text, what="goal")
        assert f'<div class="{kind}" role="status"><p><b>{words}' in tried.text and "No secrets:" in tried.text
    for path in ("/guardrails", address):
        seen = (await get(api, path)).text.partition("<main")[2].partition("</main>")[0]
        assert "No secrets" in seen
        assert "top" not in seen
        assert "<form" not in seen
    for path in ("/guardrails", "/guardrails/try", address, f"{address}/delete"):
        assert (await post(api, path, **typed, text="x")).status_code == 403
    model = {"kind": "llm", "model": "openai:gpt-4o-mini", "instruction": "No weapons.", "scope": "goal"}
    assert (await post(api, address, ADMIN, **{**typed, **model}, version="1")).status_code == 303
    shown = (await get(api, address, ADMIN)).text
    assert "No weapons." in shown
    assert "None" not in shown.partition("<main")[2]
    tried = await post(api, "/guardrails/try", ADMIN, text="x", what="goal")
    assert "would ask a model" in tried.text
    assert (await post(api, f"{address}/delete", ADMIN, version="2")).status_code == 303
    assert "There are none, so everything passes." in (await get(api, "/guardrails")).text


async def test_an_endpoint_is_made_tested_and_shows_what_came_of_it(api: Api) -> None:
    typed = {"name": "Ops", "url": "http://127.0.0.1:1/hook", "loop": "", "active": "yes"}
    refused = await post(api, "/endpoints", **{**typed, "url": "http://127.0.0.1:2/"}, once="k0")
    assert refused.status_code == 422
    assert "LOOPWRIGHT_EGRESS_ALLOW" in refused.text
    assert 'name="scope"' not in refused.text, "everybody's runs are for admins"
    made = await post(api, "/endpoints", **typed, once="k1")
    assert made.status_code == 200, made.text
    assert "whsec_" in made.text
    [endpoint] = (await api.get("/api/endpoints"))["items"]
    address = f"/endpoints/{endpoint['id']}"
    assert "whsec_" not in (await get(api, address)).text
    assert "whsec_" in (await post(api, f"{address}/secret")).text
    assert "too, until" in (await get(api, address)).text
    assert (await get(api, address, OTHER)).status_code == 404
    sent = await post(api, f"{address}/test")
    assert (sent.status_code, sent.headers["location"]) == (303, f"{address}?note=sent")
    async with asyncio.timeout(30):
        while "can&#39;t connect" not in (shown := (await get(api, address)).text):
            await asyncio.sleep(0.05)
    [delivery] = re.findall(rf"{address}/deliveries/[0-9a-f-]+", shown)
    details = (await get(api, delivery)).text
    assert "endpoint.test" in details and "can&#39;t connect" in details
    assert (await get(api, delivery, OTHER)).status_code == 404
    assert (await post(api, f"{delivery}/again")).status_code == 303
    assert (await post(api, address, **{**typed, "active": ""}, version="2")).status_code == 303
    assert "It is off." in (await get(api, address)).text
    assert (await post(api, f"{address}/delete", version="3")).status_code == 303
    assert "Nobody is told yet" in (await get(api, "/endpoints")).text
    assert 'name="scope"' in (await get(api, "/endpoints", ADMIN)).text


async def test_an_admin_switches_what_comes_with_loopwright(api: Api) -> None:
    for tool in (await api.get("/api/tools"))["items"]:
        address = f"/tools/{tool['id']}"
        page = (await get(api, address)).text
        assert "On for everybody" in page and "Admins switch it" in page and f"{address}/switch" not in page
        assert (await post(api, f"{address}/switch", OTHER, version="1")).status_code == 403
        assert "Switch it off for everybody" in (await get(api, address, ADMIN)).text
        assert (await post(api, f"{address}/switch", ADMIN, version=str(tool["version"]))).status_code == 303
        assert not (await api.get(f"/api/tools/{tool['id']}"))["active"]
        off = (await get(api, address, ADMIN)).text
        assert "Off for everybody" in off
        [version] = re.findall(r'name="version" value="([0-9]+)"', off)
        assert (await post(api, f"{address}/switch", ADMIN, version=version, active="yes")).status_code == 303
        assert (await api.get(f"/api/tools/{tool['id']}"))["active"]
