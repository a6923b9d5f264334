"""Loop files: from YAML to a `LoopSpec`, with everything that is wrong reported at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ..core.errors import InvalidInput, Problem
from ..core.spec import LoopSpec
from ..core.stop import Budget, MaxIterations, MaxSeconds
from .file_checks import Facts, findings
from .plain_words import problems_of, shown
from .yaml_source import Document, dotted, read_yaml

if TYPE_CHECKING:
    from ..runner.library import Loop


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What a caller wants otherwise than the loop file says; `None` leaves it as it is."""

    goal: str | None = None
    budget: str | None = None
    """USD: takes the place of every budget in the stop condition, or is added to it by `|`."""
    max_iterations: int | None = None
    """Takes the place of every `max_iterations` in the stop condition, or is added to it by `|`."""
    model: str | None = None
    """The agent's model. The file's fallback models go; so do its `base_url` and `api_key_env` where the new model
    is of another provider."""
    attempts: int | None = None
    max_seconds: float | None = None
    """Takes the place of every `max_seconds` in the stop condition, or is added to it by `|`."""


@dataclass(frozen=True, kw_only=True)
class LoopFile:
    """A loop file that was read, and whose types are right."""

    path: Path
    spec: LoopSpec
    document: Document = field(repr=False)

    def located(self, error: InvalidInput) -> InvalidInput:
        """The same problems, with the lines of this file."""
        return InvalidInput(*(_with_line(problem, self.document) for problem in error.problems))


def read_loop_file(path: Path, *, environ: Mapping[str, str], overrides: Overrides | None = None) -> LoopFile:
    """Read a loop file.

    Args:
        path: the file.
        environ: the environment variables that the loop will run with.
        overrides: what the caller wants otherwise.

    Raises:
        InvalidInput: everything that is wrong with the file, in the order of its lines. Nothing was sent.
    """
    document = read_yaml(path)
    read = document.data
    if not isinstance(read, dict):
        message = f"the file must be a group of `key: value` lines, not {shown(read)}"
        raise InvalidInput(Problem(field="", message=message, line=1))
    data = _overridden(cast("dict[str, Any]", read), overrides or Overrides())
    document = Document(data, document.lines)
    spec = checked_spec(document, Facts(data=data, folder=path.parent, environ=environ))
    return LoopFile(path=path, spec=spec, document=document)


def checked_spec(document: Document, facts: Facts) -> LoopSpec:
    """The spec that a document's data describes.

    Raises:
        InvalidInput: everything that is wrong with it, in the order of its lines.
    """
    found = {dotted(place): message for place, message in findings(facts)}
    problems = [Problem(field=where, message=message) for where, message in found.items()]
    try:
        spec = _validate(facts.data)
    except ValidationError as error:
        own_stop = any(where.partition(".")[0] == "stop" for where in found)
        problems += [p for p in problems_of(error, document) if not (own_stop and p.field == "stop")]
        spec = None
    if problems or spec is None:
        located = [_with_line(problem, document) for problem in problems]
        raise InvalidInput(*sorted(located, key=lambda p: p.line or 0))
    return spec


def assembled(file: LoopFile) -> Loop:
    """The loop of a file, with all that its writer could reach.

    Raises:
        InvalidInput: everything that is wrong with what the file names, with its lines.
    """
    from .assemble import assemble

    try:
        return assemble(file.spec, folder=file.path.parent)
    except InvalidInput as error:
        raise file.located(error) from None


def override(spec: LoopSpec, overrides: Overrides) -> LoopSpec:
    """The spec with what the caller wants otherwise.

    Raises:
        InvalidInput: an override is none.
    """
    return _validate(_overridden(spec.model_dump(mode="json", exclude_unset=True), overrides))


def _validate(data: Mapping[str, Any]) -> LoopSpec:
    # As JSON and strict: `true` is no number, "12" is no number, and a list may be a pair.
    return LoopSpec.model_validate_json(json.dumps(data), strict=True)


def _with_line(problem: Problem, document: Document) -> Problem:
    top = problem.field.partition(".")[0]
    if problem.line is not None or (top and top not in {*LoopSpec.model_fields, *document.lines}):
        return problem  # known already, or about something else than the file, such as an option
    return Problem(field=problem.field, message=problem.message, line=document.line(problem.field))


# --- overrides ---


def _overridden(data: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    _check(overrides)
    changed = dict(data)
    if overrides.goal is not None:
        changed["goal"] = overrides.goal
    if overrides.attempts is not None:
        changed["attempts"] = overrides.attempts
    if overrides.model is not None:
        changed["agent"] = _with_model(changed.get("agent"), overrides.model)
    for name, value in _limits(overrides):
        if value is not None:
            changed["stop"] = _with_limit(changed.get("stop", {}), name, value)
    return changed


def _limits(overrides: Overrides) -> Sequence[tuple[str, object]]:
    return (
        ("budget_usd", overrides.budget),
        ("max_iterations", overrides.max_iterations),
        ("max_seconds", overrides.max_seconds),
    )


def _check(overrides: Overrides) -> None:
    problems: list[Problem] = []
    if overrides.goal is not None and not overrides.goal.strip():
        problems.append(Problem(field="--goal", message="is empty; say what the agent should achieve"))
    if overrides.model is not None and not overrides.model.strip():
        problems.append(Problem(field="--model", message="is empty; name a model such as openai:gpt-4o-mini"))
    if overrides.attempts is not None and not 1 <= overrides.attempts <= 64:
        problems.append(Problem(field="--attempts", message=f"must be 1 to 64, not {overrides.attempts}"))
    for option, limit, value in (
        ("--budget", Budget, overrides.budget),
        ("--max-iterations", MaxIterations, overrides.max_iterations),
        ("--max-seconds", MaxSeconds, overrides.max_seconds),
    ):
        try:
            _ = limit(cast(Any, value)) if value is not None else None
        except InvalidInput as error:
            problems.append(Problem(field=option, message=error.problems[0].message))
    if problems:
        raise InvalidInput(*problems)


def _with_model(agent: object, model: str) -> object:
    if agent is None:
        return {"model": model}
    if not isinstance(agent, dict):
        return agent
    changed = {**cast("dict[str, Any]", agent), "model": model}
    changed.pop("fallback_models", None)
    if _provider(cast("dict[str, Any]", agent).get("model")) != _provider(model):
        changed.pop("base_url", None)
        changed.pop("api_key_env", None)
    return changed


def _provider(model: object) -> str:
    return str(model).partition(":")[0]


def _with_limit(stop: object, name: str, value: object) -> object:
    """The stop condition with this limit in place of every one of its name, or beside the others."""
    if not isinstance(stop, dict):
        return stop
    replaced, found = _replaced(cast("dict[str, Any]", stop), name, value)
    return replaced if found else {**cast("dict[str, Any]", stop), name: value}


def _replaced(stop: Mapping[str, Any], name: str, value: object) -> tuple[dict[str, Any], bool]:
    changed, found = dict(stop), name in stop
    if found:
        changed[name] = value
    for key in ("any", "all"):
        items: list[object] = []
        for item in cast("list[object]", stop[key]) if isinstance(stop.get(key), list) else ():
            inner, hit = (
                _replaced(cast("dict[str, Any]", item), name, value) if isinstance(item, dict) else (item, False)
            )
            items.append(inner)
            found = found or hit
        if items:
            changed[key] = items
    return changed, found
