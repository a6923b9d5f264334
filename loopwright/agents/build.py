"""From an agent's spec to a pydantic-ai agent."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue, TypeAdapter
from pydantic_ai import Agent, ModelRetry, StructuredDict
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset

from ..core.errors import InvalidInput, Problem, Problems
from ..core.spec import AgentSpec
from ..egress import EgressClient
from .models import build_model, model_settings
from .schemas import ObjectSchema
from .tools import build_toolsets
from .wallet_model import Metered

T = TypeVar("T")


def build_agent(
    spec: AgentSpec,
    *,
    egress: EgressClient,
    folder: Path,
    where: str = "agent",
    nested: bool = False,
    made: list[Agent[object, object]] | None = None,
) -> Agent[object, object]:
    """Make the agent that a spec describes.

    Args:
        spec: the agent.
        egress: carries the requests of its tools, and those to its model's `base_url`.
        folder: the loop file's folder.
        where: its dotted path in the loop file, for messages.
        nested: whether another agent asks it as a tool; then it finds the wallet of that agent's turn by itself.
        made: gets every agent that is made, this one last: each is to be entered while it is used.

    Raises:
        InvalidInput: all that can't work, and why. Nothing was sent.
    """

    def build_nested(inner: AgentSpec, place: str) -> Agent[object, object]:
        return build_agent(inner, egress=egress, folder=folder, where=place, nested=True, made=made)

    problems = Problems()
    model: Model | None = None
    toolsets: list[AbstractToolset[object]] = []
    with problems.collecting():
        model = build_model(spec, spec.fallback_models, where=where, egress=egress)
    with problems.collecting():
        toolsets = build_toolsets(spec.tools, egress=egress, folder=folder, build_agent=build_nested, where=where)
    with problems.collecting():
        _check_output(spec.output_schema, f"{where}.output_schema")
    problems.refuse()
    agent = structured_agent(
        model,
        schema=spec.output_schema,
        where=f"{where}.output_schema",
        instructions=spec.instructions,
        settings=model_settings(spec),
        toolsets=toolsets,
        metered_by_context=nested,
        retries=2,
    )
    if made is not None:
        made.append(agent)
    return agent


def structured_agent(
    model: Model | None,
    *,
    schema: dict[str, JsonValue] | None,
    where: str,
    instructions: str,
    settings: ModelSettings,
    retries: int,
    name: str | None = None,
    toolsets: list[AbstractToolset[object]] | None = None,
    metered_by_context: bool = False,
) -> Agent[object, object]:
    """An agent whose output is checked against a JSON schema, or is text without one.

    Raises:
        InvalidInput: the schema at `where` can't be used.
    """
    agent: Agent[object, object] = Agent(
        model,
        instructions=instructions or None,
        output_type=_output_type(schema, where, name) if schema else str,
        model_settings=settings,
        toolsets=toolsets or [],
        capabilities=[Metered()] if metered_by_context else [],
        retries=retries,
    )
    if schema:
        checked = ObjectSchema(schema, where)

        def follows_the_schema(output: T) -> T:
            if mistake := checked.mistake(output) or _not_json(output):
                raise ModelRetry(f"The output doesn't follow the schema at {mistake}")
            return output

        agent.output_validator(follows_the_schema)
    return agent


def _check_output(schema: dict[str, JsonValue] | None, where: str) -> None:
    if schema is not None:
        ObjectSchema(schema, where)
        _output_type(schema, where, None)


def _output_type(schema: dict[str, JsonValue], where: str, name: str | None) -> type[dict[str, JsonValue]]:
    try:
        kind = StructuredDict(copy.deepcopy(schema), name=name)  # it writes the name into what it is given
        TypeAdapter[object](kind).json_schema()
    except UserError as error:
        raise InvalidInput(Problem(field=where, message=error.message)) from None
    except (KeyError, RecursionError):
        message = "refers to itself, or to a part that isn't under `$defs`, which can't be asked of a model"
        raise InvalidInput(Problem(field=where, message=message)) from None
    return kind


def _not_json(output: object) -> str | None:
    """A model may write `NaN`, which its parser takes and JSON does not have."""
    try:
        json.dumps(output, allow_nan=False)
    except ValueError:
        return "$: NaN and Infinity are no JSON numbers"
    return None
