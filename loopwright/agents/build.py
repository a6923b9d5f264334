"""From an agent's spec to a pydantic-ai agent."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic_ai import Agent, ModelRetry, StructuredDict

from ..core.spec import AgentSpec
from ..egress import EgressClient
from .models import build_model, model_settings
from .schemas import ObjectSchema
from .tools import build_toolsets
from .wallet_model import Metered

T = TypeVar("T")


def build_agent(
    spec: AgentSpec, *, egress: EgressClient, folder: Path, where: str = "agent", nested: bool = False
) -> Agent[object, object]:
    """Make the agent that a spec describes.

    Args:
        spec: the agent.
        egress: carries the requests of its `http` tools.
        folder: the loop file's folder.
        where: its dotted path in the loop file, for messages.
        nested: whether another agent asks it as a tool; then it finds the wallet of that agent's turn by itself.

    Raises:
        InvalidInput: it can't work, and why. Nothing was sent.
    """

    def build_nested(inner: AgentSpec, place: str) -> Agent[object, object]:
        return build_agent(inner, egress=egress, folder=folder, where=place, nested=True)

    agent: Agent[object, object] = Agent(
        build_model(spec, spec.fallback_models, where=where),
        instructions=spec.instructions or None,
        output_type=StructuredDict(spec.output_schema) if spec.output_schema else str,
        model_settings=model_settings(spec),
        toolsets=build_toolsets(spec.tools, egress=egress, folder=folder, build_agent=build_nested, where=where),
        capabilities=[Metered()] if nested else [],
        retries=2,
    )
    if spec.output_schema:
        schema_check = ObjectSchema(spec.output_schema, f"{where}.output_schema")

        def follows_the_schema(output: T) -> T:
            if mistake := schema_check.mistake(output):
                raise ModelRetry(f"The output doesn't follow the schema at {mistake}")
            return output

        agent.output_validator(follows_the_schema)
    return agent
