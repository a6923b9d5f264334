"""From a loop file's spec to a loop that runs: agents, evaluators, prices and egress put together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from ..agents.ask import Asker, JudgeAgents
from ..agents.build import build_agent
from ..agents.clients import shared_connections
from ..agents.guard import Guardrails
from ..agents.prices import PriceBook
from ..agents.turn import AgentRunner
from ..builtins.registry import ALONE, Builtins
from ..core.errors import EgressRefused, Problem, Problems, UnknownPrice
from ..core.guardrails import LlmRule
from ..core.hosts import is_loopback
from ..core.models import Conversation
from ..core.ports import AskModel, Evaluator, RunStore
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
from ..core.stop import check_stop
from ..core.wallet import ZERO
from ..egress import EgressClient, EgressPolicy, host_and_port, naming
from ..feedback.registry import build_evaluator
from ..runner.history import BYTES_A_TOKEN
from ..runner.library import HOLDOUT_ALONE, Loop, Wiring
from .guardrails import subject_of
from .world import World

if TYPE_CHECKING:
    from pydantic_ai import Agent

FRAME_BYTES = 4_000
"""What a request carries beside what people wrote: the protocol, tool definitions, framing. An estimate for people;
the wallet bounds each real request exactly."""

TYPICAL_CANDIDATE_BYTES = 8_000
"""Size of a candidate for the first estimate of what judging it costs; the run then goes by what it sees. Also of a
question to an agent that is a tool."""


@dataclass(frozen=True, kw_only=True)
class WorstCase:
    """What one iteration of a loop can cost at worst, in USD, if each model is asked once."""

    agent: Decimal
    """The agent with its fallback models, and the agents among its tools."""
    evaluator: Decimal
    """The evaluator and the holdout."""
    guardrail: Decimal
    """Guardrails that ask a model: each once, before the run or before a tool call."""
    models: tuple[str, ...]
    """The models that it counts."""

    @property
    def total(self) -> Decimal:
        """All together."""
        return self.agent + self.evaluator + self.guardrail

    @property
    def free_of_charge(self) -> bool:
        """Whether nothing that an iteration always asks costs anything, so that a budget need never fire."""
        return self.agent + self.evaluator == 0


def assemble(
    spec: LoopSpec,
    *,
    folder: Path,
    world: World | None = None,
    builtins: Builtins = ALONE,
    conversation: Conversation | None = None,
) -> Loop:
    """Make the loop that a loop file describes.

    Args:
        spec: the loop file.
        folder: where it lies: commands run there, and Python functions are found there.
        world: what the loop may reach; by default all that its writer could.
        builtins: what the agent gets of ours; by default what needs nobody else.
        conversation: what was said, where the agent answers a message instead of working on the goal.

    Raises:
        InvalidInput: all that can't work: prices nobody knows, missing keys, functions that can't be imported.
            Nothing was sent and nothing was spent.
    """
    world = world or World(folder=folder)
    with naming(world.environ):
        return _assemble(spec, world, builtins, conversation)


def _assemble(spec: LoopSpec, world: World, builtins: Builtins, conversation: Conversation | None) -> Loop:
    problems, folder = Problems(), world.folder
    prices = _price_book(spec, world)
    egress = EgressClient()
    with problems.collecting():
        egress = EgressClient(EgressPolicy(allow_hosts=allowed_hosts(spec, world)))
    problems.found += [*_unknown_prices(spec, prices), *_wrong_stop(spec, world)]
    agents: list[Agent[object, object]] = []
    with problems.collecting():
        build_agent(spec.agent, egress=egress, folder=folder, made=agents)
    judges = JudgeAgents(egress)
    for choice, place in _judges(spec):
        with problems.collecting():
            judges.add_model(choice, place)
    built: dict[str, Evaluator] = {}
    for place, root in _roots(spec):
        with problems.collecting():
            built[place] = build_evaluator(root, egress=egress, folder=folder, where=place)
    problems.refuse()
    wiring = _wire(spec, agents, judges, prices, egress=egress, world=world, builtins=builtins)
    wiring.conversation = conversation
    return Loop(
        agent=wiring,
        evaluate=built.get("evaluator"),
        holdout=built.get("holdout"),
        stop=spec.stop_condition,
        direction=spec.direction,
        attempts=spec.attempts,
        history=spec.history,
        name=spec.name,
    )


def worst_case(spec: LoopSpec, world: World | None = None) -> WorstCase:
    """What one iteration of a loop can cost at worst, if each of its models is asked once with a full prompt.

    Fallback models count beside the model that they stand in for: a request that failed may have to be paid.

    Raises:
        UnknownPrice: a model without a known price.
    """
    prices = _price_book(spec, world)
    prompt = spec.history.max_tokens * BYTES_A_TOKEN
    agents = [
        _request(agent, prices, len(agent.instructions.encode()) + (prompt if depth == 0 else TYPICAL_CANDIDATE_BYTES))
        for depth, (agent, _) in enumerate(_agents(spec.agent, "agent"))
    ]
    evaluators = [each for _, root in _roots(spec) for each, _ in _evaluators(root, "")]
    return WorstCase(
        agent=sum(agents, ZERO),
        evaluator=sum((_evaluation(each, spec, prices) for each in evaluators), ZERO),
        guardrail=sum(_verdicts(world, prompt), ZERO) if world else ZERO,
        models=model_names(spec),
    )


def _price_book(spec: LoopSpec, world: World | None) -> PriceBook:
    return PriceBook(spec.prices, world.prices if world else {})


def _request(choice: ModelChoice, prices: PriceBook, input_bytes: int) -> Decimal:
    """What one request to each model of a choice costs at worst."""
    return sum(
        (
            prices.price_of_name(name).worst_case(input_bytes + FRAME_BYTES, choice.max_output_tokens)
            for name, _ in _names(choice, "")
        ),
        ZERO,
    )


def _evaluation(evaluator: EvaluatorSpec, spec: LoopSpec, prices: PriceBook) -> Decimal:
    if isinstance(evaluator, HttpEvaluator | PythonEvaluator):
        return evaluator.max_cost_usd
    if not isinstance(evaluator, JudgeEvaluator):
        return ZERO
    question = len(evaluator.rubric.encode()) + len(spec.goal.encode()) + TYPICAL_CANDIDATE_BYTES
    return _request(evaluator, prices, question)


def _verdicts(world: World, text_bytes: int) -> Iterator[Decimal]:
    """What one verdict of each model that guardrails ask costs at worst. Without a known price it is not asked."""
    prices = PriceBook(world.prices)
    for rule in world.rules:
        if isinstance(rule.spec, LlmRule):
            with suppress(UnknownPrice):
                yield _request(rule.spec, prices, len(rule.spec.instruction.encode()) + text_bytes)


def _guardrails(spec: LoopSpec, world: World) -> Guardrails | None:
    """The guardrails of a loop's runs. Their models are reached where admins say, public or not."""
    if not world.rules:
        return None
    hosts = {
        host
        for rule in world.rules
        if isinstance(rule.spec, LlmRule) and rule.spec.base_url
        for host in _host(rule.spec.base_url)
    }
    return Guardrails(
        rules=world.rules,
        loop=subject_of(spec, spec.goal),
        prices=dict(world.prices),
        egress=EgressClient(EgressPolicy(allow_hosts=frozenset({*world.allow_hosts, *hosts}))),
    )


def _wire(
    spec: LoopSpec,
    agents: list[Agent[object, object]],
    judges: JudgeAgents,
    prices: PriceBook,
    *,
    egress: EgressClient,
    world: World,
    builtins: Builtins,
) -> Wiring:
    running, rails = 0, _guardrails(spec, world)

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        nonlocal running
        running += 1
        try:
            async with AsyncExitStack() as stack:
                stack.enter_context(naming(world.environ))
                await stack.enter_async_context(shared_connections())
                for agent in agents:
                    await stack.enter_async_context(agent)
                await stack.enter_async_context(judges.open())
                if rails is not None:
                    await stack.enter_async_context(rails.open())
                yield
        finally:
            running -= 1
            if not running:
                await egress.aclose()
                if rails is not None:
                    await rails.egress.aclose()

    def ask(store: RunStore) -> AskModel:
        return Asker(store, prices, judges)

    runner = AgentRunner(
        agents[-1],
        prices=prices,
        max_output_tokens=spec.agent.max_output_tokens,
        max_requests=spec.agent.max_requests,
        toolsets=builtins.toolsets(loop_done=spec.agent.loop_done),
    )
    worst = worst_case(spec, world)
    return Wiring(
        runner,
        model=spec.agent.model,
        has_schema=spec.agent.output_schema is not None,
        may_end=spec.agent.loop_done and "loop_done" in builtins.granted,
        free_of_charge=worst.free_of_charge,
        ask=ask,
        last_lap_usd=worst.evaluator,
        lifespan=lifespan,
        guard=rails.of_run if rails is not None else None,
    )


def _unknown_prices(spec: LoopSpec, prices: PriceBook) -> Iterator[Problem]:
    for choice, place in _models(spec):
        for name, field in _names(choice, place):
            try:
                prices.price_of_name(name)
            except UnknownPrice as error:
                yield Problem(field=field, message=str(error))


def _wrong_stop(spec: LoopSpec, world: World) -> Iterator[Problem]:
    try:
        free = worst_case(spec, world).free_of_charge
    except UnknownPrice:
        free = False
    yield from check_stop(spec.stop_condition, has_evaluator=spec.evaluator is not None, free_of_charge=free)
    if spec.holdout and not spec.evaluator:
        yield Problem(field="holdout", message=HOLDOUT_ALONE)


# --- walking through a loop ---


def _names(choice: ModelChoice, place: str) -> Iterator[tuple[str, str]]:
    """The model and its fallbacks, each with its place in the file."""
    yield choice.model, f"{place}.model"
    if isinstance(choice, AgentSpec):
        for number, name in enumerate(choice.fallback_models):
            yield name, f"{place}.fallback_models.{number}"


def model_names(spec: LoopSpec) -> tuple[str, ...]:
    """Every model that a loop may ask, once: of its agents with their fallbacks, and of its judges."""
    return tuple(dict.fromkeys(name for choice, _ in _models(spec) for name, _ in _names(choice, "")))


def _models(spec: LoopSpec) -> Iterator[tuple[ModelChoice, str]]:
    """Every model that a loop names, with its place in the file."""
    yield from _agents(spec.agent, "agent")
    yield from _judges(spec)


def _agents(agent: AgentSpec, place: str) -> Iterator[tuple[AgentSpec, str]]:
    """An agent and the agents among its tools."""
    yield agent, place
    for number, tool in enumerate(agent.tools):
        if isinstance(tool, AgentTool):
            yield from _agents(tool.agent, f"{place}.tools.{number}.agent")


def _judges(spec: LoopSpec) -> Iterator[tuple[JudgeEvaluator, str]]:
    for name, root in _roots(spec):
        for evaluator, place in _evaluators(root, name):
            if isinstance(evaluator, JudgeEvaluator):
                yield evaluator, place


def _roots(spec: LoopSpec) -> Iterator[tuple[str, EvaluatorSpec]]:
    if spec.evaluator:
        yield "evaluator", spec.evaluator
    if spec.holdout:
        yield "holdout", spec.holdout


def _evaluators(spec: EvaluatorSpec, place: str) -> Iterator[tuple[EvaluatorSpec, str]]:
    """An evaluator, or the parts that it combines."""
    if isinstance(spec, CombinedEvaluator):
        for number, part in enumerate(spec.parts):
            yield from _evaluators(part.evaluator, f"{place}.parts.{number}.evaluator")
    else:
        yield spec, place


def allowed_hosts(spec: LoopSpec, world: World) -> frozenset[str]:
    """The hosts that a loop may reach though they aren't public."""
    if world.trusts_writer:
        return frozenset({*world.allow_hosts, *spec.allow_hosts, *_named_hosts(spec)})
    named = (host for host in _named_hosts(spec) if world.trusts_loopback and is_loopback(host.rpartition(":")[0]))
    return frozenset({*world.allow_hosts, *named})


def _named_hosts(spec: LoopSpec) -> Iterator[str]:
    """The hosts that a loop file names: its writer may reach them, public or not."""
    for choice, _ in _models(spec):
        if choice.base_url:
            yield from _host(choice.base_url)
    for _, root in _roots(spec):
        for evaluator, _ in _evaluators(root, ""):
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
