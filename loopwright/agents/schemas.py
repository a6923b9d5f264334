"""JSON schemas that people write: for tool arguments and for candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema import exceptions as jsonschema_exceptions
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from ..core.errors import InvalidInput, Problem

_NOTHING_ELSE = cast(Any, Registry)()
"""An empty registry: it keeps jsonschema from fetching schemas by their address."""

MOST_SHOWN = 500
"""How many characters of a mistake are shown: it may quote the whole value."""


class ObjectSchema:
    """A checked JSON schema (draft 2020-12) of an object. Nothing that it refers to is ever fetched.

    Args:
        schema: the schema as written.
        field: its place in the loop file, for messages.

    Raises:
        InvalidInput: it isn't a JSON schema of an object, or refers to something outside itself.
    """

    def __init__(self, schema: Mapping[str, JsonValue], field: str) -> None:
        if schema.get("type") != "object":
            raise InvalidInput(Problem(field=field, message="must be a JSON schema with `type: object`"))
        try:
            Draft202012Validator.check_schema(schema)
        except jsonschema_exceptions.SchemaError as error:
            where = "/".join(map(str, error.absolute_path))
            message = f"is not a JSON schema{f' at {where}' if where else ''}: {error.message:.{MOST_SHOWN}}"
            raise InvalidInput(Problem(field=field, message=message)) from None
        if unknown := sorted(set(_unresolvable(schema))):
            message = f"refers to {', '.join(unknown)}, which the schema itself does not have; put it under `$defs`"
            raise InvalidInput(Problem(field=field, message=message))
        # jsonschema's own types are partly unknown to type checkers; what is used of them is typed here.
        self._validator = cast(Any, Draft202012Validator)(schema, registry=_NOTHING_ELSE)

    def mistake(self, value: object) -> str | None:
        """What is most wrong with a value, and where, or `None` if it follows the schema."""
        errors = self._validator.iter_errors(value)
        try:
            best = cast(Any, jsonschema_exceptions).best_match(errors)
        except RecursionError:
            return "$: it is nested too deeply, or the schema refers to itself in a circle"
        found = cast("jsonschema_exceptions.ValidationError | None", best)
        return f"{found.json_path}: {found.message}"[:MOST_SHOWN] if found else None


def _unresolvable(schema: Mapping[str, JsonValue]) -> Iterator[str]:
    resolver = _NOTHING_ELSE.resolver_with_root(DRAFT202012.create_resource(cast(Any, schema)))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, ValueError):
            yield reference


def _references(part: JsonValue | Mapping[str, JsonValue]) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif key not in ("const", "enum", "default", "examples"):
                yield from _references(value)
    elif isinstance(part, Sequence) and not isinstance(part, str):
        for item in part:
            yield from _references(item)
