"""A turn: what comes of it, what the wallet sees of it, and how everybody's failures become ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from loopwright import Metered
from loopwright.agents.failures import hide_key, our_error
from loopwright.core.errors import (
    AgentFailed,
    BudgetExceeded,
    InvalidInput,
    LoopwrightError,
    StoreUnavailable,
    UnknownPrice,
    UnmeteredRequests,
)
from loopwright.core.models import Candidate, ToolCall
from loopwright.core.spec import Price

from .provider import Reply
from .turns import ONE_REQUEST, MakeWorld, World, call, prompt

SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "words": {"type": "integer", "minimum": 1}},
    "required": ["title", "words"],
    "additionalProperties": False,
}


def completion(**choice: Any) -> Reply:
    """An answer of OpenAI's chat API whose every detail the test decides."""
    message = {"role": "assistant", "content": None} | choice.pop("message", {})
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-4o-mini",
        "choices": [{"index": 0, "finish_reason": "stop", **choice, "message": message}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }
    return Reply(body=json.dumps(body).encode())


# --- what is asked ---


async def test_the_prompt_is_the_last_message_after_the_instructions(world: World) -> None:
    turn = await world.take(world.agent(instructions="Be a poet."), Reply(text="the sea"), say=prompt("write"))
    assert turn.candidate == Candidate(text="the sea")
    assert [(m["role"], m["content"]) for m in world.messages()] == [("system", "Be a poet."), ("user", "write")]
    assert world.provider.bodies[0]["max_completion_tokens"] == 100
    assert [c.amount for c in world.charges] == [ONE_REQUEST]


async def test_earlier_messages_go_before_it(world: World) -> None:
    await world.take(world.agent(instructions="I"), say=prompt("goal", "first try", "remarks"))
    assert [(m["role"], m["content"]) for m in world.messages()] == [
        ("system", "I"),
        ("user", "goal"),
        ("assistant", "first try"),
        ("user", "remarks"),
    ]


async def test_the_settings_of_the_spec_are_sent(world: World) -> None:
    await world.take(world.agent(settings={"temperature": 0.3, "seed": 7, "max_tokens": 99_999}))
    body = world.provider.bodies[0]
    assert (body["temperature"], body["seed"], body["max_completion_tokens"]) == (0.3, 7, 100)


# --- outputs ---


async def test_an_output_schema_gives_json(world: World) -> None:
    agent = world.agent(output_schema=SCHEMA)
    turn = await world.take(agent, call("final_result", title="Ça", words=2))
    assert turn.candidate.data == {"title": "Ça", "words": 2}
    assert turn.candidate.text == '{\n  "title": "Ça",\n  "words": 2\n}'
    assert turn.tool_calls == ()  # how a model gives its output is not a tool that it used


async def test_an_output_that_breaks_the_schema_is_asked_for_again_and_all_is_paid(world: World) -> None:
    agent = world.agent(output_schema=SCHEMA)
    turn = await world.take(
        agent,
        call("final_result", title="a"),
        call("final_result", title="a", words=0),
        call("final_result", title="a", words=1),
    )
    assert turn.candidate.data == {"title": "a", "words": 1}
    assert "'words' is a required property" in world.told(1)[0]
    assert "$.words: 0 is less than the minimum of 1" in world.told(2)[1]
    assert [c.amount for c in world.charges] == [ONE_REQUEST] * 3


async def test_an_output_that_never_follows_the_schema_fails_the_turn_and_all_is_paid(world: World) -> None:
    with pytest.raises(AgentFailed, match="output retries"):
        await world.take(world.agent(output_schema=SCHEMA), *[call("final_result", title="a")] * 9)
    assert [c.amount for c in world.charges] == [ONE_REQUEST] * 3
    assert (await world.store.cost()).total == 3 * ONE_REQUEST


async def test_numbers_that_json_doesnt_have_are_asked_for_again(world: World) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number"}}}
    nan = {"id": "c", "type": "function", "function": {"name": "final_result", "arguments": '{"n": NaN}'}}
    turn = await world.take(
        world.agent(output_schema=schema),
        completion(finish_reason="tool_calls", message={"tool_calls": [nan]}),
        call("final_result", n=1.5),
    )
    assert "NaN and Infinity are no JSON numbers" in world.told(1)[0]
    assert turn.candidate.data == {"n": 1.5}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array"}, "must be a JSON schema with `type: object`"),
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "is not a JSON schema at properties/a/type"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}}, "refers to #/$defs/gone"),
        ({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/s"}}}, "refers to http://127.0.0.1:1/s"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/t"}},
                "$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}},
            },
            "recursive",
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "refers to itself"),
        ({"type": "object", "$ref": "#"}, "refers to itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "refers to itself"),
    ],
)
def test_a_schema_that_cant_be_used_is_refused(world: World, schema: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.agent(output_schema=schema)
    (problem,) = refused.value.problems
    assert problem.field == "agent.output_schema"
    assert message in problem.message


async def test_a_schema_may_refer_to_its_own_definitions(world: World) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/small"}},
        "$defs": {"small": {"type": "integer", "maximum": 5}},
    }
    turn = await world.take(world.agent(output_schema=schema), call("final_result", n=6), call("final_result", n=5))
    assert turn.candidate.data == {"n": 5}


class Poem(BaseModel):
    title: str
    lines: list[str]


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput, PromptedOutput])
async def test_a_library_agent_may_have_any_kind_of_output(world: World, kind: Any) -> None:
    agent = Agent(world.provider.openai(), output_type=kind(Poem))
    poem = {"title": "t", "lines": ["a"]}
    said = call("final_result", **poem) if kind is ToolOutput else Reply(text=json.dumps(poem))
    turn = await world.take(agent, said)
    assert turn.candidate.data == poem
    assert json.loads(turn.candidate.text) == poem


async def test_an_output_that_is_no_json_fails_the_turn(world: World) -> None:
    def odd(text: str) -> object:
        return {"value": float(text)} if text == "nan" else {"lock": object()}

    agent: Agent[None, object] = Agent(world.provider.openai(), output_type=odd)
    for text in ("nan", "lock"):
        with pytest.raises(AgentFailed):
            await world.take(agent, call("final_result", text=text))


async def test_half_a_surrogate_pair_in_an_answer_is_replaced(world: World) -> None:
    turn = await world.take(world.agent(), completion(message={"content": "cut \ud83d"}))
    assert turn.candidate.text == "cut \ufffd"
    assert [c.amount for c in world.charges] == [ONE_REQUEST]


# --- loop_done and the transcript ---


async def test_loop_done_is_seen_with_its_reason_before_the_final_candidate(world: World) -> None:
    turn = await world.take(world.agent(), call("loop_done", reason="perfect"), Reply(text="final"))
    assert (turn.done_reason, turn.candidate.text) == ("perfect", "final")
    assert world.told()[0].startswith("Noted (perfect). Now give your final candidate")
    assert turn.tool_calls[0].name == "loop_done"


async def test_loop_done_is_offered_once_a_turn(world: World) -> None:
    turn = await world.take(world.agent(), call("loop_done", reason="perfect"), Reply(text="final"))
    assert [sorted(world.offered(request)) for request in (0, 1)] == [["loop_done"], []]
    again = await world.take(
        world.agent(), call("loop_done", reason="first"), call("loop_done", reason="second"), Reply(text="final")
    )
    assert (turn.done_reason, again.done_reason, again.candidate.text) == ("perfect", "first", "final")
    assert world.provider.seen == 5


@pytest.mark.parametrize("arguments", ["{}", '{"reason": 3}', "not json"])
async def test_loop_done_with_wrong_arguments_is_still_done(world: World, arguments: str) -> None:
    asked = {"id": "c", "type": "function", "function": {"name": "loop_done", "arguments": arguments}}
    turn = await world.take(
        world.agent(), completion(finish_reason="tool_calls", message={"tool_calls": [asked]}), Reply(text="x")
    )
    assert turn.done_reason is not None
    assert turn.candidate.text == "x"


async def test_loop_done_beside_the_output_is_seen(world: World) -> None:
    both = Reply(tools=(("loop_done", {"reason": "enough"}), ("final_result", {"title": "t", "words": 1})))
    turn = await world.take(world.agent(output_schema=SCHEMA), both)
    assert (turn.done_reason, turn.candidate.data) == ("enough", {"title": "t", "words": 1})


async def test_a_turn_that_doesnt_say_it_is_done_isnt(world: World) -> None:
    turn = await world.take(world.agent(), Reply(text="call loop_done now"))
    assert turn.done_reason is None


async def test_the_transcript_has_every_call_with_its_own_result(world: World) -> None:
    agent = Agent(world.provider.openai())

    @agent.tool_plain
    def twice(n: int) -> int:  # pyright: ignore[reportUnusedFunction]
        return 2 * n

    both = Reply(tools=(("twice", {"n": 1}), ("twice", {"n": 2})))
    turn = await world.take(agent, both, call("twice", n="x"), Reply(text="done"))
    assert [(c.name, c.arguments) for c in turn.tool_calls] == [
        ("twice", '{"n": 1}'),
        ("twice", '{"n": 2}'),
        ("twice", '{"n": "x"}'),
    ]
    assert [c.result for c in turn.tool_calls][:2] == ["2", "4"]
    assert "valid integer" in turn.tool_calls[2].result


async def test_a_server_that_gives_every_call_the_same_id_gets_every_call(world: World) -> None:
    agent = Agent(world.provider.openai())

    @agent.tool_plain
    def twice(n: int) -> int:  # pyright: ignore[reportUnusedFunction]
        return 2 * n

    def same_id(n: int) -> Reply:
        asked = {"id": "0", "type": "function", "function": {"name": "twice", "arguments": json.dumps({"n": n})}}
        return completion(finish_reason="tool_calls", message={"tool_calls": [asked]})

    turn = await world.take(agent, same_id(1), same_id(2), Reply(text="done"))
    assert world.told() == ["2", "4"]
    assert [c.result for c in turn.tool_calls] == ["2", "4"]


async def test_a_users_own_loop_done_is_refused_with_a_sentence(world: World) -> None:
    def loop_done() -> str:
        return ""

    with pytest.raises(InvalidInput, match="'loop_done'"):
        await world.take(Agent(world.provider.openai(), tools=[loop_done]))
    assert world.provider.seen == 0


# --- failures ---


@pytest.mark.parametrize(
    ("reply", "message", "paid"),
    [
        (Reply(status=400), "status_code: 400", False),
        (Reply(status=401), "status_code: 401", False),
        (Reply(status=403), "status_code: 403", False),
        (Reply(status=404), "status_code: 404", False),
        (Reply(status=500), "status_code: 500", True),
        (Reply(drop=True), "Connection", True),
        (Reply(body=b"<html>not json</html>"), "", True),
        (Reply(body=b"{}"), "", True),
        (completion(message={"content": ""}), "output retries", True),
        (completion(finish_reason="content_filter", message={"refusal": "no"}), "", True),
        (completion(finish_reason="length", message={"content": None}), "", True),
    ],
)
async def test_a_providers_failure_fails_the_turn(world: World, reply: Reply, message: str, paid: bool) -> None:
    world.provider.default = reply
    with pytest.raises(AgentFailed) as failed:
        await world.take(world.agent())
    assert message in str(failed.value)
    assert len(str(failed.value)) < 2100
    wallet = await world.store.wallet()
    assert (wallet.spent > 0, wallet.reserved) == (paid, 0)


async def test_a_context_that_is_too_long_is_an_error_of_the_turn(world: World) -> None:
    error = {
        "error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}
    }
    with pytest.raises(AgentFailed, match="exceeds the available context size"):
        await world.take(world.agent(), Reply(status=400, body=json.dumps(error).encode()))
    assert (await world.store.wallet()).spent == 0


async def test_a_busy_provider_is_asked_again(world: World) -> None:
    busy = Reply(status=429, headers={"retry-after": "0"})
    turn = await world.take(world.agent(), busy, Reply(text="now"))
    assert turn.candidate.text == "now"
    assert [(c.basis, c.amount) for c in world.charges] == [("released", Decimal(0)), ("usage", ONE_REQUEST)]


async def test_an_answer_without_usage_is_charged_whole(world: World) -> None:
    turn = await world.take(world.agent(), Reply(text="free?", tokens=None))
    (charge,) = world.charges
    assert turn.candidate.text == "free?"
    assert (charge.basis, charge.amount) == ("reserved", charge.reservation.amount)
    assert charge.amount > ONE_REQUEST


async def test_a_tool_of_the_library_that_raises_fails_the_turn_which_is_paid(world: World) -> None:
    agent = Agent(world.provider.openai())

    @agent.tool_plain
    async def breaks() -> str:  # pyright: ignore[reportUnusedFunction]
        raise KeyError("missing")

    with pytest.raises(AgentFailed, match="KeyError: 'missing'"):
        await world.take(agent, call("breaks"))
    assert [c.amount for c in world.charges] == [ONE_REQUEST]


async def test_a_turn_has_only_so_many_requests(world: World) -> None:
    def again() -> str:
        return "and again"

    with pytest.raises(AgentFailed, match="request_limit of 3"):
        await world.take(Agent(world.provider.openai(), tools=[again]), *[call("again")] * 9, max_requests=3)
    assert world.provider.seen == 3


async def test_an_unknown_price_is_refused_before_anything_is_sent(make_world: MakeWorld) -> None:
    world = make_world(prices={})
    with pytest.raises(UnknownPrice, match="gpt-4o-minii"):
        await world.take(world.agent(model="openai:gpt-4o-minii"))
    assert world.provider.seen == 0


async def test_a_request_that_doesnt_fit_is_not_sent(make_world: MakeWorld) -> None:
    world = make_world(cap="0.0001")
    with pytest.raises(BudgetExceeded, match="was not sent"):
        await world.take(world.agent())
    assert world.provider.seen == 0
    assert (await world.store.wallet()).spent == 0


async def test_what_scoring_will_cost_stays_free(make_world: MakeWorld) -> None:
    world = make_world(cap="1")
    runner = world.runner(world.agent())
    with pytest.raises(BudgetExceeded):
        await runner.take_turn(prompt("go"), world.context(keep=Decimal("0.9999")))
    assert world.provider.seen == 0


# --- agents that tools call ---


def inner_agent(world: World, *, metered: bool) -> Agent[None, str]:
    return Agent(world.provider.openai(), name="inner", capabilities=[Metered()] if metered else [])


def outer_agent(world: World, inner: Agent[None, str], *, share_usage: bool = False, swallow: bool = False) -> Any:
    agent = Agent(world.provider.openai())

    @agent.tool
    async def ask(ctx: RunContext[object], question: str) -> str:  # pyright: ignore[reportUnusedFunction]
        try:
            return (await inner.run(question, usage=ctx.usage if share_usage else None)).output
        except LoopwrightError:
            if not swallow:
                raise
            return "swallowed"

    return agent


@pytest.mark.parametrize("share_usage", [True, False])
async def test_metered_in_the_library_puts_an_inner_agent_on_the_wallet(world: World, share_usage: bool) -> None:
    agent = outer_agent(world, inner_agent(world, metered=True), share_usage=share_usage)
    turn = await world.take(agent, call("ask", question="?"), Reply(text="inner"), Reply(text="outer"))
    assert turn.candidate.text == "outer"
    assert (await world.store.cost()).by_role == {"agent": 2 * ONE_REQUEST, "subagent": ONE_REQUEST}


async def test_an_inner_agent_around_the_wallet_is_found_by_its_usage(world: World) -> None:
    agent = outer_agent(world, inner_agent(world, metered=False), share_usage=True)
    with pytest.raises(UnmeteredRequests, match=r"1 model request.*loopwright\.Metered\(\)"):
        await world.take(agent, call("ask", question="?"), Reply(text="inner"), Reply(text="outer"))


async def test_a_metered_agent_with_its_own_usage_does_not_hide_one_around_the_wallet(world: World) -> None:
    metered, around = inner_agent(world, metered=True), inner_agent(world, metered=False)
    agent = Agent(world.provider.openai())

    @agent.tool
    async def ask(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        own = await metered.run("?")
        return own.output + (await around.run("?", usage=ctx.usage)).output

    with pytest.raises(UnmeteredRequests, match="1 model request"):
        await world.take(agent, call("ask"))
    assert world.provider.seen == 4


async def test_an_answer_that_is_asked_for_twice_does_not_hide_one_around_the_wallet(world: World) -> None:
    class Twice(WrapperModel):
        async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
            await self.wrapped.request(*args, **kwargs)
            return await self.wrapped.request(*args, **kwargs)

    around = inner_agent(world, metered=False)
    agent = Agent(Twice(world.provider.openai()))

    @agent.tool
    async def ask(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await around.run("?", usage=ctx.usage)).output

    with pytest.raises(UnmeteredRequests, match="1 model request"):
        await world.take(agent, Reply(), call("ask"))


async def test_it_is_found_in_a_turn_that_fails_too(world: World) -> None:
    agent = outer_agent(world, inner_agent(world, metered=False), share_usage=True)
    with pytest.raises(UnmeteredRequests):
        await world.take(agent, call("ask", question="?"), Reply(text="inner"), Reply(status=400))


async def test_metered_outside_a_run_is_refused(world: World) -> None:
    with pytest.raises(UnmeteredRequests, match="outside a run"):
        await inner_agent(world, metered=True).run("?")


async def test_a_budget_that_trips_inside_and_is_swallowed_still_holds(make_world: MakeWorld) -> None:
    world = make_world(cap="0.02")
    inner = Agent(world.provider.openai(), instructions="x" * 100_000, capabilities=[Metered()])
    turn = await world.take(
        outer_agent(world, inner, swallow=True), call("ask", question="?"), Reply(text="went on"), max_output_tokens=100
    )
    assert turn.candidate.text == "went on"
    assert world.told() == ["swallowed"]
    assert (await world.store.wallet()).spent == 2 * ONE_REQUEST


async def test_a_budget_that_trips_inside_is_not_hidden_by_an_error_about_it(make_world: MakeWorld) -> None:
    world = make_world(cap="0.02")
    inner = Agent(world.provider.openai(), instructions="x" * 100_000, capabilities=[Metered()])
    agent = Agent(world.provider.openai())

    @agent.tool_plain
    async def ask() -> str:  # pyright: ignore[reportUnusedFunction]
        try:
            return (await inner.run("?")).output
        except LoopwrightError:
            raise ValueError("the inner agent did not work")  # noqa: B904 - as people write it

    with pytest.raises(BudgetExceeded):
        await world.take(agent, call("ask"))


# --- agents of the library ---


@dataclass
class Watch(AbstractCapability[Any]):
    seen: int = 0

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        self.seen += 1
        return request_context


async def test_an_agents_own_capabilities_and_instructions_stay(world: World) -> None:
    watch = Watch()
    agent = Agent(world.provider.openai(), instructions="mine", capabilities=[watch])
    await world.take(agent, say=prompt("go"))
    assert watch.seen == 1
    assert world.messages()[0]["content"] == "mine"
    assert len(world.charges) == 1


async def test_an_agents_tools_get_the_deps_that_the_loop_was_given(world: World) -> None:
    agent = Agent(world.provider.openai(), deps_type=dict[str, int])

    @agent.tool
    def depth(ctx: RunContext[dict[str, int]]) -> int:  # pyright: ignore[reportUnusedFunction]
        return ctx.deps["depth"]

    await world.take(agent, call("depth"), deps={"depth": 11})
    assert world.told() == ["11"]


async def test_an_agent_with_a_wallet_of_its_own_isnt_charged_twice(world: World) -> None:
    agent = Agent(world.provider.openai(), capabilities=[Metered()])
    await world.take(agent)
    assert [c.amount for c in world.charges] == [ONE_REQUEST]


async def test_the_agents_limit_of_output_tokens_goes_before_the_runners(world: World) -> None:
    cases: list[tuple[Any, int]] = [({"max_tokens": 77}, 77), ({}, 1234)]
    for settings, expected in cases:
        agent = Agent(world.provider.openai(), model_settings=ModelSettings(**settings))
        await world.take(agent, max_output_tokens=1234)
        assert world.provider.bodies[-1]["max_completion_tokens"] == expected


async def test_fallback_models_are_tried_in_order_and_each_is_paid(world: World) -> None:
    world.prices["openai:second"] = Price.model_validate({"input": "2", "output": "20"})
    agent = world.agent(fallback_models=["openai:second"])
    turn = await world.take(agent, Reply(status=500), Reply(text="from the second"))
    assert turn.candidate.text == "from the second"
    assert [b["model"] for b in world.provider.bodies] == ["gpt-4o-mini", "second"]
    first, second = world.charges
    assert (first.basis, first.amount) == ("reserved", first.reservation.amount)
    assert (second.basis, second.amount) == ("usage", 2 * ONE_REQUEST)


async def test_when_all_models_fail_the_error_names_what_each_said(world: World) -> None:
    agent = world.agent(fallback_models=["openai:gpt-4o"])
    with pytest.raises(AgentFailed) as failed:
        await world.take(agent, Reply(status=400), Reply(status=403))
    assert "status_code: 400" in str(failed.value)
    assert "status_code: 403" in str(failed.value)


# --- our errors inside somebody else's ---


def failed(text: str) -> AgentFailed:
    return AgentFailed(text)


def test_the_error_that_says_most_about_the_run_is_found() -> None:
    inner = ExceptionGroup("several", [AgentFailed("a"), BudgetExceeded(needed=Decimal(2), available=Decimal(1))])
    outer = RuntimeError("outer")
    outer.__cause__ = inner
    assert isinstance(our_error(outer, failed), BudgetExceeded)
    group = ExceptionGroup("more", [outer, StoreUnavailable("disk full")])
    assert str(our_error(group, failed)) == "disk full"


def test_errors_that_refer_to_each_other_are_walked_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert str(our_error(first, failed)) == "ValueError: first"
    ours = AgentFailed("ours")
    ours.__cause__ = ours
    assert our_error(ours, failed) is ours


def raised_over(old: Exception) -> Exception:
    try:
        try:
            raise old  # noqa: TRY301
        except Exception:  # noqa: BLE001
            raise ValueError("new") from None
    except ValueError as error:
        return error


def test_what_from_none_put_away_counts_only_where_the_run_depends_on_it() -> None:
    assert str(our_error(raised_over(InvalidInput()), failed)) == "ValueError: new"
    assert str(our_error(raised_over(StoreUnavailable("disk full")), failed)) == "disk full"


def test_a_mistake_of_whoever_built_the_agent_ends_the_run() -> None:
    assert isinstance(our_error(UserError("two tools"), failed), InvalidInput)


def test_api_keys_are_kept_out_of_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-topsecret/abc")
    monkeypatch.setenv("HF_TOKEN", "hf_topsecret")
    monkeypatch.setenv("MY_OWN", "mine-topsecret")
    hide_key("MY_OWN")
    said = ValueError("bad key sk-topsecret\\/abc, hf_topsecret, Bearer mine-topsecret")
    assert str(our_error(said, AgentFailed)) == (
        "ValueError: bad key ${ANTHROPIC_API_KEY}, ${HF_TOKEN}, Bearer ${MY_OWN}"
    )
    assert "topsecret" not in str(our_error(UserError("sk-topsecret/abc"), AgentFailed))


async def test_a_provider_that_quotes_the_api_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LW_PROVIDERS", "topsecret/abc")
    agent = world.agent(base_url=world.provider.url("/v1"), api_key_env="LW_PROVIDERS")
    body = b'{"error": {"message": "Incorrect API key: topsecret\\/abc"}}'
    with pytest.raises(AgentFailed, match=r"Incorrect API key: \$\{LW_PROVIDERS\}"):
        await world.take(agent, Reply(status=401, body=body))
    assert "topsecret" not in repr(world.journal.events)


def test_long_errors_are_shortened() -> None:
    assert len(str(our_error(ValueError("x" * 10_000), failed))) == 2001
    assert isinstance(ToolCall(name="x", arguments="{}"), ToolCall)
