"""Writes docs/loop-file.md, every key of a loop file, from the code's JSON schema; `--check` says if it is stale."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loopwright.service.loop_schema import loop_schema

PAGE = Path(__file__).with_name("loop-file.md")
HEAD = """\
<!-- Made by `make generated` from loopwright/core/spec.py: change it there. -->

# Every key of a loop file

How to write one: [write-a-loop.md](write-a-loop.md). The same for editors, as a JSON schema: `loopwright schema`.
Keys in **bold** are needed. Unknown keys are refused.
"""
ORDER = (
    "AgentSpec",
    "HttpTool",
    "McpTool",
    "PythonTool",
    "AgentTool",
    "HttpEvaluator",
    "JudgeEvaluator",
    "CommandEvaluator",
    "PythonEvaluator",
    "CombinedEvaluator",
    "WeightedPart",
    "Stop",
    "HistorySpec",
    "Price",
)
PLAIN = {
    ("HttpEvaluator", "timeout_seconds"): "From the call to the last byte of the answer; after this the call failed.",
    ("PythonEvaluator", "timeout_seconds"): "After this the evaluation has failed.",
    ("HttpTool", "timeout_seconds"): "After this the call has failed, and the model is told so.",
    ("HttpTool", "method"): "The HTTP method.",
    ("AgentTool", "agent"): "The other agent, written like the first one.",
    ("CombinedEvaluator", "parts"): "The evaluators and their weights; all are asked at once.",
    ("WeightedPart", "name"): "What it is called in remarks and in the journal.",
    ("WeightedPart", "weight"): "Its share in the score, relative to the other weights.",
    ("WeightedPart", "evaluator"): "Any evaluator.",
    ("Price", "input"): "Tokens sent.",
    ("Price", "output"): "Tokens produced, reasoning included.",
}
"""What the code leaves to the key's name, or to the group it stands in."""


def page() -> str:
    """The whole page."""
    schema = loop_schema()
    definitions: dict[str, Any] = schema["$defs"]
    if missing := sorted(definitions.keys() - set(ORDER)):
        raise SystemExit(f"docs/make_reference.py does not place {', '.join(missing)}")
    sections = [("The file", schema, "LoopSpec"), *((definitions[n]["title"], definitions[n], n) for n in ORDER)]
    return HEAD + "".join(_section(title, part, name, definitions) for title, part, name in sections)


def _section(title: str, part: dict[str, Any], name: str, definitions: dict[str, Any]) -> str:
    rows = "\n".join(_rows(part, name, definitions))
    return f"\n## {title}\n\n{part['description']}\n\n| key | value | default | means |\n|---|---|---|---|\n{rows}\n"


def _rows(part: dict[str, Any], owner: str, definitions: dict[str, Any]) -> Iterator[str]:
    needed = part.get("required", ())
    for key, field in part["properties"].items():
        name = f"**`{key}`**" if key in needed else f"`{key}`"
        meaning = PLAIN.get((owner, key)) or field.get("description") or _of_reference(field, definitions)
        if meaning is None and "const" in field:
            meaning = "Which kind it is."
        if meaning is None:
            raise SystemExit(f"{owner}.{key} has no description: write a string under it in loopwright/core/spec.py")
        cells = (name, _value(field, definitions), _default(field), meaning.replace("|", r"\|"))
        yield f"| {' | '.join(cells)} |"


def _of_reference(field: dict[str, Any], definitions: dict[str, Any]) -> str | None:
    reference = field.get("$ref", "").rpartition("/")[2]
    return definitions[reference]["description"] if reference else None


def _value(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """What may be written there, in a few words."""
    if "const" in field or "enum" in field:
        return " or ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "$ref" in field:
        return _link(field["$ref"], definitions)
    if "anyOf" in field:
        return "USD" if field["anyOf"][0]["type"] == "number" else "a number of iterations, or `{patience, min_gain}`"
    describe = {"array": _list, "object": _group, "integer": _number, "number": _number}.get(field.get("type", "any"))
    if describe:
        return describe(field, definitions)
    return "an evaluator" if "oneOf" in field else "text"


def _list(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    match field.get("items"):
        case {"oneOf": _}:
            return "a list of tools"
        case {"$ref": reference}:
            return f"a list of {_link(reference, definitions)}"
        case None:
            return "two numbers"
        case _:
            return "a list of texts"


def _group(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    match field.get("additionalProperties"):
        case {"$ref": reference}:
            return f"a group of {_link(reference, definitions)}"
        case {"type": "string"}:
            return "a group of texts"
        case _:
            return "a group"


def _number(field: dict[str, Any], _: dict[str, Any]) -> str:
    what = "a whole number" if field["type"] == "integer" else "a number"
    low, above, high = field.get("minimum"), field.get("exclusiveMinimum"), field.get("maximum")
    if high is not None:
        return f"{what}, {low} to {high:,}" if above is None else f"{what} above {above}, up to {high:,}"
    if low is not None:
        return f"{what}, {low:,} or more"
    return what if above is None else f"{what} above {above}"


def _link(reference: str, definitions: dict[str, Any]) -> str:
    title = definitions[reference.rpartition("/")[2]]["title"]
    anchor = "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")
    return f"[{title.lower()}](#{anchor})"


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default in (None, "", [], {}) or "$ref" in field:
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page()
        sys.exit("docs/loop-file.md is stale: run `make generated`" if stale else 0)
    PAGE.write_text(page(), encoding="utf-8")
