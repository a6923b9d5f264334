"""From a loop file's spec to a loop that runs: agents, evaluators, prices and egress put together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ..agents.ask import Asker
from ..agents.build import build_agent
from ..agents.prices import PriceBook
from ..agents.turn import AgentRunner
from ..builtins.loop_done import loop_done_toolset
from ..core.errors import EgressRefused, InvalidInput, Problem, UnknownPrice
from ..core.ports import AskModel, RunStore
from ..core.spec import (
    AgentSpec,
    AgentTool,
    CombinedEvaluator,
    EvaluatorSpec,
    HttpEvaluator,
    HttpTool,
    JudgeEvaluator,
    LoopSpec,
    McpTool,
    ModelChoice,
    PythonEvaluator,
)
from ..core.wallet import ZERO
from ..egress import EgressClient, EgressPolicy, host_and_port
from ..feedback.registry import build_evaluator
from ..runner.history import BYTES_A_TOKEN
from ..runner.library import Loop, Wiring

if TYPE_CHECKING:
    from pydantic_ai import Agent

FRAME_BYTES = 4_000
"""What a request carries beside what people wrote: the protocol, tool definitions, framing. An estimate for people;
the wallet bounds each real request exactly."""

TYPICAL_CANDIDATE_BYTES = 8_000
"""Size of a candidate for the first estimate of what judging it costs; the run then goes by what it sees."""


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """What one iteration of a loop can cost at worst, in USD, if each model is asked once."""

    agent: Decimal
    evaluator: Decimal
    models: tuple[str, ...]
    """The models that it counts."""

    @property
    def total(self) -> Decimal:
        """Agent and evaluator together."""
        return self.agent + self.evaluator


def assemble(spec: LoopSpec, *, folder: Path) -> Loop:
    """Make the loop that a loop file describes.

    Args:
        spec: the loop file.
        folder: where it lies: commands run there, and Python functions are found there.

    Raises:
        InvalidInput: all that can't work: prices nobody knows, missing keys, functions that can't be imported.
            Nothing was sent and nothing was spent.
    """
    prices = PriceBook(spec.prices)
    egress = EgressClient(EgressPolicy(allow_hosts=frozenset({*spec.allow_hosts, *_named_hosts(spec)})))
    problems: list[Problem] = list(_unknown_prices(spec, prices))
    agent = evaluator = holdout = None
    try:
        agent = build_agent(spec.agent, egress=egress, folder=folder)
    except InvalidInput as error:
        problems += error.problems
    try:
        evaluator = build_evaluator(spec.evaluator, egress=egress, folder=folder) if spec.evaluator else None
    except InvalidInput as error:
        problems += error.problems
    try:
        if spec.holdout:
            holdout = build_evaluator(spec.holdout, egress=egress, folder=folder, where="holdout")
    except InvalidInput as error:
        problems += error.problems
    if problems or agent is None:
        raise InvalidInput(*problems)
    return Loop(
        agent=_wire(spec, agent, prices, egress),
        evaluate=evaluator,
        holdout=holdout,
        stop=spec.stop_condition,
        direction=spec.direction,
        attempts=spec.attempts,
        history=spec.history,
        name=spec.name,
    )


def worst_case(spec: LoopSpec) -> WorstCase:
    """What one iteration of a loop can cost at worst, if each of its models is asked once with a full prompt.

    Raises:
        UnknownPrice: a model without a known price.
    """
    prices = PriceBook(spec.prices)
    prompt = spec.history.max_tokens * BYTES_A_TOKEN + len(spec.agent.instructions.encode()) + FRAME_BYTES
    agent = max(
        prices.price_of_name(name).worst_case(prompt, spec.agent.max_output_tokens) for name in _names(spec.agent)
    )
    judges = [e for root in (spec.evaluator, spec.holdout) if root for e in _evaluators(root)]
    return WorstCase(
        agent=agent,
        evaluator=sum((_evaluation(e, spec, prices) for e in judges), ZERO),
        models=tuple(dict.fromkeys(name for choice, _ in _models(spec) for name in _names(choice))),
    )


def _evaluation(evaluator: EvaluatorSpec, spec: LoopSpec, prices: PriceBook) -> Decimal:
    if isinstance(evaluator, HttpEvaluator | PythonEvaluator):
        return evaluator.max_cost_usd
    if not isinstance(evaluator, JudgeEvaluator):
        return ZERO
    question = len(evaluator.rubric.encode()) + len(spec.goal.encode()) + TYPICAL_CANDIDATE_BYTES + FRAME_BYTES
    return prices.price_of_name(evaluator.model).worst_case(question, evaluator.max_output_tokens)


def _wire(spec: LoopSpec, agent: Agent[object, object], prices: PriceBook, egress: EgressClient) -> Wiring:
    cache: dict[str, Agent[object, object]] = {}
    running = 0

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        nonlocal running
        running += 1
        try:
            async with agent:
                yield
        finally:
            running -= 1
            if not running:
                await egress.aclose()

    def ask(store: RunStore) -> AskModel:
        return Asker(store, prices, cache)

    runner = AgentRunner(
        agent,
        prices=prices,
        max_output_tokens=spec.agent.max_output_tokens,
        max_requests=spec.agent.max_requests,
        toolsets=[loop_done_toolset()],
    )
    worst = worst_case(spec)
    return Wiring(
        runner,
        model=spec.agent.model,
        has_schema=spec.agent.output_schema is not None,
        free_of_charge=worst.total == 0,
        ask=ask,
        last_lap_usd=worst.evaluator,
        lifespan=lifespan,
    )


def _unknown_prices(spec: LoopSpec, prices: PriceBook) -> Iterator[Problem]:
    for choice, place in _models(spec):
        for name in _names(choice):
            try:
                prices.price_of_name(name)
            except UnknownPrice as error:
                yield Problem(field=f"{place}.model", message=str(error))


def _names(choice: ModelChoice) -> tuple[str, ...]:
    return (choice.model, *choice.fallback_models) if isinstance(choice, AgentSpec) else (choice.model,)


def _models(spec: LoopSpec) -> Iterator[tuple[ModelChoice, str]]:
    """Every model that a loop names, with its place in the file."""
    yield from _agent_models(spec.agent, "agent")
    for place, root in (("evaluator", spec.evaluator), ("holdout", spec.holdout)):
        for evaluator in _evaluators(root) if root else ():
            if isinstance(evaluator, JudgeEvaluator):
                yield evaluator, place


def _agent_models(agent: AgentSpec, place: str) -> Iterator[tuple[ModelChoice, str]]:
    yield agent, place
    for number, tool in enumerate(agent.tools):
        if isinstance(tool, AgentTool):
            yield from _agent_models(tool.agent, f"{place}.tools.{number}.agent")


def _evaluators(spec: EvaluatorSpec) -> Iterator[EvaluatorSpec]:
    """An evaluator, or the parts that it combines."""
    if isinstance(spec, CombinedEvaluator):
        for part in spec.parts:
            yield from _evaluators(part.evaluator)
    else:
        yield spec


def _named_hosts(spec: LoopSpec) -> Iterator[str]:
    """The hosts that a loop file names: its writer may reach them, public or not."""
    for root in (spec.evaluator, spec.holdout):
        for evaluator in _evaluators(root) if root else ():
            if isinstance(evaluator, HttpEvaluator):
                yield from _host(evaluator.url)
    yield from _tool_hosts(spec.agent)


def _tool_hosts(agent: AgentSpec) -> Iterator[str]:
    for tool in agent.tools:
        match tool:
            case HttpTool():
                yield from _host(tool.url)
            case McpTool(url=str(url)):
                yield from _host(url)
            case AgentTool():
                yield from _tool_hosts(tool.agent)
            case _:
                pass


def _host(url: str) -> Iterator[str]:
    with suppress(EgressRefused):  # whoever is built with this URL says what is wrong with it
        yield host_and_port(url)
