"""YAML as people write it: plain data, and the line of every field.

Scalars are read as YAML 1.2 does, like editors that check a file against the JSON schema: `no` and `2026-01-01` are
text, `1e-3` is a number. Nothing in a file is executed or expanded beyond a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from ..core.errors import InvalidInput, Problem
from ..files import refuse_special

MAX_BYTES = 1_000_000
"""A larger loop file is refused."""

MAX_VALUES = 50_000
"""A file that comes to more values than this, aliases written out, is refused."""

MAX_DEPTH = 60
"""A file that is nested deeper than this is refused."""

MAX_KEY = 200
"""A longer key is refused: the place of each value below it would repeat it."""

MAX_PLACES = 10_000_000
"""A file whose places come to more characters than this, written out, is refused."""

MAX_PROBLEMS = 50
"""After so many problems the rest of the file is not looked at."""

Place = tuple[str | int, ...]
"""Where a value stands: keys and 0-based list positions from the top."""


def dotted(place: Place) -> str:
    """A place as people and `Problem.field` write it: `agent.tools.0.url`."""
    return ".".join(str(step) for step in place)


@dataclass(frozen=True)
class Document:
    """The data of a YAML file and where it was written."""

    data: object
    lines: Mapping[str, int] = field(default_factory=dict[str, int])
    """1-based line by dotted place."""

    def line(self, where: str) -> int | None:
        """The line of a field, or of the nearest thing around it that the file has."""
        while where not in self.lines and where:
            where = where.rpartition(".")[0]
        return self.lines.get(where)


def read_yaml(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        InvalidInput: it can't be read, is no YAML, or holds what a loop file can't (all such things together).
    """
    text = _text(path)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise InvalidInput(_syntax(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _refused("holds a control character, which YAML forbids; remove it", line) from None
    except RecursionError:
        raise _refused(f"is nested deeper than {MAX_DEPTH} levels; a loop file never needs that") from None
    if node is None:
        raise _refused("is empty; `loopwright init` writes a file to start from")
    reader = _Reader()
    data = reader.read(node, ())
    if reader.problems:
        raise InvalidInput(*reader.problems)
    return Document(data, reader.lines)


def _refused(message: str, line: int | None = None) -> InvalidInput:
    return InvalidInput(Problem(field="", message=f"the file {message}", line=line))


def _text(path: Path) -> str:
    try:
        refuse_special(path)
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refused("does not exist; `loopwright init NAME` writes one to start from") from None
    except IsADirectoryError:
        raise _refused("is a folder; give the loop file inside it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise _refused(f"can't be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise _refused(f"is larger than {MAX_BYTES // 1_000_000} MB; a loop file holds settings, keep data elsewhere")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _refused("is UTF-16 text; save it as UTF-8")
    if b"\0" in raw:
        raise _refused("is binary, not text; a loop file is YAML")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _refused("is not UTF-8 text; save it as UTF-8", line) from None


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = str(error.problem or error.context or error)
    hint = next((hint for part, hint in _HINTS if part in what), "")
    return Problem(field="", message=f"not valid YAML: {what}{hint}", line=mark.line + 1 if mark else None)


_HINTS = (
    ("found character that cannot start any token", " (indent with spaces, not tabs; put text with @ or ` in quotes)"),
    ("found a tab character", "; indent with spaces, not tabs"),
    ("mapping values are not allowed", " (text with `: ` in it must stand in quotes)"),
    ("found unexpected end of stream", " (a quote is not closed)"),
    ("did not find expected", " (check the indentation and the quotes here and in the line above)"),
    ("could not find expected ':'", " (a key needs a `:` after it)"),
    ("but found another document", "; keep one loop in a file, without `---` between"),
    ("undefined alias", "; text that starts with * must stand in quotes"),
)

_TAG = "tag:yaml.org,2002:"


if TYPE_CHECKING:
    _Parser = yaml.SafeLoader
else:  # the parser in C where PyYAML was built with it: 20 times faster, and it checks the depth itself
    _Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Parser):
    """PyYAML's parser with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


_SCALARS: Mapping[str, tuple[str, list[str], Callable[[str], object]]] = {
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF"), lambda v: v.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789"), _integer),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
        lambda v: float(re.sub(r"\.(?=[iInN])", "", v)),
    ),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda _: None),
}


for _name, (_pattern, _first, _) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)  # pyright: ignore[reportUnknownMemberType]


class _Reader:
    """Turns YAML nodes into plain data and notes the line of each."""

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []
        self._values = 0
        self._characters = 0

    def read(self, node: yaml.Node, place: Place) -> object:
        """The data of a node."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise _refused(f"comes to more than {MAX_VALUES:,} values; use fewer aliases (`*name`)", _line(node))
        if len(place) > MAX_DEPTH:
            raise _refused(f"is nested deeper than {MAX_DEPTH} levels; a loop file never needs that", _line(node))
        self._note(place, node)
        kind = str(node.tag).removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self.read(item, (*place, i)) for i, item in enumerate(cast("list[yaml.Node]", node.value))]
        if isinstance(node, yaml.ScalarNode) and kind in ("str", "!"):
            return str(node.value)
        if isinstance(node, yaml.ScalarNode) and kind in _SCALARS:
            return self._scalar(node, kind, place)
        tag = _short(str(node.tag))
        self._problem(node, place, f"has the tag {tag}, which a loop file can't use; write plain YAML")
        return None

    def _note(self, place: Place, node: yaml.Node) -> None:
        """Remember where a value stands."""
        where = dotted(place)
        self._characters += len(where)
        if self._characters > MAX_PLACES:
            raise _refused("has too many values below long keys; use shorter ones", _line(node))
        self.lines.setdefault(where, _line(node))

    def _scalar(self, node: yaml.ScalarNode, kind: str, place: Place) -> object:
        try:
            return _SCALARS[kind][2](str(node.value))
        except ValueError:  # `!!int x`, or more digits than Python reads
            self._problem(node, place, f"{_short(str(node.value))!r} can't be read as a number")
            return None

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        data: dict[str, object] = {}
        written: dict[str, int] = {}
        for key_node, value_node in self._entries(node, place):
            key, line = str(key_node.value), _line(key_node)
            where = (*place, key)
            if key in written:
                message = f"is written twice (first in line {written[key]}); keep one of them"
                self._problem(key_node, where, message)
                continue
            written[key] = line
            self.lines[dotted(where)] = line
            data[key] = self.read(value_node, where)
        return data

    def _entries(self, node: yaml.MappingNode, place: Place) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            if not isinstance(key, yaml.ScalarNode):
                message = "has a key that is not plain text; put text that starts with { or [ in quotes"
                self._problem(key, place, message)
            elif len(key.value) > MAX_KEY:
                message = f"has the key {_short(key.value)!r}, which is longer than {MAX_KEY} characters"
                self._problem(key, place, message)
            elif key.value == "<<" and not key.style:
                message = "merging with `<<` is not part of YAML 1.2, which loop files are read as; write the keys out"
                self._problem(key, place, message)
            else:
                yield key, value

    def _problem(self, node: yaml.Node, place: Place, message: str) -> None:
        self.problems.append(Problem(field=dotted(place), message=message, line=_line(node)))
        if len(self.problems) >= MAX_PROBLEMS:
            raise InvalidInput(*self.problems)


def _line(node: yaml.Node) -> int:
    return cast(int, node.start_mark.line) + 1


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
