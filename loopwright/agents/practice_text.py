"""What the practice model knows beside the code puzzle: two small tasks with words, and a rubric that can be counted.

Programs, not language models. A writer learns from nothing but the remarks in its prompt, one thing at a time, as one
would see a model do it. The judge counts what a rubric asks for where that can be counted, and judges no other rubric:
a score that nothing stands behind would be made up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_PAIR = re.compile(r"~{3,} candidate\n(.*?)\n~{3,}\s+The evaluator's remarks:\s+~{3,} remarks\n(.*?)\n~{3,}", re.S)
_GOAL = re.compile(r"~{3,} goal\n(.*?)\n~{3,}", re.S)
_CANDIDATE = re.compile(r"(~{3,}) candidate\n(.*)\n\1\s*\Z", re.S)
_WORD = re.compile(r"[\w'\u2019-]+")


def words_in(text: str) -> int:
    """How many words a text has."""
    return len(_WORD.findall(text))


def write(prompt: str) -> str | None:
    """The next text for a goal that one of the writers knows; `None` for any other goal."""
    goal = found[1] if (found := _GOAL.search(prompt)) else ""
    shown = _PAIR.findall(prompt)
    return next((writer(shown) for asked, writer in WRITERS if asked.search(goal)), None)


# --- a sentence of so many words ---

_COUNTED = re.compile(r"has (\d+) words?, and (\d+) are wanted")

SEA = [
    "wide",
    "deep",
    "old",
    "cold",
    "blue",
    "grey",
    "salty",
    "calm",
    "loud",
    "dark",
    "green",
    "silver",
    "restless",
    "patient",
    "bright",
    "heavy",
    "gentle",
    "wild",
    "endless",
    "slow",
    "quick",
    "warm",
    "strange",
    "familiar",
    "quiet",
    "stormy",
    "silent",
    "soft",
    "rough",
    "clear",
    "foamy",
    "misty",
    "open",
    "lonely",
    "free",
    "great",
    "blind",
    "tireless",
]

AT_ONCE = 2
"""Words that it dares to add or to leave out in one iteration."""


def _sentence(shown: Sequence[tuple[str, str]]) -> str:
    counts = [(int(found[1]), int(found[2])) for _, remark in shown if (found := _COUNTED.search(remark))]
    if not counts:
        return _sea(6)
    has, wanted = min(counts, key=lambda pair: abs(pair[0] - pair[1]))
    return _sea(has + max(-AT_ONCE, min(AT_ONCE, wanted - has)))


def _sea(many: int) -> str:
    """A sentence about the sea of so many words, from 4 to as many as it knows."""
    return f"The sea is {', '.join(SEA[: max(1, many - 3)])}."


# --- a tagline that a rubric judges ---

_UNMET = re.compile(r"^Not met: (.*)$", re.M)

OPENING = ("Fresh bread", "from the best dough in town", "for everybody who is still awake")
SAID = {"night": "all night"}
"""How it says a word that it is asked for; another word stands alone."""


def _tagline(shown: Sequence[tuple[str, str]]) -> str:
    """The best tagline so far, which is shown first, with the first thing mended that the judge found missing."""
    if not shown:
        return f"{', '.join(OPENING)}."
    text, remark = shown[0]
    parts = [part.strip() for part in text.rstrip(". \n").split(",")]
    unmet = rule_of(found[1]) if (found := _UNMET.search(remark)) else None
    return f"{', '.join(_mended(parts, unmet) if unmet else parts)}."


def _mended(parts: list[str], rule: Rule) -> list[str]:
    if rule.kind == "has":
        return [*parts, SAID.get(rule.word.lower(), rule.word)]
    if rule.kind == "without":
        return [part for part in parts if not rule.word_in(part)] or ["Bread"]
    if rule.kind == "least":
        return [*parts, "as good as it gets"]
    while words_in(" ".join(parts)) > rule.count and len(parts) > 1:
        parts = [part for part in parts if part is not max(parts[1:], key=words_in)]
    return parts


WRITERS: Sequence[tuple[re.Pattern[str], Callable[[Sequence[tuple[str, str]]], str]]] = (
    (re.compile(r"sea, of exactly \d+ words", re.I), _sentence),
    (re.compile(r"\btagline for a bakery\b", re.I), _tagline),
)
"""The goals that it knows, and how it works on them."""

KNOWN = (
    "the code puzzle ('a code of 5 letters from A to H'), 'a sentence about the sea, of exactly 12 words' and "
    "'a tagline for a bakery'"
)


# --- judging what can be counted ---

_RULE = re.compile(
    r"""^[-*\s]*(?:
      (?P<has>has\ the\ word)\ "(?P<word>[^"]{1,60})"
      | (?P<without>leaves\ out\ the\ word)\ "(?P<other>[^"]{1,60})"
      | (?P<most>at\ most)\ (?P<upper>\d{1,6})\ words
      | (?P<least>at\ least)\ (?P<lower>\d{1,6})\ words
    )\s*\((?P<points>\d{1,4})\ points?\)\.?\s*$""",
    re.IGNORECASE | re.VERBOSE,
)

FORMS = (
    'has the word "night" (4 points)', 'leaves out the word "dough" (1 point)', "at most 10 words (3 points)",
    "at least 3 words (1 point)",
)  # fmt: skip
"""The lines of a rubric that the practice judge can read."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A line of a rubric that can be counted."""

    kind: str
    text: str
    points: int
    word: str = ""
    count: int = 0

    def word_in(self, text: str) -> bool:
        """Whether a text has the word that the line is about."""
        return self.word.lower() in (each.lower() for each in _WORD.findall(text))

    def met(self, text: str) -> bool:
        """Whether a text does what the line asks for."""
        many = words_in(text)
        return {
            "has": self.word_in(text),
            "without": not self.word_in(text),
            "most": many <= self.count,
            "least": many >= self.count,
        }[self.kind]


def rule_of(line: str) -> Rule | None:
    """The rule that a line of a rubric states, if it is one of `FORMS`."""
    if (found := _RULE.match(line)) is None:
        return None
    kind = next(name for name in ("has", "without", "most", "least") if found[name])
    return Rule(
        kind=kind,
        text=line.strip().lstrip("-* ").rstrip("."),
        points=int(found["points"]),
        word=found["word"] or found["other"] or "",
        count=int(found["upper"] or found["lower"] or 0),
    )


def rules_of(rubric: str) -> tuple[list[Rule], list[str]]:
    """The rules of a rubric, and its lines that are none."""
    lines = [line for line in rubric.splitlines() if line.strip()]
    rules = [rule_of(line) for line in lines]
    return [rule for rule in rules if rule], [line.strip() for line, rule in zip(lines, rules, strict=True) if not rule]


def why_not_judged(rubric: str) -> str:
    """Why the practice judge can't judge by a rubric; empty where it can."""
    rules, others = rules_of(rubric)
    if not others and sum(rule.points for rule in rules):
        return ""
    stands = f"can't read {others[0][:80]!r}" if others else "finds no points in it"
    return (
        f"the practice judge is a program that counts, and {stands}; write each line like: {'; '.join(FORMS)}. "
        "For any other rubric name a real model"
    )


_ASKED = re.compile(r"\bRubric:\n(.*?)\n\nThe score is a number from (\S+) \(worst\) to (\S+) \(best\)", re.S)


def judge(instructions: str, question: str) -> dict[str, object] | None:
    """Points for the candidate in a question, and what is not met; `None` where it isn't asked to judge.

    Raises:
        ValueError: the rubric has a line that can't be counted.
    """
    asked, found = _ASKED.search(instructions), _CANDIDATE.search(question)
    if asked is None or found is None:
        return None
    if refusal := why_not_judged(asked[1]):
        raise ValueError(refusal)
    rules, _ = rules_of(asked[1])
    low, high = float(asked[2]), float(asked[3])
    unmet = [rule for rule in rules if not rule.met(found[2])]
    share = 1 - sum(rule.points for rule in unmet) / sum(rule.points for rule in rules)
    return {"detail": "\n".join(_remarks(unmet)), "score": low + (high - low) * share}


def _remarks(unmet: Sequence[Rule]) -> Iterable[str]:
    yield from (f"Not met: {rule.text}" for rule in unmet)
    if not unmet:
        yield "Every line of the rubric is met."
