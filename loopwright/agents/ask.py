"""Asks a model one question on the run's wallet: what the judge uses."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from typing import cast

from pydantic import JsonValue
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model

from ..core.errors import EvaluatorFailed
from ..core.ports import RunStore, Spender
from ..core.spec import ModelChoice
from ..egress import EgressClient
from .build import structured_agent
from .charging import NOT_PROCESSED
from .failures import our_error
from .journal import OperationNames
from .models import build_model, model_settings
from .prices import PriceBook
from .wallet_model import Meter, Metered, metering

BUSY_OR_SLOW = frozenset({408, 409, 425, 429, 503, 529})
"""Statuses below 500, and of those that cost nothing, after which asking again may help."""


class JudgeAgents:
    """The agents that answer questions, made once for all runs of a loop. Enter `open()` while they are used.

    Args:
        egress: carries the requests to a `base_url`; without it they go there unchecked.
    """

    def __init__(self, egress: EgressClient | None = None) -> None:
        self._egress = egress
        self._models: dict[str, Model] = {}
        self._agents: dict[str, Agent[object, object]] = {}

    def add_model(self, choice: ModelChoice, where: str = "evaluator") -> Model:
        """Make a model before it is asked. `where` is its place in the loop file.

        Raises:
            InvalidInput: no such model, or its API key is missing.
        """
        key = _model_key(choice)
        if key not in self._models:
            self._models[key] = build_model(choice, where=where, egress=self._egress)
        return self._models[key]

    def agent(self, choice: ModelChoice, instructions: str, schema: dict[str, JsonValue]) -> Agent[object, object]:
        """The agent that answers in a schema."""
        key = f"{_model_key(choice)}\n{instructions}\n{schema}"
        if key not in self._agents:
            self._agents[key] = structured_agent(
                self.add_model(choice),
                schema=schema,
                where="schema",
                name="answer",
                instructions=instructions,
                settings=model_settings(choice),
                retries=1,
            )
        return self._agents[key]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Keep connections open inside, and close them at the end."""
        async with AsyncExitStack() as stack:
            for model in self._models.values():
                await stack.enter_async_context(model)
            yield
            for model in self._models.values():  # those that were made meanwhile too
                await stack.enter_async_context(model)


class Asker:
    """Asks models on one run's wallet; implements `core.ports.AskModel`.

    Args:
        store: the run's.
        prices: what the models cost.
        agents: the agents made so far, shared by the runs of a loop.
    """

    def __init__(self, store: RunStore, prices: PriceBook, agents: JudgeAgents) -> None:
        self._store = store
        self._prices = prices
        self._agents = agents
        self._names: dict[int, tuple[int, dict[str, OperationNames]]] = {}
        """By attempt: its iteration, and the names of the questions in it. A question that is asked again because its
        answer was no good goes on counting, so that the journal doesn't give it the old answer."""

    async def __call__(
        self,
        *,
        model: ModelChoice,
        instructions: str,
        question: str,
        schema: dict[str, JsonValue],
        spender: Spender,
        purpose: str,
        keep: Decimal = Decimal(0),
    ) -> dict[str, JsonValue]:
        """See `core.ports.AskModel`. `keep` is what must be left free, in USD."""
        meter = Meter(
            store=self._store,
            spender=spender,
            prices=self._prices,
            keep=keep,
            max_output_tokens=model.max_output_tokens,
            names=self._names_of(spender, purpose),
        )
        try:
            agent = self._agents.agent(model, instructions, schema)
            with metering(meter):
                result = await agent.run(question, capabilities=[Metered(meter)])
        except Exception as error:
            transient = _may_pass(error)
            raise our_error(error, lambda text: EvaluatorFailed(text, transient=transient)) from error
        return cast("dict[str, JsonValue]", result.output)

    def _names_of(self, spender: Spender, purpose: str) -> OperationNames:
        iteration, names = self._names.get(spender.attempt, (0, {}))
        if iteration != spender.iteration:
            names = dict[str, OperationNames]()
            self._names[spender.attempt] = spender.iteration, names
        if purpose not in names:
            names[purpose] = OperationNames(spender.attempt, spender.iteration, purpose)
        return names[purpose]


def _model_key(choice: ModelChoice) -> str:
    return choice.model_dump_json(include=set(ModelChoice.model_fields))


def _may_pass(error: Exception) -> bool:
    """Whether asking again may help. A wrong key or a refused request stays wrong."""
    if isinstance(error, ModelHTTPError):
        return error.status_code not in NOT_PROCESSED or error.status_code in BUSY_OR_SLOW
    return True
