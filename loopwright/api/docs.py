"""The OpenAPI document: the schemas of loop files, the problems that every route may answer, and how to sign in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ..service.loop_schema import loop_schema
from .errors import MEDIA_TYPE, ProblemDetails

DESCRIPTION = """\
Runs agents in feedback loops on budgets that can't be exceeded.

Sign in with `Authorization: Bearer <token>`. Errors are problem details (RFC 9457). Lists are pages: pass `next_cursor`
as `cursor`. Requests that create or start something take an `Idempotency-Key`; changes take `If-Match` with the `ETag`
that was read. Amounts of money are US dollars, as text.
"""

Responses = dict[int | str, dict[str, Any]]

_WORDS: Mapping[int, str] = {
    400: "The request can't be read.",
    401: "Nobody is signed in.",
    403: "You may not do this.",
    404: "There is nothing with this id that you may see.",
    405: "This address does not take this method.",
    409: "This doesn't fit the state that things are in.",
    412: "It was changed since you read it.",
    413: "The body is too large.",
    414: "The address is too long.",
    415: "The body is not JSON.",
    421: "The request is addressed to another host.",
    422: "Something is wrong with the request; `errors` says what, field by field.",
    428: "`If-Match` is missing.",
    500: "Something went wrong in the server.",
    503: "The database is away; try again.",
}

_ALWAYS = (400, 401, 403, 405, 413, 414, 415, 421, 422, 500, 503)


def problems(*more: int) -> Responses:
    """The problems that a route may answer: those of every route, and more."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {status: {"description": _WORDS[status], "content": content} for status in sorted({*_ALWAYS, *more})}


PART = "x-part"
"""Stands for a reference to a part of the loop file's schema until the document is put together: pydantic would look
for it among its own."""

LOOP_SPEC: dict[str, Any] = {PART: "LoopSettings"}
AGENT_SPEC: dict[str, Any] = {PART: "AgentSpec"}
TOOL_SPEC: dict[str, Any] = {"oneOf": [{PART: "HttpTool"}, {PART: "McpTool"}]}

EXAMPLE_LOOP: dict[str, Any] = {
    "goal": "Write a tagline of at most 60 characters for a lighthouse museum.",
    "evaluator": {"kind": "judge", "model": "openai:gpt-4o-mini", "rubric": "Vivid, true, at most 60 characters."},
    "stop": {"target_score": 0.9, "max_iterations": 20, "budget_usd": "0.50"},
}
EXAMPLE_AGENT: dict[str, Any] = {"model": "openai:gpt-4o-mini", "instructions": "You write short and clear."}
EXAMPLE_TOOL: dict[str, Any] = {
    "kind": "http",
    "name": "search",
    "description": "Searches the catalogue by words.",
    "method": "GET",
    "url": "https://example.com/search",
    "headers": {"Authorization": "Bearer ${CATALOGUE_TOKEN}"},
    "parameters": {"type": "object", "properties": {"words": {"type": "string"}}, "required": ["words"]},
}

EXAMPLE_GUARDRAIL: dict[str, Any] = {"kind": "deny_pattern", "pattern": r"\b(?:\d[ -]?){13,16}\b", "scope": "both"}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of an app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=DESCRIPTION, routes=app.routes)
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(_loop_schemas())
        schemas["ProblemDetails"] = _moved(
            ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        )
        schemas.update(schemas["ProblemDetails"].pop("$defs", {}))
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        app.openapi_schema = cast("dict[str, Any]", _moved(made))
    return app.openapi_schema


def _loop_schemas() -> dict[str, Any]:
    """The parts of the loop file's schema, and a loop's settings: a loop file without its name and agent."""
    schema = copy.deepcopy(loop_schema())
    parts = cast("dict[str, Any]", schema.pop("$defs"))
    beside = {"name", "agent", "allow_hosts"}
    parts["LoopSettings"] = {
        "title": "Loop settings",
        "type": "object",
        "description": "A loop file without its name and agent.",
        "properties": {name: value for name, value in schema["properties"].items() if name not in beside},
        "required": [name for name in schema["required"] if name not in beside],
        "additionalProperties": False,
    }
    return {name: _moved(part) for name, part in parts.items()}


def _moved(part: Any) -> Any:
    """The same schema with its references pointing to the document's components."""
    if isinstance(part, dict):
        group = cast("dict[str, Any]", part)
        return {
            **{key: _moved(value) for key, value in group.items() if key not in ("$ref", PART)},
            **({"$ref": str(group["$ref"]).replace("#/$defs/", "#/components/schemas/")} if "$ref" in group else {}),
            **({"$ref": f"#/components/schemas/{group[PART]}"} if PART in group else {}),
        }
    return [_moved(item) for item in cast("list[Any]", part)] if isinstance(part, list) else part
