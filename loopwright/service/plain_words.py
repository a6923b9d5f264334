"""What pydantic found wrong in a loop file, in words that a person who doesn't know pydantic can act on."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..core.described import descriptions
from ..core.errors import Problem
from ..core.spec import LoopSpec, Spec
from .yaml_source import Document, Place, dotted


def problems_of(error: ValidationError, document: Document) -> Iterator[Problem]:
    """The problems that pydantic found in a document, with their lines."""
    for details in error.errors(include_url=False):
        place = _without_tags(details["loc"], document.data)
        if "scale" in place[-2:]:
            place = place[: place.index("scale") + 1]
            message = "must be two numbers, the lowest and the highest score, such as [0, 10]"
        else:
            message = _message(details, place, document.data)
        yield Problem(field=dotted(place), message=message, line=document.line(dotted(place)))


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """` (did you mean `x`?)` for a near miss, else nothing."""
    near = difflib.get_close_matches(wrong.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean `{near[0]}`?)" if near else ""


def names(values: Iterable[str], last: str = "or") -> str:
    """A list of names for a sentence: `a`, `b` or `c`."""
    quoted = [f"`{value}`" for value in values]
    return f" {last} ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else "".join(quoted)


def shown(value: object) -> str:
    """A value for a sentence: what it is in YAML's words, and what was written."""
    match value:
        case None:
            return "nothing"
        case bool():
            return f"the yes/no value `{str(value).lower()}`"
        case int() | float():
            return f"the number {_short(str(value))}"
        case str():
            return f"the text {_short(json.dumps(value, ensure_ascii=False))}"
        case list():
            return "a list"
        case _:
            return "a group of `key: value` lines"


def _short(text: str) -> str:
    return text if len(text) <= 50 else f"{text[:50]}…"


def _without_tags(loc: Sequence[int | str], data: object) -> Place:
    """A place in the file from one in pydantic's words, which names the kind of each union on the way."""
    place: list[str | int] = []
    fresh = False  # just arrived at this value: only then can the next step be its kind
    for step in loc:
        if fresh and isinstance(data, Mapping) and step == data.get("kind"):  # pyright: ignore[reportUnknownMemberType]
            fresh = False
            continue
        place.append(step)
        data, fresh = _inside(data, step), True
    return tuple(place)


def _inside(data: Any, step: str | int) -> Any:
    if isinstance(data, Mapping):
        return data.get(step)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(data, list) and isinstance(step, int) and step < len(data):  # pyright: ignore[reportUnknownArgumentType]
        return data[step]  # pyright: ignore[reportUnknownVariableType]
    return None


# --- the spec of a place, for the keys that it knows and what they mean ---


def _spec_at(place: Place, data: object) -> type[Spec] | None:
    """The spec that describes the group of lines at a place."""
    annotation, data = _annotation_at(place, data)
    return _pick(annotation, data)


def _annotation_at(place: Place, data: object) -> tuple[Any, object]:
    """What the loop file's model says may stand at a place, and what does."""
    annotation: Any = LoopSpec
    for step in place:
        spec = _pick(annotation, data)
        if spec is not None and step in spec.model_fields:
            annotation = _field(spec, str(step)).annotation
        else:
            annotation = get_args(annotation)[-1] if get_origin(annotation) in (list, dict) else None
        data = _inside(data, step)
    return annotation, data


def _field(spec: type[Spec], name: str) -> FieldInfo:
    if not spec.__pydantic_complete__:  # its annotations name classes that are defined after it
        spec.model_rebuild()
    return spec.model_fields[name]


def _pick(annotation: Any, data: object) -> type[Spec] | None:
    """The spec in an annotation; of a union the one of the data's `kind`."""
    if get_origin(annotation) in (list, dict):
        return None
    found = list(_specs_in(annotation))
    if len(found) == 1:
        return found[0]
    kind = _inside(data, "kind")
    return next((spec for spec in found if _kind(spec) == kind), None)


def _specs_in(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for part in get_args(annotation):
        yield from _specs_in(part)


def _kind(spec: type[Spec]) -> str | None:
    field = spec.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field else None


def _about(place: Place, data: object) -> str:
    """The first sentence of a field's description."""
    spec = _spec_at(place[:-1], data)
    name = str(place[-1])
    description = descriptions(spec).get(name, "") if spec else ""
    return " ".join(re.split(r"(?<=[.;:])\s", description)[0].split()).rstrip(".;:")


# --- messages ---


def _message(details: ErrorDetails, place: Place, data: object) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if say := _SPECIAL.get(kind):
        return say(details, place, data)
    if value is None:
        return "is empty; give it a value or remove the line"
    if kind in _LIMITS:
        limit, sentence = _LIMITS[kind]
        found = "" if isinstance(value, str | list) else f", not {_short(str(value))}"
        return sentence.format(_number(context[limit])) + found
    wanted = next((words for part, words in _WANTED if part in kind), None)
    if wanted is None:
        return details["msg"][:1].lower() + details["msg"][1:]
    return f"must be {wanted}, not {shown(value)}{_quotes(kind, value)}"


def _missing(details: ErrorDetails, place: Place, data: object) -> str:
    about = _EXAMPLES.get(str(place[-1])) or _about(place, data)
    return f"is missing; add it ({about})" if about else "is missing; add it"


_EXAMPLES: Mapping[str, str] = {
    "stop": "when to stop, e.g. `stop: {target_score: 0.9, max_iterations: 20, budget_usd: 0.50}`",
    "agent": "who does the work, e.g. `agent: {model: 'openai:gpt-4o-mini'}`",
    "input": "USD per million input tokens",
    "output": "USD per million output tokens",
    "evaluator": "with its `kind`, like the evaluator of a loop",
}


def _unknown_key(details: ErrorDetails, place: Place, data: object) -> str:
    spec = _spec_at(place[:-1], data)
    known = list(spec.model_fields) if spec else []
    hint = did_you_mean(str(place[-1]), known)
    there_are = f"; there are {names(known, 'and')}" if known else ""
    return f"is not a key here{hint or there_are}"


def _no_kind(details: ErrorDetails, place: Place, data: object) -> str:
    annotation, found = _annotation_at(place, data)
    options = [kind for spec in _specs_in(annotation) if (kind := _kind(spec))]
    if not isinstance(found, Mapping):
        return f"must be a group of `key: value` lines with a `kind`, not {shown(found)}"
    kind = _inside(found, "kind")
    if kind is None:
        return f"needs a `kind`, which says what it is: {names(options)}"
    return f"has no kind `{_short(str(kind))}`{did_you_mean(str(kind), options)}; there are {names(options, 'and')}"


def _pattern(details: ErrorDetails, place: Place, data: object) -> str:
    found = shown(details["input"])
    if place[-1] == "function":
        return f"must be written `module:function`, such as `evaluator:score`, not {found}"
    return f"must be 1 to 64 letters, digits, `_` and `-`, and not begin with a digit or `-`; it is {found}"


def _literal(details: ErrorDetails, place: Place, data: object) -> str:
    value, options = details["input"], re.findall(r"'([^']*)'", str(details.get("ctx", {})["expected"]))
    return f"must be {names(options)}, not {shown(value)}{did_you_mean(str(value), options)}"


def _own_words(details: ErrorDetails, place: Place, data: object) -> str:
    return str(details.get("ctx", {})["error"])


_SPECIAL: Mapping[str, Callable[[ErrorDetails, Place, object], str]] = {
    "missing": _missing,
    "extra_forbidden": _unknown_key,
    "union_tag_invalid": _no_kind,
    "union_tag_not_found": _no_kind,
    "string_pattern_mismatch": _pattern,
    "literal_error": _literal,
    "value_error": _own_words,
}
"""Kinds of errors that need more than one sentence for all."""

_LIMITS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "must be {} or more"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be {} or less"),
    "less_than": ("lt", "must be less than {}"),
    "too_short": ("min_length", "must have at least {} item"),
    "too_long": ("max_length", "must have at most {} items"),
    "string_too_short": ("min_length", "must not be empty: it needs at least {} character"),
    "string_too_long": ("max_length", "must have at most {} characters"),
}

_WANTED: Sequence[tuple[str, str]] = (
    ("string_", "text"),
    ("int_", "a whole number"),
    ("float_", "a number"),
    ("finite_number", "a finite number"),
    ("bool_", "true or false"),
    ("tuple_", "a list"),
    ("list_", "a list"),
    ("dict_", "a group of `key: value` lines"),
    ("model_", "a group of `key: value` lines"),
)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _quotes(kind: str, value: object) -> str:
    if kind.startswith("string_") and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind.startswith(("int_", "float_")) and isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+", value):
        return "; take the quotes away"
    if kind.startswith("list_") and isinstance(value, str):
        return f"; write [{value}] or one `- item` a line" if len(value) < 30 else "; write one `- item` a line"
    return ""
