"""Loop files: each kind of mistake is one row, with the line, the field and a phrase of what is said."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from textwrap import dedent

import pytest

from loopwright.core.errors import InvalidInput, Problem
from loopwright.core.spec import LoopSpec
from loopwright.service.loop_files import LoopFile, Overrides, assembled, override, read_loop_file
from loopwright.service.yaml_source import Document

GOOD = """\
name: sea
goal: Write a sentence
agent:
  model: practice
stop:
  max_iterations: 3
"""
HEAD = "name: sea\ngoal: Write a sentence\nstop: {max_iterations: 3}\n"
"""Three good lines: what a case adds begins in line 4."""
AGENT = HEAD + "agent: {model: practice}\n"
"""Four good lines."""
TOOLS = HEAD + "agent:\n  model: practice\n  tools:\n"
"""Six good lines."""

ENVIRON = {"PATH": "/bin:/usr/bin", "KEY": "x"}


def read(folder: Path, text: str | bytes, overrides: Overrides | None = None) -> LoopFile:
    path = folder / "loop.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_loop_file(path, environ=ENVIRON, overrides=overrides)


def problems(folder: Path, text: str | bytes, overrides: Overrides | None = None) -> list[Problem]:
    with pytest.raises(InvalidInput) as refused:
        read(folder, text, overrides)
    return list(refused.value.problems)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "score.py").write_text("def score(candidate): return 1\n")
    (tmp_path / "grade").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    return tmp_path


CASES = {
    # the file itself
    "empty": ("", None, "", "is empty"),
    "only a comment": ("# nothing\n", None, "", "is empty"),
    "binary": (b"\x7fELF\0\0\0", None, "", "is binary"),
    "not UTF-8": (b"name: a\ngoal: \xff\xfe\n", 2, "", "not UTF-8"),
    "UTF-16": ("name: sea".encode("utf-16"), None, "", "UTF-16"),
    "huge": (b"#" * 1_000_001, None, "", "larger than 1 MB"),
    "control character": ("name: a\ngoal: \x07\n", 2, "", "control character"),
    "a list": ("- a\n- b\n", 1, "", "not a list"),
    "just text": ("hello\n", 1, "", 'not the text "hello"'),
    "two documents": (GOOD + "---\n" + GOOD, 7, "", "one loop in a file"),
    # YAML
    "tab": ("name: a\n\tgoal: b\n", 2, "", "not tabs"),
    "open quote": ("name: 'a\n", 2, "", "not closed"),
    "colon in text": ("name: a: b\n", 1, "", "must stand in quotes"),
    "unknown alias": ("name: *b\n", 1, "", "undefined alias"),
    "duplicate key": (AGENT + "name: lake\n", 5, "name", "written twice (first in line 1)"),
    "python object": (AGENT + "x: !!python/object/apply:os.system [ls]\n", 5, "x", "can't use"),
    "own tag": (AGENT + "x: !secret y\n", 5, "x", "has the tag !secret"),
    "template": (AGENT + "direction: {{ x }}\n", 5, "direction", "in quotes"),
    "merge": (AGENT + "<<: {direction: minimize}\n", 5, "", "YAML 1.2"),
    "deep": ("a: " + "[" * 500 + "]" * 500, 1, "", "nested deeper"),
    "deeper": ("[" * 100_000, 1, "", "nesting depth"),
    "endless alias": ("a: &a [*a]\n", 1, "", "nested deeper"),
    "alias bomb": (
        "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        None,
        "",
        "fewer aliases",
    ),
    "digits without end": (AGENT + f"attempts: {'1' * 5000}\n", 5, "attempts", "can't be read as a number"),
    # types, in plain words
    "number for text": (AGENT.replace("sea", "7"), 1, "name", "must be text, not the number 7; put it in quotes"),
    "flag for text": (AGENT.replace("sea", "true"), 1, "name", "the yes/no value `true`; put it in quotes"),
    "nothing for text": (AGENT.replace("sea", ""), 1, "name", "is empty; give it a value"),
    "empty text": (AGENT.replace("sea", "''"), 1, "name", "must not be empty"),
    "blank goal": (AGENT.replace("Write a sentence", "'  '"), 2, "goal", "say what the agent should achieve"),
    "text for number": (AGENT + "attempts: many\n", 5, "attempts", 'whole number, not the text "many"'),
    "quoted number": (AGENT + "attempts: '3'\n", 5, "attempts", "take the quotes away"),
    "fraction": (AGENT + "attempts: 1.5\n", 5, "attempts", "must be a whole number, not the number 1.5"),
    "flag for number": (AGENT + "attempts: true\n", 5, "attempts", "the yes/no value `true`"),
    "too small": (AGENT + "attempts: 0\n", 5, "attempts", "must be 1 or more, not 0"),
    "too large": (AGENT + "attempts: 100\n", 5, "attempts", "must be 64 or less, not 100"),
    "text for list": (AGENT + "allow_hosts: a.b\n", 5, "allow_hosts", "must be a list"),
    "list for group": (AGENT + "history: [best]\n", 5, "history", "a group of `key: value` lines, not a list"),
    "text for group": (AGENT + "history: best\n", 5, "history", "a group of `key: value` lines"),
    "wrong choice": (AGENT + "direction: maximise\n", 5, "direction", "(did you mean `maximize`?)"),
    "bad money": (AGENT + "prices:\n  m: {input: cheap, output: 1}\n", 6, "prices.m.input", "write it like 0.50"),
    "missing price": (AGENT + "prices:\n  m: {input: 1}\n", 6, "prices.m.output", "USD per million output tokens"),
    "bad name": (
        TOOLS + "    - {kind: http, name: 9x, description: d, url: 'http://a'}\n",
        7,
        "agent.tools.0.name",
        "1 to 64",
    ),
    "bad function": (TOOLS + "    - {kind: python, function: score.py}\n", 7, "agent.tools.0.function", "`module:fun"),
    "scale of one": (
        AGENT + "evaluator: {kind: judge, model: m, rubric: r, scale: [1]}\n",
        5,
        "evaluator.scale",
        "must be two numbers",
    ),
    "scale backwards": (
        AGENT + "evaluator: {kind: judge, model: m, rubric: r, scale: [1, 0]}\n",
        5,
        "evaluator.scale",
        "from the lowest to the highest",
    ),
    # keys
    "missing stop": ("name: a\ngoal: b\nagent: {model: m}\n", 1, "stop", "is missing; add it (when to stop"),
    "missing model": (HEAD + "agent:\n  instructions: x\n", 4, "agent.model", "is missing; add it (A pydantic-ai"),
    "near miss": (AGENT + "atempts: 3\n", 5, "atempts", "not a key here (did you mean `attempts`?)"),
    "near miss inside": (HEAD + "agent: {model: m, instruction: x}\n", 4, "agent.instruction", "`instructions`?"),
    "unknown key": (AGENT + "zzz: 1\n", 5, "zzz", "there are `name`, `goal`"),
    "near miss in a union": (
        AGENT + "evaluator:\n  kind: command\n  command: [ls]\n  run: [ls]\n",
        7,
        "evaluator.command",
        "is not a key here",
    ),
    "no kind": (AGENT + "evaluator: {url: 'http://a'}\n", 5, "evaluator", "needs a `kind`, which says what it is"),
    "wrong kind": (AGENT + "evaluator:\n  kind: pyton\n", 5, "evaluator", "(did you mean `python`?)"),
    "text for a kind": (AGENT + "evaluator: http://a\n", 5, "evaluator", "a group of `key: value` lines, not the text"),
    "deep inside": (
        TOOLS + "    - kind: agent\n      name: a\n      description: d\n      agent:\n        modl: m\n",
        11,
        "agent.tools.0.agent.modl",
        "did you mean `model`",
    ),
    # the stop condition
    "no sure stop": (AGENT.replace("max_iterations: 3", "target_score: 1"), 3, "stop", "surely fires"),
    "unknown stop": (AGENT.replace("max_iter", "max_itr"), 3, "stop.max_itrations", "(did you mean `max_iterations`?)"),
    "zero iterations": (AGENT.replace("3}", "0}"), 3, "stop.max_iterations", "whole number of 1 or more"),
    "endless time": (AGENT.replace("max_iterations: 3", "max_seconds: .inf"), 3, "stop.max_seconds", "finite"),
    "negative budget": (AGENT.replace("max_iterations: 3", "budget_usd: -1"), 3, "stop.budget_usd", "zero or more"),
    "zero budget": (AGENT.replace("max_iterations: 3", "budget_usd: 0"), 3, "stop.budget_usd", "greater than 0"),
    "stop as a list": (AGENT.replace("{max_iterations: 3}", "[max_iterations]"), 3, "stop", "not a list"),
    "empty stop": (AGENT.replace("{max_iterations: 3}", "{}"), 3, "stop", "one or more of"),
    "empty any": (AGENT.replace("max_iterations: 3", "any: []"), 3, "stop.any", "list of stop conditions"),
    "stop in a list": (
        "name: a\ngoal: b\nagent: {model: m}\nstop:\n  any:\n    - max_iterations: 3\n    - max_second: 3\n",
        7,
        "stop.any.1.max_second",
        "`max_seconds`?",
    ),
    "a number in any": (
        AGENT.replace("max_iterations: 3", "any: [3]"),
        3,
        "stop.any.0",
        "such as `max_iterations: 20`",
    ),
    "patience": (
        AGENT.replace("max_iterations: 3", "no_improvement: {patience: 0}, max_iterations: 3"),
        3,
        "stop.no_improvement.patience",
        "1 or more",
    ),
    "target without evaluator": (
        AGENT.replace("max_iterations: 3", "max_iterations: 3, target_score: 1"),
        3,
        "stop.target_score",
        "the loop has no evaluator",
    ),
    "budget in all": (
        AGENT.replace("max_iterations: 3", "max_iterations: 3, all: [{budget_usd: 1}, {max_seconds: 3}]"),
        3,
        "stop.all",
        "hard cap",
    ),
    # secrets
    "secret in a header": (
        AGENT + "evaluator:\n  kind: http\n  url: http://a\n  headers:\n    X-Key: Bearer ${NOPE}\n",
        9,
        "evaluator.headers.X-Key",
        "variable NOPE is not set",
    ),
    "key of a model": (HEAD + "agent: {model: 'openai:x', api_key_env: NOPE}\n", 4, "agent.api_key_env", "NOPE"),
    "signing secret": (
        AGENT + "holdout: {kind: http, url: 'http://a', signing_secret_env: NOPE}\n",
        5,
        "holdout.signing_secret_env",
        "NOPE",
    ),
    "environment of a command": (
        AGENT + "evaluator: {kind: command, run: [ls], env: [KEY, NOPE]}\n",
        5,
        "evaluator.env.1",
        "NOPE",
    ),
    # files
    "no such program": (AGENT + "evaluator: {kind: command, run: [nosuch-program]}\n", 5, "evaluator.run.0", "PATH"),
    "program beside": (AGENT + "evaluator: {kind: command, run: [grade]}\n", 5, "evaluator.run.0", "write ./grade"),
    "no such path": (
        AGENT + "evaluator: {kind: command, run: [./nope]}\n",
        5,
        "evaluator.run.0",
        "there is no program",
    ),
    "not executable": (AGENT + "evaluator: {kind: command, run: [./grade]}\n", 5, "evaluator.run.0", "chmod +x"),
    "no such script": (AGENT + "evaluator: {kind: command, run: [sh, -x, no.sh]}\n", 5, "evaluator.run.2", "no file"),
    "no such module": (
        AGENT + "evaluator: {kind: python, function: 'scor:score'}\n",
        5,
        "evaluator.function",
        "did you mean `score`?",
    ),
    "server's program": (
        TOOLS + "    - {kind: mcp, name: a, command: [nosuch-program]}\n",
        7,
        "agent.tools.0.command.0",
        "PATH",
    ),
    "a long key": (AGENT + f'? "{"k" * 201}"\n: 1\n', 5, "", "longer than 200 characters"),
    "a complex key": (AGENT + "? [a, b]\n: 1\n", 5, "", "a key that is not plain text"),
    # what must fit together
    "two addresses": (
        TOOLS + "    - {kind: mcp, name: a, url: 'http://a', command: [ls]}\n",
        7,
        "agent.tools.0",
        "give one of them",
    ),
    "no http": (AGENT + "evaluator: {kind: http, url: 'ftp://a'}\n", 5, "evaluator.url", "http:// or https://"),
    "same tool twice": (
        TOOLS + "    - {kind: mcp, name: a, url: 'http://a'}\n    - {kind: mcp, name: a, url: 'http://b'}\n",
        8,
        "agent.tools.1.name",
        "two tools",
    ),
    "loop_done taken": (
        TOOLS + "    - {kind: mcp, name: loop_done, url: 'http://a'}\n",
        7,
        "agent.tools.0.name",
        "builtin",
    ),
    "same part twice": (
        AGENT
        + "evaluator:\n  kind: combined\n  parts:\n"
        + "    - {name: a, evaluator: {kind: command, run: [ls]}}\n" * 2,
        9,
        "evaluator.parts.1.name",
        "two parts",
    ),
    "schema of no object": (
        HEAD + "agent: {model: m, output_schema: {type: array}}\n",
        4,
        "agent.output_schema",
        "object",
    ),
    "broken schema": (
        HEAD + "agent: {model: m, output_schema: {type: object, properties: {a: {type: txt}}}}\n",
        4,
        "agent.output_schema",
        "not a valid JSON schema at properties/a/type",
    ),
}


@pytest.mark.parametrize(("text", "line", "field", "phrase"), CASES.values(), ids=CASES.keys())
def test_a_mistake_is_named_with_its_line_and_the_way_out(
    folder: Path, text: str | bytes, line: int | None, field: str, phrase: str
) -> None:
    found = problems(folder, text)
    hits = [p for p in found if p.field == field and phrase in p.message]
    assert hits, [str(p) for p in found]
    if line is not None:
        assert hits[0].line == line
    assert "pydantic" not in hits[0].message.replace("pydantic-ai model string", "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for path, phrase in ((tmp_path / "no.yaml", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(InvalidInput, match=phrase):
            read_loop_file(path, environ={})


def test_long_keys_around_many_values_are_given_up_early(folder: Path) -> None:
    keys = "".join(f"{' ' * depth}{'k' * 200}:\n" for depth in range(50))
    text = AGENT + keys + f"{' ' * 50}[{','.join('1' * 45_000)}]\n"
    tracemalloc.start()
    try:
        (problem,) = problems(folder, text)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
    assert "too many values below long keys" in problem.message


def test_everything_is_reported_at_once_in_the_order_of_the_lines(folder: Path) -> None:
    text = dedent("""\
        name: 5
        goal: ""
        agent:
          modl: x
          api_key_env: NOPE
          tools:
            - kind: htp
        evaluator:
          kind: command
          run: [./nope]
          timeout_seconds: -1
        stop:
          target_scor: 0.9
        atempts: 3
        """)
    found = problems(folder, text)
    assert [(p.line, p.field) for p in found] == [
        (1, "name"),
        (2, "goal"),
        (3, "agent.model"),
        (4, "agent.modl"),
        (5, "agent.api_key_env"),
        (7, "agent.tools.0"),
        (10, "evaluator.run.0"),
        (11, "evaluator.timeout_seconds"),
        (13, "stop.target_scor"),
        (14, "atempts"),
    ]


def test_scalars_are_those_of_yaml_1_2(folder: Path) -> None:
    text = "name: no\ngoal: 2026-01-01\nagent: {model: practice, settings: {temperature: 1e-1, seed: 0x10}}\n"
    spec = read(folder, text + "stop: {budget_usd: '0.50', max_seconds: 1e3}\n").spec
    assert (spec.name, spec.goal, spec.agent.settings) == ("no", "2026-01-01", {"temperature": 0.1, "seed": 16})
    assert spec.stop == {"budget_usd": "0.50", "max_seconds": 1000.0}


def test_windows_line_ends_and_a_byte_order_mark_are_fine(folder: Path) -> None:
    assert read(folder, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()).spec.name == "sea"


def test_aliases_are_fine_in_measure(folder: Path) -> None:
    text = (
        HEAD
        + "agent: {model: practice, instructions: &text hello}\nevaluator: {kind: judge, model: m, rubric: *text}\n"
    )
    evaluator = read(folder, text).spec.evaluator
    assert evaluator
    assert evaluator.kind == "judge"
    assert evaluator.rubric == "hello"


@pytest.mark.parametrize("run", [["sh", "run.sh"], ["./run.sh"], ["sh", "-c", "exit 0"], ["ls"]])
def test_commands_that_are_there(folder: Path, run: list[str]) -> None:
    assert read(folder, AGENT + f"evaluator: {{kind: command, run: {run}}}\n").spec.evaluator


def test_a_secret_that_is_set_is_fine(folder: Path) -> None:
    text = AGENT + "evaluator: {kind: http, url: 'http://a', headers: {X: 'Bearer ${KEY}'}}\n"
    assert read(folder, text).spec.evaluator


def test_problems_of_others_get_the_lines_of_the_file(folder: Path) -> None:
    file = read(folder, AGENT + "evaluator:\n  kind: command\n  run: [ls]\n")
    others = InvalidInput(
        Problem(field="evaluator.run.0", message="m"),
        Problem(field="evaluator.score_from.x", message="m"),
        Problem(field="--goal", message="m"),
        Problem(field="stop", message="m", line=99),
    )
    assert [p.line for p in file.located(others).problems] == [7, 5, None, 99]


def test_a_document_without_lines_has_none() -> None:
    assert Document({}).line("a.b") is None


def test_opening_a_loop_locates_what_only_building_it_can_find(folder: Path) -> None:
    path = folder / "loop.yaml"
    path.write_text(AGENT + "evaluator:\n  kind: python\n  function: score:nope\n")
    with pytest.raises(InvalidInput) as refused:
        assembled(read_loop_file(path, environ=ENVIRON))
    (problem,) = refused.value.problems
    assert (problem.line, problem.field) == (7, "evaluator.function")


# --- overrides ---


def spec(stop: dict[str, object], **agent: object) -> LoopSpec:
    return LoopSpec.model_validate({"name": "n", "goal": "g", "agent": {"model": "a:m", **agent}, "stop": stop})


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ({"max_iterations": 3}, {"max_iterations": 3, "budget_usd": "2"}),
        ({"budget_usd": "1"}, {"budget_usd": "2"}),
        ({"any": [{"budget_usd": "1"}, {"max_iterations": 3}]}, {"any": [{"budget_usd": "2"}, {"max_iterations": 3}]}),
        ({"any": [{"budget_usd": "1"}], "budget_usd": 5}, {"any": [{"budget_usd": "2"}], "budget_usd": "2"}),
        ({"any": [{"all": [{"budget_usd": "1"}]}]}, {"any": [{"all": [{"budget_usd": "2"}]}]}),
    ],
)
def test_a_budget_takes_the_place_of_every_budget_or_is_added(
    stop: dict[str, object], expected: dict[str, object]
) -> None:
    assert override(spec(stop), Overrides(budget="2")).stop == expected


def test_overrides_leave_the_rest_alone() -> None:
    before = spec({"max_iterations": 3}, base_url="http://x", fallback_models=["a:n"])
    after = override(before, Overrides(goal="h", max_iterations=7, attempts=2))
    assert (after.goal, after.stop, after.attempts) == ("h", {"max_iterations": 7}, 2)
    assert after.agent == before.agent
    assert override(before, Overrides()) == before


def test_another_model_brings_its_own_connection() -> None:
    before = spec({"max_iterations": 3}, base_url="http://x", api_key_env="K", fallback_models=["a:n"])
    same = override(before, Overrides(model="a:o")).agent
    other = override(before, Overrides(model="b:o")).agent
    assert (same.model, same.base_url, same.api_key_env, same.fallback_models) == ("a:o", "http://x", "K", [])
    assert (other.model, other.base_url, other.api_key_env, other.fallback_models) == ("b:o", None, None, [])


def test_overrides_count_before_the_file_is_judged(folder: Path) -> None:
    text = "name: n\nagent: {model: 'openai:x', api_key_env: NOPE}\nstop: {target_score: 1}\n"
    overrides = Overrides(goal="g", model="practice", max_iterations=2)
    (problem,) = problems(folder, text, overrides)  # the key isn't needed any more, and the loop surely stops
    assert problem.field == "stop.target_score"


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (Overrides(goal=" "), "--goal"),
        (Overrides(budget="lots"), "--budget"),
        (Overrides(budget="0"), "--budget"),
        (Overrides(budget="nan"), "--budget"),
        (Overrides(max_iterations=0), "--max-iterations"),
        (Overrides(attempts=65), "--attempts"),
        (Overrides(model=""), "--model"),
    ],
)
def test_an_override_that_is_none_is_refused(folder: Path, overrides: Overrides, field: str) -> None:
    (problem,) = problems(folder, GOOD, overrides)
    assert problem.field == field
