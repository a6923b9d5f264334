"""The JSON schema of loop files, made from `LoopSpec` and mended so that editors complete and explain it well.

`python -m loopwright.service.loop_schema` writes `loopwright/schemas/loop.schema.json`; a test says when it is stale.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

ID = "urn:loopwright:loop-file:1"

USD: dict[str, Any] = {
    "description": "US dollars, as a number or as text such as `0.50`.",
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": r"^\$?\d+(\.\d+)?$"}],
}

_SEVERAL = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Stop"}}

STOP: dict[str, Any] = {
    "title": "Stop condition",
    "description": "When to stop. Several keys mean whichever comes first. At least one of `max_iterations`, "
    "`budget_usd` and `max_seconds` must surely fire.",
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "target_score": {
            "description": "Stop when the best score reaches this (or falls to it, where the loop minimizes).",
            "type": "number",
        },
        "max_iterations": {
            "description": "Stop after so many iterations of an attempt, failed ones included.",
            "type": "integer",
            "minimum": 1,
        },
        "budget_usd": {
            "description": "The hard cap in US dollars: checked before each paid request, never a cent over.",
            "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": r"^\$?\d+(\.\d+)?$"}],
        },
        "max_seconds": {
            "description": "Stop so many seconds after the run's start; what is in flight then is cancelled.",
            "type": "number",
            "exclusiveMinimum": 0,
        },
        "no_improvement": {
            "description": "Stop when the best score got no better over so many iterations.",
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "object",
                    "required": ["patience"],
                    "additionalProperties": False,
                    "properties": {
                        "patience": {"description": "How many iterations.", "type": "integer", "minimum": 1},
                        "min_gain": {
                            "description": "A smaller gain than this counts as none; 0 lets any gain count.",
                            "type": "number",
                            "minimum": 0,
                            "default": 0,
                        },
                    },
                },
            ],
        },
        "any": {"description": "Stop when any of these conditions holds.", **_SEVERAL},
        "all": {"description": "Stop when all of these conditions hold at once.", **_SEVERAL},
    },
}
"""`core.stop.CONDITIONS` as a schema; the spec holds it as a plain mapping, which tells an editor nothing."""

_TITLES = {
    "AgentSpec": "Agent",
    "AgentTool": "Tool: another agent",
    "CombinedEvaluator": "Evaluator: a weighted combination",
    "CommandEvaluator": "Evaluator: a command",
    "HistorySpec": "History",
    "HttpEvaluator": "Evaluator: an HTTP endpoint",
    "HttpTool": "Tool: an HTTP request",
    "JudgeEvaluator": "Evaluator: a model with a rubric",
    "McpTool": "Tools of an MCP server",
    "Price": "Price of a model",
    "PythonEvaluator": "Evaluator: a Python function",
    "PythonTool": "Tool: a Python function",
    "WeightedPart": "Part of a combination",
}


def loop_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a loop file."""
    from ..core.spec import LoopSpec

    raw = LoopSpec.model_json_schema()
    definitions = {name: _mended(part) for name, part in raw.pop("$defs").items() if name != "JsonValue"}
    for name, part in definitions.items():
        part["title"] = _TITLES.get(name, name)
    definitions["Stop"] = STOP
    schema = _mended(raw)
    schema["properties"]["stop"] = {"$ref": "#/$defs/Stop"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        **schema,
        "title": "Loopwright loop file",
        "$defs": dict(sorted(definitions.items())),
    }


def schema_text() -> str:
    """The schema as it is shipped in the package; quick to read, for nothing heavy is imported."""
    return (files("loopwright") / "schemas" / "loop.schema.json").read_text(encoding="utf-8")


def _mended(part: dict[str, Any]) -> dict[str, Any]:
    """A part of pydantic's schema without what says nothing: titles of fields, line breaks, nulls, free JSON."""
    mended = {key: _value(key, value) for key, value in part.items() if key != "discriminator"}
    if "properties" in mended:
        for field in mended["properties"].values():
            field.pop("title", None)
    options = [option for option in mended.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) < len(mended.get("anyOf", ())):
        # A key without a value means nothing: the editor may say so.
        mended.pop("default", None)
        mended["anyOf"] = options
    if len(options) == 1:
        del mended["anyOf"]
        return {**options[0], **mended}
    if {option.get("type") for option in options} == {"number", "string"}:  # amounts of money, the only such union
        return {**mended, "anyOf": USD["anyOf"], "description": mended.get("description", USD["description"])}
    return mended


def _value(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        if value == {"$ref": "#/$defs/JsonValue"}:
            return True
        group = cast("dict[str, Any]", value)
        if key in ("properties", "$defs"):
            return {name: _mended(inner) for name, inner in group.items()}
        return group if key == "default" else _mended(group)
    if isinstance(value, list) and key in ("anyOf", "oneOf", "prefixItems"):
        return [_mended(item) for item in cast("list[dict[str, Any]]", value)]
    return " ".join(cast(str, value).split()) if key == "description" else cast(Any, value)


def write_schema(folder: Path) -> Path:
    """Write the schema into a folder, fresh from the code."""
    path = folder / "loop.schema.json"
    path.write_text(json.dumps(loop_schema(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    write_schema(Path(__file__).parent.parent / "schemas")
