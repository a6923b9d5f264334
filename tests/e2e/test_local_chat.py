"""A conversation with a real small model, replayed from `cassettes/test_local_chat/`; see `test_local_model` for how it
is recorded."""

from __future__ import annotations

from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from loopwright.egress import EgressClient
from loopwright.store.database import Urls
from tests.api.world import open_api
from tests.chat.world import Answer
from tests.postgres import ADMIN

from .test_local_model import INPUT, MODEL, OUTPUT


@pytest.fixture
def vcr_config(vcr_config: dict[str, Any]) -> dict[str, Any]:
    """Requests to the application, which is in this process, are made and not replayed."""
    return {**vcr_config, "ignore_hosts": ["localhost"]}


@pytest.fixture(autouse=True)
def _recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests go through a transport that recordings can stand in for, and ids are the same each time: they stand in
    the prompts."""

    def transport(egress: EgressClient) -> httpx2.AsyncHTTPTransport:
        return httpx2.AsyncHTTPTransport()

    numbers = count(1)
    monkeypatch.setattr("loopwright.agents.clients.EgressTransport", transport)
    monkeypatch.setattr("loopwright.service.start.new_run_id", lambda: f"run_{next(numbers):021x}")


@pytest.mark.vcr
async def test_it_has_a_loop_run_and_says_what_it_may_cost(urls: Urls, tmp_path: Path) -> None:
    async with open_api(urls, tmp_path, egress_allow="127.0.0.1:8015") as api:
        prices = {MODEL["model"]: {"input": str(INPUT), "output": str(OUTPUT)}}
        priced = await api.call("PATCH", "/api/settings", {"prices": prices}, user=ADMIN, if_match="*")
        assert priced.status_code == 200, priced.text
        await api.make_loop(name="codes")
        tools = {tool["name"]: tool["id"] for tool in (await api.get("/api/tools"))["items"]}
        spec = {
            **MODEL,
            "instructions": "You help a person with loops. Answer in one or two short sentences.",
            "max_output_tokens": 80,
            "settings": {"temperature": 0, "seed": 1},
        }
        ids = [tools["start_loop"], tools["check_loop"]]
        agent = await api.make("/api/agents", {"name": "helper", "spec": spec, "tool_ids": ids})
        thread = (await api.make("/api/threads", {"agent_id": agent["id"], "cap_usd": "1"}))["id"]

        async def say(text: str) -> tuple[Answer, Any]:
            answer = await api.call("POST", f"/api/threads/{thread}/messages", {"text": text})
            assert answer.status_code == 200, answer.text
            return Answer.read(200, answer.text), (await api.get(f"/api/threads/{thread}"))["items"][-1]

        first, message = await say("Please start a run of the loop that is named 'codes'. What may it cost at most?")
        (run,) = message["runs"]
        done = await api.finished(run["run_id"])
        second, later = await say("Check the run that you have started, and tell me its best candidate.")
        assert [each["name"] for each in first.of("tool_called")] == ["start_loop"], message
        assert message["answer"].strip() == first.streamed.strip()
        assert (run["loop_name"], Decimal(run["cap_usd"])) == ("codes", Decimal("0.50"))
        assert "0.5" in message["answer"]
        # A model of this size makes an answer up instead of calling check_loop, though the run's id stands before it;
        # what the run came to stands beside its message all the same. Models that call it are in tests/chat.
        assert second.of("tool_called") == []
        assert later["answer"].startswith("The best candidate for the run that you have started is")
        first_again = (await api.get(f"/api/threads/{thread}"))["items"][0]
        assert (first_again["runs"][0]["stop_reason"], later["runs"]) == ("max_iterations", [])
        # Every cent follows from the tokens that the server counted, and from what the run spent.
        usage = await api.get("/api/usage?group_by=model")
        (chat,) = [row for row in usage if row["group"] == "qwen2.5-coder-1.5b" or "qwen" in row["group"]]
        cost = (chat["input_tokens"] * INPUT + chat["output_tokens"] * OUTPUT) / 1_000_000
        found = await api.get(f"/api/threads/{thread}")
        assert Decimal(chat["cost_usd"]) == cost == sum(Decimal(each["cost_usd"]) for each in found["items"])
        assert Decimal(found["spent_usd"]) == cost + Decimal(done["spent_usd"])
