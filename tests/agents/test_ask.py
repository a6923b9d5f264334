"""The judge: its answers are checked, it pays from the run's wallet, and the last candidate can still be scored."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from loopwright import Budget, Loop, MaxIterations
from loopwright.agents.ask import Asker, JudgeAgents
from loopwright.agents.prices import PriceBook
from loopwright.core.errors import BudgetExceeded, EvaluatorFailed, InvalidInput
from loopwright.core.events import EvaluationRetried, IterationFinished, MoneySettled, RunEvent
from loopwright.core.models import Candidate, EvaluationRequest, Feedback
from loopwright.core.ports import EvaluatorContext, Spender
from loopwright.core.result import RunResult
from loopwright.core.spec import JudgeEvaluator, LoopSpec, ModelChoice
from loopwright.feedback.judge import RubricEvaluator
from loopwright.runner.library import Wiring
from loopwright.service.assemble import assemble, worst_case

from .provider import Provider, Reply
from .turns import ONE_REQUEST, PRICES, MakeWorld, World, call

JUDGE_PRICES = {"openai:gpt-4o-mini": {"input": "1", "output": "10"}}


@pytest.fixture
async def judges() -> AsyncGenerator[JudgeAgents]:
    made = JudgeAgents()
    async with made.open():
        yield made


def choice(world: World, **fields: Any) -> ModelChoice:
    return ModelChoice(
        model="openai:gpt-4o-mini", base_url=world.provider.url("/v1"), **{"max_output_tokens": 100, **fields}
    )


async def judge(world: World, judges: JudgeAgents, *replies: Reply, scale: tuple[float, float] = (0, 1)) -> Feedback:
    world.provider.script = list(replies)
    world.turns += 1
    evaluator = RubricEvaluator(model=choice(world), rubric="Be {brief}.", scale=scale)
    context = EvaluatorContext(store=world.store, clock=world.clock, ask=Asker(world.store, PriceBook(PRICES), judges))
    candidate = Candidate(text="the ~~~~ sea")
    request = EvaluationRequest(goal="g", candidate=candidate, run_id="r", attempt=1, iteration=world.turns)
    return await evaluator.evaluate(request, context)


def verdict(**answer: Any) -> Reply:
    return call("final_result", **answer)


# --- answers ---


async def test_a_verdict_is_feedback_paid_under_its_role(world: World, judges: JudgeAgents) -> None:
    feedback = await judge(world, judges, verdict(score=0.75, detail="good"))
    assert (feedback.score, feedback.detail, feedback.cost_usd) == (0.75, "good", None)
    assert (await world.store.cost()).by_role == {"judge": ONE_REQUEST}
    system, user = world.messages()
    assert "Be {brief}." in system["content"]
    assert "~~~~~ candidate\nthe ~~~~ sea\n~~~~~" in user["content"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"score": 1.5, "detail": ""}, "outside its scale of 0 to 1"),
        ({"score": -0.1, "detail": ""}, "outside its scale of 0 to 1"),
    ],
)
async def test_a_score_outside_the_scale_is_a_failure_and_never_moved(
    world: World, judges: JudgeAgents, answer: dict[str, Any], message: str
) -> None:
    with pytest.raises(EvaluatorFailed, match=message) as failed:
        await judge(world, judges, verdict(**answer))
    assert failed.value.transient
    assert (await world.store.wallet()).spent == ONE_REQUEST


@pytest.mark.parametrize(
    "answer",
    [
        {"detail": "no score"},
        {"score": "0.9", "detail": ""},
        {"score": True, "detail": ""},
        {"score": None, "detail": ""},
        {"score": 0.5},
        {"score": 0.5, "detail": "", "cost_usd": 3},
    ],
)
async def test_an_answer_that_breaks_the_schema_is_asked_for_once_more(
    world: World, judges: JudgeAgents, answer: dict[str, Any]
) -> None:
    feedback = await judge(world, judges, verdict(**answer), verdict(score=0.5, detail="d"))
    assert feedback.score == 0.5
    assert "doesn't follow the schema" in world.told()[0]
    with pytest.raises(EvaluatorFailed):
        await judge(world, judges, verdict(**answer), verdict(**answer))
    assert (await world.store.wallet()).spent == 4 * ONE_REQUEST


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
async def test_numbers_that_json_doesnt_have_are_no_score(world: World, judges: JudgeAgents, number: str) -> None:
    asked = {"name": "final_result", "arguments": f'{{"score": {number}, "detail": ""}}'}
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": asked}]}
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
    }
    reply = Reply(body=json.dumps(body).encode())
    with pytest.raises(EvaluatorFailed):
        await judge(world, judges, reply, reply)


async def test_text_instead_of_an_answer_is_asked_for_once_more(world: World, judges: JudgeAgents) -> None:
    feedback = await judge(world, judges, Reply(text="I'd say 8/10!"), verdict(score=8, detail=""), scale=(0, 10))
    assert feedback.score == 8
    with pytest.raises(EvaluatorFailed, match="output retries"):
        await judge(world, judges, Reply(text="8/10"), Reply(text='{"score": 0.8}'))


@pytest.mark.parametrize(
    ("reply", "transient"),
    [
        (Reply(status=400), False),
        (Reply(status=401), False),
        (Reply(status=404), False),
        (Reply(status=500), True),
        (Reply(status=502), True),
        (Reply(drop=True), True),
    ],
)
async def test_only_what_may_pass_is_worth_another_try(
    world: World, judges: JudgeAgents, reply: Reply, transient: bool
) -> None:
    world.provider.default = reply
    with pytest.raises(EvaluatorFailed) as failed:
        await judge(world, judges)
    assert failed.value.transient is transient


async def test_a_question_that_doesnt_fit_is_not_sent(make_world: MakeWorld, judges: JudgeAgents) -> None:
    world = make_world(cap="0.001")
    with pytest.raises(BudgetExceeded):
        await judge(world, judges)
    assert world.provider.seen == 0


async def test_one_agent_answers_all_questions_of_one_judge(world: World, judges: JudgeAgents) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    first = judges.agent(choice(world), "grade", schema)
    assert judges.agent(choice(world), "grade", schema) is first
    assert judges.agent(choice(world), "grade harder", schema) is not first
    assert judges.add_model(choice(world)) is first.model
    assert judges.add_model(choice(world, max_output_tokens=50)) is not first.model


def test_a_judge_that_cant_be_asked_is_refused_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidInput) as refused:
        JudgeAgents().add_model(ModelChoice(model="openai:gpt-4o-mini"), "evaluator.parts.0.evaluator")
    (problem,) = refused.value.problems
    assert problem.field == "evaluator.parts.0.evaluator.model"
    assert "OPENAI_API_KEY" in problem.message


# --- whole runs ---


def loop_spec(provider: Provider, **fields: Any) -> LoopSpec:
    model = {"model": "openai:gpt-4o-mini", "base_url": provider.url("/v1"), "max_output_tokens": 100}
    return LoopSpec.model_validate(
        {
            "name": "judged",
            "goal": "a sentence",
            "agent": model,
            "evaluator": {"kind": "judge", "rubric": "Is it good?", **model},
            "stop": {"max_iterations": 3},
            "prices": JUDGE_PRICES,
            **fields,
        }
    )


async def run(spec: LoopSpec, folder: Path) -> tuple[RunResult, list[RunEvent]]:
    loop = assemble(spec, folder=folder)
    loop.wiring.retry_delays = (0, 0)
    running = loop.start(spec.goal)
    events = [event async for event in running.events()]
    return await running, events


async def test_a_judged_run(provider: Provider, tmp_path: Path) -> None:
    provider.script = [
        Reply(text="one"),
        verdict(score=0.4, detail="short"),
        Reply(text="two"),
        verdict(score=0.9, detail="good"),
    ]
    result, _ = await run(loop_spec(provider, stop={"target_score": 0.9, "max_iterations": 5}), tmp_path)
    assert result.stop_reason == "target_reached"
    assert result.best
    assert (result.best.text, result.best.score) == ("two", 0.9)
    assert result.cost.by_role == {"agent": 2 * ONE_REQUEST, "judge": 2 * ONE_REQUEST}
    assert result.cost.requests == 4
    assert [i.cost_usd for i in result.iterations] == [2 * ONE_REQUEST] * 2
    assert "short" in provider.bodies[2]["messages"][-1]["content"]


async def test_a_judge_that_reports_no_usage_is_charged_whole_and_the_budget_ends_the_run(
    provider: Provider, tmp_path: Path
) -> None:
    provider.default = verdict(score=0.5, detail="")
    agent_says = Reply(text="candidate")
    silent = Reply(tools=provider.default.tools, tokens=None)
    provider.script = [agent_says, silent] * 100
    spec = loop_spec(provider, stop={"budget_usd": "0.05", "max_iterations": 100})
    result, events = await run(spec, tmp_path)
    assert result.stop_reason == "budget"
    assert result.cost.total <= Decimal("0.05")
    judged = [e.charge for e in events if isinstance(e, MoneySettled) and e.charge.reservation.role == "judge"]
    assert judged
    assert all((c.basis, c.amount) == ("reserved", c.reservation.amount) for c in judged)
    assert len(result.iterations) < 20


async def test_the_last_candidate_of_a_budget_is_still_scored(provider: Provider, tmp_path: Path) -> None:
    """The agent leaves enough for its judge, so every candidate that was paid for has a score."""
    dear = (3000, 100)
    answer = Reply(tools=verdict(score=0.5, detail="").tools, tokens=dear)
    for cap in ("0.03", "0.04", "0.05", "0.0611"):
        provider.script = [each for _ in range(50) for each in (Reply(text="x", tokens=dear), answer)]
        spec = loop_spec(provider, stop={"budget_usd": cap, "max_iterations": 50})
        result, events = await run(spec, tmp_path)
        assert result.stop_reason in ("budget", "max_iterations")
        finished = [e.iteration for e in events if isinstance(e, IterationFinished)]
        scored = [i for i in finished if i.candidate is not None]
        assert scored
        assert all(i.score == 0.5 for i in scored)
        assert result.cost.total <= Decimal(cap)
        assert result.best is not None
        assert result.best.score == 0.5


async def test_a_judge_that_doesnt_fit_leaves_its_candidate_unscored(provider: Provider, tmp_path: Path) -> None:
    """A candidate far longer than any estimate: judging it is dearer than what was kept for it."""
    provider.script = [Reply(text="x" * 60_000, tokens=(100, 100))]
    result, _ = await run(loop_spec(provider, stop={"budget_usd": "0.05"}), tmp_path)
    assert result.stop_reason == "budget"
    (iteration,) = result.iterations
    assert iteration.text == "x" * 60_000
    assert (iteration.score, iteration.interrupted) == (None, "budget")
    assert iteration.failure
    assert "was not sent" in iteration.failure
    assert result.best == iteration
    assert provider.seen == 1


async def test_a_budget_smaller_than_one_request_spends_nothing_and_says_what_one_needs(
    provider: Provider, tmp_path: Path
) -> None:
    result, _ = await run(loop_spec(provider, stop={"budget_usd": "0.001"}), tmp_path)
    assert (result.stop_reason, result.cost.total, result.best) == ("budget", 0, None)
    assert "may cost up to $" in result.sentence
    assert provider.seen == 0


async def test_a_judge_out_of_its_scale_is_asked_again_with_its_money_counted(
    provider: Provider, tmp_path: Path
) -> None:
    provider.script = [Reply(text="x"), verdict(score=7, detail=""), verdict(score=0.7, detail="")]
    result, events = await run(loop_spec(provider, stop={"max_iterations": 1}), tmp_path)
    assert [i.score for i in result.iterations] == [0.7]
    assert len([e for e in events if isinstance(e, EvaluationRetried)]) == 1
    assert result.cost.by_role == {"agent": ONE_REQUEST, "judge": 2 * ONE_REQUEST}


async def test_a_wrong_key_of_the_judge_isnt_tried_again_and_ends_after_three(
    provider: Provider, tmp_path: Path
) -> None:
    provider.script = [each for _ in range(9) for each in (Reply(text="x"), Reply(status=401))]
    result, events = await run(loop_spec(provider, stop={"max_iterations": 9}), tmp_path)
    assert (result.stop_reason, len(result.iterations)) == ("error", 3)
    assert not [e for e in events if isinstance(e, EvaluationRetried)]
    assert provider.seen == 6
    assert result.best is not None
    assert result.best.text == "x"


async def test_a_judge_as_holdout_and_in_a_combination(provider: Provider, tmp_path: Path) -> None:
    model = {"model": "openai:gpt-4o-mini", "base_url": provider.url("/v1"), "max_output_tokens": 100}
    both = {
        "kind": "combined",
        "parts": [
            {"name": "style", "weight": 3, "evaluator": {"kind": "judge", "rubric": "Style?", **model}},
            {"name": "fact", "evaluator": {"kind": "judge", "rubric": "True?", **model}},
        ],
    }
    holdout = {"kind": "judge", "rubric": "Really?", **model}
    spec = loop_spec(provider, evaluator=both, holdout=holdout, stop={"max_iterations": 1})
    provider.script = [Reply(text="x")]
    provider.default = verdict(score=0.5, detail="d")
    result, _ = await run(spec, tmp_path)
    (iteration,) = result.iterations
    assert iteration.score == 0.5
    assert iteration.holdout
    assert iteration.holdout.score == 0.5
    assert result.cost.by_role == {"agent": ONE_REQUEST, "judge": 3 * ONE_REQUEST}
    assert (
        worst_case(spec).evaluator
        == 3 * worst_case(loop_spec(provider, evaluator=holdout)).evaluator
        + Decimal(len("Style?") + len("True?") - 2 * len("Really?")) / 1_000_000
    )


async def test_a_judge_works_in_the_library_too(provider: Provider) -> None:
    described = JudgeEvaluator(
        kind="judge", rubric="Good?", model="openai:gpt-4o-mini", base_url=provider.url("/v1"), max_output_tokens=100
    )
    loop = Loop(
        agent=Agent(provider.openai()),
        evaluate=RubricEvaluator(model=described, rubric=described.rubric),
        stop=MaxIterations(1) | Budget("1"),
        prices=PRICES,
    )
    provider.script = [Reply(text="x"), verdict(score=0.5, detail="d")]
    result = await loop.run("g")
    assert result.best
    assert result.best.score == 0.5
    assert result.cost.by_role == {"agent": ONE_REQUEST, "judge": ONE_REQUEST}


async def test_without_a_way_to_ask_a_judge_says_so(world: World) -> None:
    context = EvaluatorContext(store=world.store, clock=world.clock)
    request = EvaluationRequest(goal="g", candidate=Candidate(text="x"), run_id="r", attempt=1, iteration=1)
    with pytest.raises(EvaluatorFailed, match="no way to ask a model"):
        await RubricEvaluator(model=choice(world), rubric="r").evaluate(request, context)
    assert Wiring.of("practice", {}).ask is not None
    assert Spender(role="judge").attempt == 1
