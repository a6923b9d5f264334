"""What a loop file's types can't say: its stop condition, its files, its secrets.

The checks read the file's plain data, so that they also work on a file whose types are wrong elsewhere: all problems
come together. A new check is a generator and a line in `CHECKS`.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..agents.practice_text import why_not_judged
from ..core.errors import InvalidInput
from ..core.spec import ENV_REFERENCE
from ..core.stop import CONDITIONS, check_stop, parse_stop
from .plain_words import did_you_mean, names
from .yaml_source import Place

Group = Mapping[str, Any]
Finding = tuple[Place, str]
"""Where something is wrong, and what, and the way out."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A loop file's data, and the world that it will run in."""

    data: Group
    folder: Path
    environ: Mapping[str, str]
    missing: str = "the environment variable {name} is not set; set it {when}"
    """What to say of a name that stands for nothing."""

    def unset(self, name: str, when: str) -> str:
        """What to say of this one."""
        return self.missing.format(name=name, when=when)


def findings(facts: Facts) -> Iterator[Finding]:
    """All that the checks find."""
    for check in CHECKS:
        yield from check(facts)


# --- walking through data that may be of any shape ---


def _group(value: object) -> Group:
    return cast(Group, value) if isinstance(value, dict) else {}


def _items(value: object) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _agents(data: Group, place: Place = ("agent",)) -> Iterator[tuple[Place, Group]]:
    agent = _group(data.get("agent"))
    yield place, agent
    for number, tool in enumerate(_items(agent.get("tools"))):
        if _group(tool).get("kind") == "agent":
            yield from _agents(_group(tool), (*place, "tools", number, "agent"))


def _tools(data: Group) -> Iterator[tuple[Place, Group]]:
    for place, agent in _agents(data):
        for number, tool in enumerate(_items(agent.get("tools"))):
            yield (*place, "tools", number), _group(tool)


def _evaluators(data: Group) -> Iterator[tuple[Place, Group]]:
    for name in ("evaluator", "holdout"):
        yield from _parts(_group(data.get(name)), (name,))


def _parts(evaluator: Group, place: Place) -> Iterator[tuple[Place, Group]]:
    yield place, evaluator
    for number, part in enumerate(_items(evaluator.get("parts"))):
        yield from _parts(_group(_group(part).get("evaluator")), (*place, "parts", number, "evaluator"))


# --- secrets ---


def _environment(facts: Facts) -> Iterator[Finding]:
    for place, group in (*_agents(facts.data), *_evaluators(facts.data), *_tools(facts.data)):
        for key, what in (("api_key_env", "the API key"), ("signing_secret_env", "the signing secret")):
            name = group.get(key)
            if isinstance(name, str) and not facts.environ.get(name):
                yield (*place, key), facts.unset(name, f"to {what} before you run the loop")
        yield from _headers(facts, place, _group(group.get("headers")))
        for number, name in enumerate(_items(group.get("env"))):
            if isinstance(name, str) and name not in facts.environ:
                message = f"the environment variable {name}, which the command is to get, is not set; set it first"
                yield (*place, "env", number), message


def _headers(facts: Facts, place: Place, headers: Group) -> Iterator[Finding]:
    for header, value in headers.items():
        for name in ENV_REFERENCE.findall(value) if isinstance(value, str) else ():
            if not facts.environ.get(name):
                yield (*place, "headers", header), facts.unset(name, "before you run the loop")


# --- files and addresses ---

_INTERPRETERS = re.compile(r"^(python[\d.]*|pytest|bash|sh|zsh|node|deno|bun|ruby|perl|php|lua|Rscript)$")
_SCRIPT = re.compile(r"\.(py|sh|bash|js|mjs|cjs|ts|rb|pl|php|lua|R)$")


def _commands(facts: Facts) -> Iterator[Finding]:
    for key, groups in (("run", _evaluators(facts.data)), ("command", _tools(facts.data))):
        for place, group in groups:
            line = [part for part in _items(group.get(key)) if isinstance(part, str)]
            if line:
                yield from _command(facts, (*place, key), line)


def _command(facts: Facts, place: Place, line: Sequence[str]) -> Iterator[Finding]:
    program = line[0]
    if not program.strip():
        yield (*place, 0), "is empty; name a program"
        return
    if "/" in program:
        path = facts.folder / program
        if not path.is_file():
            yield (*place, 0), f"there is no program {program}; a path with / begins at the loop file's folder"
        elif shutil.which(str(path.resolve())) is None:
            yield (*place, 0), f"{program} may not be executed; allow it with `chmod +x {program}`"
    elif shutil.which(program, path=facts.environ.get("PATH")) is None:
        beside = (facts.folder / program).is_file()
        hint = f"write ./{program} for the file beside the loop file" if beside else "install it or correct its name"
        yield (*place, 0), f"there is no program {program} on the PATH; {hint}"
    script = _script_of(line)
    if script is not None and not (facts.folder / line[script]).exists():
        message = f"there is no file {line[script]}; a path begins at the loop file's folder"
        yield (*place, script), message


def _script_of(line: Sequence[str]) -> int | None:
    """Which word of a command line is a script that must be there already, or `None`."""
    if not _INTERPRETERS.match(Path(line[0]).name):
        return None
    for number, word in enumerate(line[1:], start=1):
        if word in ("-c", "-m", "-e"):
            return None
        if _SCRIPT.search(word) and not word.startswith("-"):
            return number
    return None


def _functions(facts: Facts) -> Iterator[Finding]:
    for place, group in (*_evaluators(facts.data), *_tools(facts.data)):
        function = group.get("function")
        if not isinstance(function, str) or not re.fullmatch(r"[\w.]+:[\w.]+", function):
            continue
        top = function.partition(":")[0].partition(".")[0]
        if not _has_module(top, facts.folder):
            beside = sorted(path.stem for path in facts.folder.glob("*.py"))
            message = f"there is no module {top}: neither {top}.py beside the loop file nor an installed package"
            yield (*place, "function"), message + did_you_mean(top, beside)


def _has_module(name: str, folder: Path) -> bool:
    if (folder / f"{name}.py").is_file() or (folder / name).is_dir() or name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _addresses(facts: Facts) -> Iterator[Finding]:
    for place, group in (*_agents(facts.data), *_evaluators(facts.data), *_tools(facts.data)):
        for key in ("url", "base_url"):
            url = group.get(key)
            if isinstance(url, str) and not re.match(r"https?://[^/\s]", url):
                yield (*place, key), f"must be an address that begins with http:// or https://, not {url!r:.80}"


# --- things that must fit together ---


def _tool_names(facts: Facts) -> Iterator[Finding]:
    for place, agent in _agents(facts.data):
        tools = [_group(tool).get("name") for tool in _items(agent.get("tools"))]
        seen = Counter[str]()
        for number, name in enumerate(tools):
            if not isinstance(name, str):
                continue
            seen[name] += 1
            where = (*place, "tools", number, "name")
            if name == "loop_done":
                yield where, "`loop_done` is the builtin that ends a run; give your tool another name"
            elif seen[name] == 2:
                yield where, f"two tools are called `{name}`; give each its own name"


def _mcp_servers(facts: Facts) -> Iterator[Finding]:
    for place, tool in _tools(facts.data):
        given = [key for key in ("url", "command") if tool.get(key)]
        if tool.get("kind") == "mcp" and len(given) != 1:
            yield place, "an MCP server has either a `url` (streamable HTTP) or a `command` (stdio); give one of them"


def _part_names(facts: Facts) -> Iterator[Finding]:
    for place, evaluator in _evaluators(facts.data):
        seen = Counter[str]()
        for number, part in enumerate(_items(evaluator.get("parts"))):
            name = _group(part).get("name")
            if isinstance(name, str):
                seen[name] += 1
                if seen[name] == 2:
                    yield (*place, "parts", number, "name"), f"two parts are called `{name}`; give each its own name"


def _scales(facts: Facts) -> Iterator[Finding]:
    for place, evaluator in _evaluators(facts.data):
        match evaluator.get("scale"):
            case [int() | float() as low, int() | float() as high] if not low < high:
                yield (*place, "scale"), f"must go from the lowest to the highest score, not from {low} to {high}"
            case _:
                pass


def _json_schemas(facts: Facts) -> Iterator[Finding]:
    schemas = [((*place, "output_schema"), agent.get("output_schema")) for place, agent in _agents(facts.data)]
    schemas += [((*place, "parameters"), tool.get("parameters")) for place, tool in _tools(facts.data)]
    for place, schema in schemas:
        if isinstance(schema, dict) and (message := _schema_problem(cast(Group, schema))):
            yield place, message


def _schema_problem(schema: Group) -> str | None:
    if schema.get("type") != "object":
        return "must be a JSON schema of an object: `type: object` with `properties`"
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = "/".join(str(step) for step in error.absolute_path)
        return f"is not a valid JSON schema{f' at {where}' if where else ''}: {error.message:.200}"
    return None


def _blank(facts: Facts) -> Iterator[Finding]:
    for key, what in (("goal", "say what the agent should achieve"), ("name", "say what you call the loop")):
        value = facts.data.get(key)
        if isinstance(value, str) and value and not value.strip():
            yield (key,), f"is blank; {what}"


# --- the stop condition ---


def _stop(facts: Facts) -> Iterator[Finding]:
    stop = _group(facts.data.get("stop"))
    unreadable = list(_conditions(stop, ("stop",)))
    yield from unreadable
    if unreadable or not stop:
        return
    condition = parse_stop(stop)
    has_evaluator = facts.data.get("evaluator") is not None
    for problem in check_stop(condition, has_evaluator=has_evaluator):
        name = problem.field.partition(".")[2]
        yield _find(stop, name, ("stop",)) or ("stop",), problem.message


def _conditions(stop: Group, place: Place) -> Iterator[Finding]:
    for key in stop:
        setting = cast(object, stop[key])
        where = (*place, key)
        if key not in CONDITIONS:
            yield where, f"is not a stop condition{did_you_mean(key, CONDITIONS)}; there are {names(CONDITIONS, 'and')}"
        elif key in ("any", "all") and isinstance(setting, list) and setting:
            for number, item in enumerate(cast("list[object]", setting)):
                yield from _inner((*where, number), item)
        else:
            try:
                parse_stop({key: stop[key]})
            except InvalidInput as error:
                for problem in error.problems:
                    yield (*place, *problem.field.split(".")), problem.message


def _inner(place: Place, item: object) -> Iterator[Finding]:
    if isinstance(item, dict) and item:
        yield from _conditions(cast(Group, item), place)
    else:
        yield place, f"must be one or more of {names(CONDITIONS)}, such as `max_iterations: 20`"


def _find(value: object, name: str, place: Place) -> Place | None:
    """Where a condition of this name stands first."""
    if isinstance(value, dict):
        if name in value:
            return (*place, name)
        steps: Iterator[tuple[str | int, object]] = iter(cast("dict[str, object]", value).items())
    else:
        steps = iter(enumerate(_items(value)))
    return next((found for step, inner in steps if (found := _find(inner, name, (*place, step)))), None)


def _practice_rubrics(facts: Facts) -> Iterator[Finding]:
    for place, evaluator in _evaluators(facts.data):
        rubric = evaluator.get("rubric")
        counts = evaluator.get("kind") == "judge" and evaluator.get("model") == "practice"
        if counts and isinstance(rubric, str) and rubric.strip() and (refusal := why_not_judged(rubric)):
            yield (*place, "rubric"), refusal


CHECKS: Sequence[Callable[[Facts], Iterator[Finding]]] = (
    _blank,
    _stop,
    _environment,
    _commands,
    _functions,
    _addresses,
    _tool_names,
    _mcp_servers,
    _part_names,
    _scales,
    _practice_rubrics,
    _json_schemas,
)
