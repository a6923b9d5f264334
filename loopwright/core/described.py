"""Models whose fields are described by the text below each, in the JSON schema.

Pydantic's own `use_attribute_docstrings` reads the sources of every class when it is made, which a starting server
would wait for. Here they are read when somebody asks for a schema.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Described(BaseModel):
    """Base of models whose fields' texts are in their JSON schema."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> JsonSchemaValue:
        """The schema, with the descriptions of its fields."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in descriptions(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return schema


@cache
def descriptions(model: type[BaseModel]) -> Mapping[str, str]:
    """The texts below the fields of a model, and of those that it is made of."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            found |= _texts(each.__module__).get(each.__name__, {})
    return found


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """The texts of all classes of a module, by class and field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: dict(_below(each)) for each in tree.body if isinstance(each, ast.ClassDef)}


def _below(of: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(of.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(text.value.value)
