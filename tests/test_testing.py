"""What users test their own loops with, as the documentation shows it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.usage import RequestUsage

from loopwright import Budget, Loop, MaxIterations, Target
from loopwright.core.events import IterationFinished, MoneySettled, RunFinished
from loopwright.core.stop import MaxSeconds
from loopwright.runner.plan import Halt
from loopwright.runner.run import run_loop
from loopwright.store.memory import MemoryRunStore
from loopwright.testing import SCRIPTED_PRICES, FakeClock, MemoryJournal, ScriptedModel

ONE_REQUEST = Decimal("0.0002")
"""100 tokens in at 1 and 10 out at 10 USD per million."""


async def test_a_loop_on_a_script() -> None:
    model = ScriptedModel(["the sea", "the deep blue sea"])
    loop = Loop(
        agent=Agent(model),
        evaluate=lambda text: (len(text.split()) / 4, f"{len(text.split())} of 4 words"),
        stop=Target(1) | MaxIterations(5) | Budget("0.50"),
        prices=SCRIPTED_PRICES,
    )
    result = await loop.run("Four words about the sea")
    assert result.stop_reason == "target_reached"
    assert result.best
    assert (result.best.text, result.best.score) == ("the deep blue sea", 1.0)
    assert result.cost.total == 2 * ONE_REQUEST
    assert model.requests == 2
    assert "Four words about the sea" in model.prompts[0]
    assert "2 of 4 words" in model.prompts[1]
    assert model.settings_seen[0].get("max_tokens") == 4096


async def test_the_last_reply_is_repeated() -> None:
    model = ScriptedModel(["a", "b"])
    agent = Agent(model)
    assert [(await agent.run("?")).output for _ in range(4)] == ["a", "b", "b", "b"]


async def test_a_function_answers_every_prompt() -> None:
    model = ScriptedModel(lambda prompt: prompt[::-1])
    assert (await Agent(model).run("sea")).output == "aes"
    assert model.prompts == ["sea"]


async def test_a_reply_may_be_an_error_or_a_whole_response() -> None:
    usage = RequestUsage(input_tokens=7, output_tokens=3)
    whole = ModelResponse(parts=[TextPart("whole")], usage=usage)
    agent = Agent(ScriptedModel([ValueError("down"), whole, ModelResponse(parts=[TextPart("bare")])]))
    with pytest.raises(ValueError, match="down"):
        await agent.run("?")
    result = await agent.run("?")
    assert (result.output, result.usage.input_tokens) == ("whole", 7)
    assert (await agent.run("?")).usage.input_tokens == 100
    assert whole.model_name is None  # the script's own stays as it was


async def test_replies_that_are_given_twice_dont_share_what_is_changed() -> None:
    model = ScriptedModel([ModelResponse(parts=[TextPart("x")])], usage=RequestUsage(input_tokens=5, output_tokens=1))
    first, second = [(await Agent(model).run("?")).new_messages()[-1] for _ in range(2)]
    assert first is not second
    assert isinstance(first, ModelResponse)
    assert isinstance(second, ModelResponse)
    assert first.usage is not second.usage


async def test_it_can_call_tools() -> None:
    def depth() -> int:
        return 11_000

    asks = ModelResponse(parts=[ToolCallPart("depth", {})])
    result = await Agent(ScriptedModel([asks, "deep"]), tools=[depth]).run("?")
    assert result.output == "deep"


async def test_it_streams() -> None:
    agent = Agent(ScriptedModel(["the deep blue sea"], usage=RequestUsage(input_tokens=3, output_tokens=4)))
    async with agent.run_stream("?") as stream:
        assert [text async for text in stream.stream_text()][-1] == "the deep blue sea"
    assert stream.usage.output_tokens == 4


async def test_names_and_prices_belong_together() -> None:
    model = ScriptedModel(["x"], name="tiny")
    assert (model.system, model.model_name, model.provider) == ("scripted", "tiny", None)
    result = await Loop(agent=Agent(model), stop=MaxIterations(1), prices=SCRIPTED_PRICES).run("g")
    assert result.stop_reason == "error"
    assert "scripted:tiny" in str(result.error)
    assert model.requests == 0


async def test_a_loop_may_do_without_loop_done() -> None:
    offered = list[bool]()

    class Watched(ScriptedModel):
        async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
            offered.append(bool(model_request_parameters.function_tools))
            return await super().request(messages, model_settings, model_request_parameters)

    for loop_done in (True, False):
        agent = Agent(Watched(["x"]))
        await Loop(agent=agent, stop=MaxIterations(1), prices=SCRIPTED_PRICES, loop_done=loop_done).run("g")
    assert offered == [True, False]


def test_an_empty_script_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least one reply"):
        ScriptedModel([])


async def test_a_fake_clock_drives_the_time_limit() -> None:
    clock, journal = FakeClock(), MemoryJournal()

    def slow(prompt: str) -> str:
        clock.advance(40)
        return "x"

    model = ScriptedModel(slow)
    loop = Loop(agent=Agent(model), stop=MaxSeconds(100) | MaxIterations(50), prices=SCRIPTED_PRICES)
    store = MemoryRunStore("r", cap=None, clock=clock, sinks=[journal])
    result = await run_loop(loop.plan("g", "r"), loop.ports(store, clock), Halt())
    assert (result.stop_reason, model.requests, result.seconds) == ("time", 3, 120.0)
    (finished,) = journal.of(RunFinished)
    assert finished.seconds == 120.0
    assert [e.iteration.number for e in journal.of(IterationFinished)] == [1, 2, 3]


def test_a_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(datetime(2026, 5, 4, tzinfo=UTC))
    assert clock.now() == clock.now() == datetime(2026, 5, 4, tzinfo=UTC)
    clock.advance(1.5)
    clock.advance(-0.5)
    assert (clock.now() - datetime(2026, 5, 4, tzinfo=UTC)).total_seconds() == 1.0
    assert FakeClock().now().tzinfo is not None


async def test_a_memory_journal_is_filled_from_a_stream() -> None:
    journal = MemoryJournal()
    loop = Loop(agent=Agent(ScriptedModel(["x"])), stop=MaxIterations(2), prices=SCRIPTED_PRICES)
    async for event in loop.stream("g"):
        journal(event)
    assert [e.charge.amount for e in journal.of(MoneySettled)] == [ONE_REQUEST] * 2
    assert len(journal.of(RunFinished)) == 1
    assert [e.seq for e in journal.events] == list(range(1, len(journal.events) + 1))
