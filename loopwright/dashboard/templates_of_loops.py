"""Loops to start from. Each works as it is: on a model whose key is stored, and without a key on the practice model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PRACTICE = "practice"


@dataclass(frozen=True, kw_only=True)
class Template:
    """A loop to start from: what its form is filled with."""

    key: str
    name: str
    about: str
    icon: str
    values: Mapping[str, str]
    """Fields of the form; `{here}` is the address of this server, `{model}` the model."""
    practice: Mapping[str, str] = field(default_factory=dict[str, str])
    """What is otherwise on the practice model, which knows few tasks."""
    takes_model: bool = True
    """Whether it runs on a real model where there is one."""

    def runs_on(self, model: str | None) -> str:
        """The model that it runs on as it is, given the one whose key is known."""
        return model if model and self.takes_model else PRACTICE

    def filled(self, here: str, model: str | None) -> dict[str, str]:
        """The form's fields, with the address of this server and the model that it runs on."""
        chosen = self.runs_on(model)
        values = {**self.values, **(self.practice if chosen == PRACTICE else {})}
        return {
            name: value.replace("{here}", here.rstrip("/")).replace("{model}", chosen) for name, value in values.items()
        }


TEMPLATES: Sequence[Template] = (
    Template(
        key="words",
        name="Word count",
        about="A sentence of exactly twelve words, counted by a small endpoint of this server. The simplest evaluator "
        "there is: a number, and a remark from which the agent can learn.",
        icon="list",
        values={
            "name": "Twelve words",
            "goal": "Write one sentence about the sea, of exactly 12 words.",
            "model": "{model}",
            "instructions": "You write short and clear.",
            "max_output_tokens": "200",
            "evaluator_kind": "http",
            "evaluator_url": "{here}/examples/words?want=12",
            "target_score": "1",
            "max_iterations": "8",
            "budget_usd": "0.02",
        },
        practice={"budget_usd": "0.50"},
    ),
    Template(
        key="rubric",
        name="Rubric-judged text",
        about="A tagline that a judge reads with a rubric: it says what is missing and gives points. For what no "
        "program can score. Agent and judge are paid from one budget.",
        icon="pencil",
        values={
            "name": "Bakery tagline",
            "goal": "Write a tagline for a bakery that is open all night.",
            "model": "{model}",
            "instructions": "You write short and clear.",
            "max_output_tokens": "200",
            "evaluator_kind": "judge",
            "judge_model": "{model}",
            "rubric": "- Says that it is open at night (4 points).\n- Warm: one wants to go there (3 points).\n"
            "- At most 10 words (2 points).\n- No pun on dough (1 point).",
            "scale_low": "0",
            "scale_high": "10",
            "target_score": "9",
            "max_iterations": "8",
            "no_improvement": "3",
            "budget_usd": "0.05",
        },
        practice={
            "rubric": '- Has the word "night" (4 points)\n- Has the word "warm" (3 points)\n'
            '- At most 10 words (2 points)\n- Leaves out the word "dough" (1 point)',
            "target_score": "10",
            "budget_usd": "0.50",
        },
    ),
    Template(
        key="http",
        name="HTTP evaluator",
        about="An endpoint scores each guess at a secret code and says what is right about it. Put the address of "
        "your own evaluator in its place.",
        icon="gauge",
        takes_model=False,
        values={
            "name": "Code puzzle",
            "goal": "Find the secret code of 5 letters from A to H. Letters may repeat.\n"
            "Answer with your guess alone, for example: AABCD",
            "model": "{model}",
            "instructions": "You break codes. Each guess must agree with every remark so far.",
            "max_output_tokens": "200",
            "evaluator_kind": "http",
            "evaluator_url": "{here}/examples/code",
            "target_score": "1",
            "max_iterations": "20",
            "budget_usd": "0.50",
        },
    ),
)

BY_KEY: Mapping[str, Template] = {template.key: template for template in TEMPLATES}
