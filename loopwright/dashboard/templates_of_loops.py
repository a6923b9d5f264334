"""Loops to start from. Each works as it is; the first one needs no key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Template:
    """A loop to start from: what its form is filled with."""

    key: str
    name: str
    about: str
    icon: str
    needs_key: bool
    """Whether it needs a language model; the others run on the practice model."""
    values: Mapping[str, str]
    """Fields of the form; `{here}` is the address of this server."""

    def filled(self, here: str, model: str | None) -> dict[str, str]:
        """The form's fields, with the address of this server and a model that has a key."""
        values = {name: value.replace("{here}", here.rstrip("/")) for name, value in self.values.items()}
        if self.needs_key:
            values["model"] = model or "openai:gpt-4o-mini"
            if "judge_model" in values:
                values["judge_model"] = model or "openai:gpt-4o-mini"
        return values


TEMPLATES: Sequence[Template] = (
    Template(
        key="http",
        name="HTTP evaluator",
        about="An endpoint scores each guess at a secret code and says what is right about it. Runs without a key, on "
        "the built-in practice model. Put your own address in place of the endpoint's.",
        icon="gauge",
        needs_key=False,
        values={
            "name": "Code puzzle",
            "goal": "Find the secret code of 5 letters from A to H. Letters may repeat.\n"
            "Answer with your guess alone, for example: AABCD",
            "model": "practice",
            "instructions": "You break codes. Each guess must agree with every remark so far.",
            "max_output_tokens": "200",
            "evaluator_kind": "http",
            "evaluator_url": "{here}/examples/code",
            "target_score": "1",
            "max_iterations": "20",
            "budget_usd": "0.50",
        },
    ),
    Template(
        key="words",
        name="Word count",
        about="A sentence of exactly twelve words, counted by a small endpoint of this server. The simplest evaluator "
        "there is: a number, and a remark from which the agent can learn.",
        icon="list",
        needs_key=True,
        values={
            "name": "Twelve words",
            "goal": "Write one sentence about the sea, of exactly 12 words.",
            "instructions": "You write short and clear.",
            "max_output_tokens": "200",
            "evaluator_kind": "http",
            "evaluator_url": "{here}/examples/words?want=12",
            "target_score": "1",
            "max_iterations": "8",
            "budget_usd": "0.02",
        },
    ),
    Template(
        key="rubric",
        name="Rubric-judged text",
        about="Where no program can tell good from bad: a model reads each text and a rubric, says what is missing, "
        "and gives points. Agent and judge are paid from one budget.",
        icon="pencil",
        needs_key=True,
        values={
            "name": "Why the sky is blue",
            "goal": "Explain in at most 120 words to a curious twelve-year-old why the sky is blue and sunsets "
            "are red.",
            "instructions": "",
            "max_output_tokens": "400",
            "evaluator_kind": "judge",
            "judge_model": "",
            "rubric": "- Correct (4 points): air scatters blue light more than red; at sunset the light has a longer "
            "way through the air.\n- Understandable (3 points): a twelve-year-old knows every word.\n"
            "- Alive (2 points): a picture or a comparison that helps.\n- Short (1 point): at most 120 words.",
            "scale_low": "0",
            "scale_high": "10",
            "target_score": "9.5",
            "max_iterations": "6",
            "no_improvement": "3",
            "budget_usd": "0.05",
        },
    ),
)

BY_KEY: Mapping[str, Template] = {template.key: template for template in TEMPLATES}
