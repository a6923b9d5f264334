"""Where the requests of models go: to a `base_url` by the rules of egress, and over connections that runs share."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from loopwright.agents.ask import Asker, JudgeAgents
from loopwright.agents.clients import shared_connections
from loopwright.agents.models import build_model
from loopwright.agents.prices import PriceBook
from loopwright.core.errors import AgentFailed, EgressRefused
from loopwright.core.ports import Spender
from loopwright.core.spec import ModelChoice
from loopwright.egress import EgressClient, EgressPolicy, ssl_context
from loopwright.service.assemble import allowed_hosts, assemble
from loopwright.service.world import World as Surroundings
from tests.service.test_assemble import loop_spec

from .provider import Provider, Reply
from .turns import PRICES, World


class Rebinding:
    """A name that is public when it is looked up first, and this machine ever after."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        return ["93.184.216.34"] if self.asked == 1 else ["127.0.0.1"]


@pytest.fixture
async def rebinding(world: World) -> AsyncGenerator[str]:
    """The address of the provider under a name that is checked once and changes then; no host is allowed."""
    world.egress = EgressClient(EgressPolicy(), resolve=Rebinding())
    address = f"http://rebinds.example:{world.provider.port}/v1"
    await world.egress.check(address)
    yield address
    await world.egress.aclose()


async def test_a_name_that_changes_after_it_was_checked_gets_no_request(world: World, rebinding: str) -> None:
    with pytest.raises(EgressRefused, match=r"rebinds\.example resolves to 127\.0\.0\.1, a loopback address"):
        await world.take(world.agent(base_url=rebinding))
    assert (world.provider.seen, world.provider.connections) == (0, 0)
    assert [(charge.basis, charge.amount) for charge in world.charges] == [("released", Decimal(0))]


async def test_nor_from_a_judge(world: World, rebinding: str) -> None:
    choice = ModelChoice(model="openai:gpt-4o-mini", base_url=rebinding, max_output_tokens=100)
    asker = Asker(world.store, PriceBook(PRICES), JudgeAgents(world.egress))
    with pytest.raises(EgressRefused, match="loopback"):
        await asker(
            model=choice,
            instructions="Judge.",
            question="Good?",
            schema={"type": "object", "properties": {}},
            spender=Spender(role="judge"),
            purpose="judge",
        )
    assert world.provider.connections == 0
    assert (await world.store.wallet()).spent == 0


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "anthropic:claude-haiku-4-5", "google:gemini-2.5-flash"])
async def test_the_way_of_each_provider_is_guarded(world: World, model: str) -> None:
    world.egress = EgressClient()
    with pytest.raises(EgressRefused, match="loopback"):
        await world.take(world.agent(model=model, base_url=world.provider.url("")))
    assert world.provider.connections == 0


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(world: World, status: int) -> None:
    elsewhere = "http://localhost:1/v1/chat/completions"
    with pytest.raises(AgentFailed):
        await world.take(world.agent(), Reply(status=status, headers={"location": elsewhere}))
    assert world.provider.seen == 1
    with pytest.raises(AgentFailed):
        await world.take(world.agent(), Reply(status=status, headers={"location": world.provider.url("/v1/again")}))
    assert world.provider.seen == 2


def test_the_hosts_of_models_are_among_those_that_a_file_names() -> None:
    judge = {"kind": "judge", "model": "openai:gpt-4o-mini", "base_url": "http://judge.internal/v1", "rubric": "Good."}
    agent = {"model": "openai:gpt-4o-mini", "base_url": "http://127.0.0.1:11434/v1"}
    spec = loop_spec(agent=agent, evaluator=judge)
    trusted = Surroundings(folder=Path())
    assert {"judge.internal:80", "127.0.0.1:11434"} <= allowed_hosts(spec, trusted)
    shared = Surroundings(folder=Path(), trusts_writer=False)
    assert not allowed_hosts(spec, shared)
    local = Surroundings(folder=Path(), trusts_writer=False, trusts_loopback=True)
    assert allowed_hosts(spec, local) == {"127.0.0.1:11434"}


async def test_runs_share_connections_and_certificates(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    ssl_context()
    loaded: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *given: loaded.append(given))
    for name in ("openai:gpt-4o-mini", "anthropic:claude-haiku-4-5"):  # Google's own client loads them all the same
        build_model(ModelChoice(model=name))
    stop = {"max_iterations": 1, "budget_usd": "0.1"}
    spec = loop_spec(agent={"model": "openai-chat:gpt-4o-mini"}, stop=stop, evaluator=None)
    async with shared_connections():
        for _ in range(3):
            await assemble(spec, folder=tmp_path).run("go")
    assert (provider.seen, provider.connections, loaded) == (3, 1, [])
