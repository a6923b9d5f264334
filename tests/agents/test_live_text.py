"""The agent's text as it comes: streamed while somebody watches, paid and recorded like a whole answer."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from loopwright.core.errors import AgentFailed
from loopwright.core.events import TextDelta
from loopwright.core.models import Turn

from .provider import Reply
from .turns import ONE_REQUEST, World, call, prompt

TEXT = "a few words that come one by one"


class Watching:
    """Viewers who watch while `here`."""

    def __init__(self, *, here: bool = True) -> None:
        self.here = here
        self.told: list[TextDelta] = []

    def watched(self, run_id: str) -> bool:
        return self.here

    def say(self, delta: TextDelta) -> None:
        self.told.append(delta)

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.told)


async def take(world: World, viewers: Watching, *replies: Reply, number: int = 1, **agent: object) -> Turn:
    world.provider.script = list(replies)
    runner = world.runner(world.agent(**agent))
    return await runner.take_turn(prompt("go"), world.context(number=number, viewers=viewers))


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "anthropic:claude-haiku-4-5"])
async def test_text_is_told_as_it_comes_and_costs_what_a_whole_answer_costs(world: World, model: str) -> None:
    viewers = Watching()
    address = world.provider.url("/v1" if model.startswith("openai") else "")
    turn = await take(world, viewers, Reply(text=TEXT), model=model, base_url=address)
    assert world.provider.bodies[0]["stream"] is True
    assert (viewers.text.strip(), turn.candidate.text.strip()) == (TEXT, TEXT)
    assert {(delta.run_id, delta.attempt, delta.number) for delta in viewers.told} == {("run-1", 1, 1)}
    whole = await take(world, Watching(here=False), Reply(text=TEXT), model=model, base_url=address, number=2)
    assert not world.provider.bodies[1].get("stream")
    assert whole.candidate.text == TEXT
    streamed, unstreamed = world.charges
    assert streamed.basis == unstreamed.basis == "usage"
    assert streamed.amount == unstreamed.amount > 0
    assert streamed.tokens == unstreamed.tokens


async def test_a_recorded_stream_is_not_sent_again(world: World) -> None:
    first = await take(world, Watching(), Reply(text=TEXT))
    viewers = Watching()
    again = await take(world, viewers, Reply(text="something else"))
    assert again.candidate == first.candidate
    assert world.provider.seen == 1
    assert viewers.told == []
    assert len(world.charges) == 1


async def test_a_stream_that_is_cut_off_is_charged_whole_and_not_recorded(world: World) -> None:
    viewers = Watching()
    turn = asyncio.ensure_future(take(world, viewers, Reply(text=TEXT, hang=True)))
    while not viewers.told:
        await asyncio.sleep(0.01)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    (charge,) = world.charges
    assert (charge.basis, charge.amount) == ("reserved", charge.reservation.amount)
    assert (await world.store.wallet()).reserved == 0
    await take(world, Watching(), Reply(text=TEXT))
    assert world.provider.seen == 2


async def test_a_stream_that_does_not_say_its_usage_is_charged_whole(world: World) -> None:
    turn = await take(world, Watching(), Reply(text=TEXT, tokens=None))
    (charge,) = world.charges
    assert turn.candidate.text.strip() == TEXT
    assert (charge.basis, charge.amount) == ("reserved", charge.reservation.amount)


async def test_a_refused_stream_costs_nothing(world: World) -> None:
    with pytest.raises(AgentFailed):
        await take(world, Watching(), Reply(status=401))
    assert [(charge.basis, charge.amount) for charge in world.charges] == [("released", Decimal(0))]


async def test_who_comes_in_the_middle_sees_the_requests_from_then_on(world: World) -> None:
    viewers = Watching(here=False)
    world.provider.script = [call("helper", question="what?"), Reply(text="the helper's"), Reply(text=TEXT)]
    helper = {"model": "openai:gpt-4o-mini", "base_url": world.provider.url("/v1"), "max_output_tokens": 100}
    tool = {"kind": "agent", "name": "helper", "description": "Helps.", "agent": helper}
    runner = world.runner(world.agent(tools=[tool]))
    taking = asyncio.ensure_future(runner.take_turn(prompt("go"), world.context(number=1, viewers=viewers)))
    await world.provider.arrived.wait()
    viewers.here = True
    await taking
    # What an agent that is a tool says is not the candidate, so it is not told.
    assert [bool(body.get("stream")) for body in world.provider.bodies] == [False, False, True]
    assert viewers.text.strip() == TEXT


async def test_a_fallback_chain_is_asked_for_whole_answers(world: World) -> None:
    viewers = Watching()
    turn = await take(world, viewers, Reply(status=500), Reply(text=TEXT), fallback_models=["openai:gpt-4o-mini"])
    assert turn.candidate.text == TEXT
    assert not any(body.get("stream") for body in world.provider.bodies)
    assert viewers.told == []
    assert world.charges[-1].amount == ONE_REQUEST
