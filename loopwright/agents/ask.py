"""Asks a model one question on the run's wallet: what the judge uses."""

from __future__ import annotations

from typing import TypeVar, cast

from pydantic import JsonValue
from pydantic_ai import Agent, ModelRetry, StructuredDict
from pydantic_ai.exceptions import AgentRunError

from ..core.errors import EvaluatorFailed
from ..core.ports import RunStore, Spender
from ..core.spec import ModelChoice
from .models import build_model, model_settings
from .prices import PriceBook
from .schemas import ObjectSchema
from .turn import our_error
from .wallet_model import Meter, Metered, metering

T = TypeVar("T")


class Asker:
    """Asks models on one run's wallet; implements `core.ports.AskModel`.

    Args:
        store: the run's.
        prices: what the models cost.
        cache: agents made so far, shared by the runs of a loop.
    """

    def __init__(self, store: RunStore, prices: PriceBook, cache: dict[str, Agent[object, object]]) -> None:
        self._store = store
        self._prices = prices
        self._cache = cache

    async def __call__(
        self, *, model: ModelChoice, instructions: str, question: str, schema: dict[str, JsonValue], spender: Spender
    ) -> dict[str, JsonValue]:
        """See `core.ports.AskModel`."""
        meter = Meter(
            store=self._store, spender=spender, prices=self._prices, max_output_tokens=model.max_output_tokens
        )
        try:
            with metering(meter):
                result = await self._agent(model, instructions, schema).run(question, capabilities=[Metered(meter)])
        except AgentRunError as error:
            raise our_error(error, lambda text: EvaluatorFailed(text, transient=True)) from error
        return cast("dict[str, JsonValue]", result.output)

    def _agent(self, model: ModelChoice, instructions: str, schema: dict[str, JsonValue]) -> Agent[object, object]:
        key = f"{model.model_dump_json()}\n{instructions}"
        if key not in self._cache:
            self._cache[key] = _asking_agent(model, instructions, schema)
        return self._cache[key]


def _asking_agent(model: ModelChoice, instructions: str, schema: dict[str, JsonValue]) -> Agent[object, object]:
    schema_check = ObjectSchema(schema, "schema")
    agent: Agent[object, object] = Agent(
        build_model(model, where="evaluator"),
        instructions=instructions,
        output_type=StructuredDict(schema, name="answer"),
        model_settings=model_settings(model),
        retries=1,
    )

    def follows_the_schema(output: T) -> T:
        if mistake := schema_check.mistake(output):
            raise ModelRetry(f"The answer doesn't follow the schema at {mistake}")
        return output

    agent.output_validator(follows_the_schema)
    return agent
