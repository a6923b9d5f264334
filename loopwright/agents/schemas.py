"""JSON schemas that people write: for tool arguments and for candidates."""

from __future__ import annotations

from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema import exceptions as jsonschema_exceptions
from pydantic import JsonValue

from ..core.errors import InvalidInput, Problem


class ObjectSchema:
    """A checked JSON schema (draft 2020-12) of an object.

    Args:
        schema: the schema as written.
        field: its place in the loop file, for messages.

    Raises:
        InvalidInput: it isn't a JSON schema of an object.
    """

    def __init__(self, schema: dict[str, JsonValue], field: str) -> None:
        if schema.get("type") != "object":
            raise InvalidInput(Problem(field=field, message="must be a JSON schema with `type: object`"))
        try:
            Draft202012Validator.check_schema(schema)
        except jsonschema_exceptions.SchemaError as error:
            raise InvalidInput(Problem(field=field, message=f"is not a JSON schema: {error.message}")) from None
        # jsonschema's own types are partly unknown to type checkers; what is used of them is typed here.
        self._validator = cast(Any, Draft202012Validator(schema))

    def mistake(self, value: object) -> str | None:
        """What is most wrong with a value, and where, or `None` if it follows the schema."""
        errors = self._validator.iter_errors(value)
        found = cast(
            "jsonschema_exceptions.ValidationError | None", cast(Any, jsonschema_exceptions).best_match(errors)
        )
        return f"{found.json_path}: {found.message}" if found else None
