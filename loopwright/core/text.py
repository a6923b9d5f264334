"""Text from models and evaluators, made fit to be stored anywhere."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, JsonValue

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace what no database and no UTF-8 file can hold, NUL and lone surrogates, by U+FFFD; keep all the rest."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_json(value: JsonValue) -> JsonValue:
    """`clean` for every text in a JSON value."""
    match value:
        case str():
            return clean(value)
        case list():
            return [clean_json(item) for item in value]
        case dict():
            return {clean(key): clean_json(item) for key, item in value.items()}
        case _:
            return value


def _clean_if_text(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_clean_if_text)]
"""A pydantic field for text from outside."""
