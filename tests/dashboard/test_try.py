"""Trying an evaluator and a tool: what it costs is said before, and is in the books after."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import pytest

from tests.agents.test_tools import http_server
from tests.api.world import Api
from tests.dashboard.test_pages import get, post
from tests.feedback.endpoint import Endpoint, reply, running_endpoint
from tests.postgres import ADMIN, OTHER


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    async with running_endpoint() as running:
        yield running


async def allow(api: Api, host: str) -> None:
    answer = await api.call("PATCH", "/api/settings", {"allow_hosts": [host]}, user=ADMIN, if_match="*")
    assert answer.status_code == 200, answer.text


JUDGE = {
    "kind": "judge", "model": "practice", "rubric": 'has the word "sea" (3 points)\nat most 3 words (1 point)',
    "scale": [0, 4],
}  # fmt: skip


async def test_a_judge_is_tried_as_a_run_that_is_paid_from_a_wallet(api: Api) -> None:
    rubric = {**JUDGE, "model": "openai:gpt-4o-mini", "rubric": "Vivid."}
    await api.call("PUT", "/api/secrets/OPENAI_API_KEY", {"value": "sk-none"})
    dear = await api.make_loop(name="dear", evaluator=rubric)
    told = (await get(api, f"/evaluators?loop={dear['id']}")).text
    assert re.search(r"costs at most \$0\.00\d+</b> \(openai:gpt-4o-mini\)", told) and "for at most $0.10" in told
    assert (await api.get("/api/usage")) == []  # looking costs nothing
    loop = await api.make_loop(name="judged", evaluator=JUDGE)
    path = f"/evaluators/{loop['id']}/try"
    assert "in progress" not in (await post(api, path, candidate=" ")).text
    tried = await post(api, path, candidate="the wide sea is <deep>", once="j1")
    run = await api.finished(tried.headers["location"].rpartition("/")[2])
    assert (run["best_score"], run["iterations"], run["cap_usd"], run["door"]) == (3, 1, "0.10", "ui")
    again = await post(api, path, candidate="the wide sea is <deep>", once="j1")
    assert again.headers["location"] == tried.headers["location"]
    page = (await get(api, tried.headers["location"])).text
    assert "the wide sea is &lt;deep&gt;" in page and "Not met: at most 3 words" in page
    roles = (await get(api, "/usage?by=role")).text
    assert "judge" in roles  # it is in the books, under who tried it
    assert "judge" not in (await get(api, "/usage?by=role", OTHER)).text
    for who, status in ((OTHER, 404), (ADMIN, 303)):
        assert (await post(api, path, who, candidate="sea")).status_code == status
    assert (await get(api, f"/evaluators?loop={loop['id']}", OTHER)).status_code == 404


async def test_an_evaluator_that_is_dearer_than_a_trial_is_not_asked(api: Api) -> None:
    paid = {"kind": "http", "url": "http://127.0.0.1:1/score", "max_cost_usd": "0.25"}
    loop = await api.make_loop(evaluator=paid)
    assert "costs at most $0.25" in (await get(api, f"/evaluators?loop={loop['id']}")).text
    refused = await post(api, f"/evaluators/{loop['id']}/try", candidate="keep <this>")
    assert (
        refused.status_code == 422 and "a trial $0.10 at most" in refused.text and "keep &lt;this&gt;" in refused.text
    )
    cheap = await api.make_loop(name="cheap", evaluator={**paid, "max_cost_usd": "0.02"})
    tried = await post(api, f"/evaluators/{cheap['id']}/try", candidate="x")
    run = await api.finished(tried.headers["location"].rpartition("/")[2])
    assert run["best_score"] is None and run["spent_usd"] == "0"
    assert "failed:" in (await get(api, tried.headers["location"])).text  # why a run would refuse it


async def test_a_free_evaluator_of_a_loop_answers_at_once(api: Api) -> None:
    loop = await api.make_loop(evaluator={"kind": "http", "url": "http://127.0.0.1:1/score"})
    assert "Asking it is free" in (await get(api, f"/evaluators?loop={loop['id']}")).text
    away = await post(api, f"/evaluators/{loop['id']}/try", candidate="x")
    assert away.status_code == 200 and "A run would refuse this" in away.text
    none = await api.make_loop(name="none")
    assert (await get(api, f"/evaluators?loop={none['id']}")).status_code == 404


async def test_a_tool_is_tried_as_an_agent_would_call_it(api: Api, endpoint: Endpoint) -> None:
    spec = {
        "kind": "http", "name": "find", "description": "d", "url": f"http://{endpoint.host}/find/{{word}}",
        "method": "GET", "headers": {"X-Key": "${FIND_KEY}"},
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}, "n": {"type": "integer"}}},
    }  # fmt: skip
    await allow(api, endpoint.host)
    await api.call("PUT", "/api/secrets/FIND_KEY", {"value": "s3cret-key-1"})
    tool = (await api.make("/api/tools", {"spec": spec, "visibility": "workspace"}))["id"]
    endpoint.answers(reply(b"<b>found s3cret-key-1</b>"))
    page = (await get(api, f"/tools/{tool}")).text
    assert "&#34;word&#34;: &#34;&#34;" in page and endpoint.host in page
    tried = await post(api, f"/tools/{tool}/try", arguments='{"word": "a/b", "n": 2}')
    assert (
        "An agent would be told</h3>" in tried.text
        and "&lt;b&gt;found" in tried.text
        and "s3cret-key-1" not in tried.text
    )
    (received,) = endpoint.received
    assert received.target == "/find/a%2Fb?n=2" and received.headers["x-key"] == "s3cret-key-1"
    wrong = await post(api, f"/tools/{tool}/try", arguments='{"word": 7}')
    assert "told that it failed" in wrong.text and "follow the schema" in wrong.text and len(endpoint.received) == 1
    typed = await post(api, f"/tools/{tool}/try", arguments="{nonsense")
    assert typed.status_code == 422 and "{nonsense" in typed.text
    # Somebody else's try goes with somebody else's secrets, and there is none.
    assert "FIND_KEY" in (await post(api, f"/tools/{tool}/try", OTHER, arguments="{}")).text
    assert "tool tried" in (await get(api, "/activity")).text
    assert (await get(api, "/usage?by=role")).text.count("<tr>") <= 1  # nothing was paid


async def test_a_server_of_tools_says_which_it_has(api: Api) -> None:
    async with http_server() as (address, _):
        await allow(api, address.split("/")[2])
        await _the_server(api, address)
    away = (await api.make("/api/tools", {"spec": {"kind": "mcp", "name": "n", "url": "http://127.0.0.1:1/mcp"}}))["id"]
    refused = await post(api, f"/tools/{away}/try", which="", arguments="")
    assert refused.status_code == 422 and "be reached" in refused.text


async def _the_server(api: Api, address: str) -> None:
    tool = (await api.make("/api/tools", {"spec": {"kind": "mcp", "name": "m", "url": address}}))["id"]
    listed = await post(api, f"/tools/{tool}/try", which="", arguments="")
    assert "triple" in listed.text and "An agent would be told" not in listed.text
    called = await post(api, f"/tools/{tool}/try", which="triple", arguments='{"n": 14}')
    assert "An agent would be told</h3>" in called.text and ">42" in called.text
    none = await post(api, f"/tools/{tool}/try", which="halve", arguments="{}")
    assert "told that it failed" in none.text and "halve" in none.text


async def test_why_a_judge_cannot_be_tried_stands_beside_its_loop(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    name = "/api/secrets/OPENAI_API_KEY"
    await api.call("PUT", name, {"value": "sk-none"})
    loop = await api.make_loop(name="judged", evaluator={**JUDGE, "model": "openai:gpt-4o-mini"})
    await api.call("DELETE", name)
    for answer in (
        await get(api, f"/evaluators?loop={loop['id']}"),
        await post(api, f"/evaluators/{loop['id']}/try", candidate="keep <this>"),
    ):
        assert answer.status_code == 422
        panel = answer.text.partition('id="try"')[2].partition("</section>")[0]
        assert (
            "Try the evaluator of" in panel and "judged</span>" in panel and "Try an endpoint</h2>" not in answer.text
        )
        alert = panel.partition('role="alert"')[2].partition("</p>")[0]
        assert "OPENAI_API_KEY" in alert and "store a secret of this name (Settings, or PUT /api/secrets)" in alert
    assert "keep &lt;this&gt;" in answer.text
    await api.call("PUT", name, {"value": "sk-none"})
    assert "costs at most" in (await get(api, f"/evaluators?loop={loop['id']}")).text
