"""What the benchmarks share: a model without latency, an evaluator in another process, a loop around both."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.usage import RequestUsage

from loopwright.core.spec import HistorySpec
from loopwright.core.stop import Budget, MaxIterations
from loopwright.egress import EgressClient, EgressPolicy, host_and_port
from loopwright.feedback.http import EndpointEvaluator
from loopwright.runner.library import Loop

if TYPE_CHECKING:
    from pydantic_ai.settings import ModelSettings

ROOT = Path(__file__).parent.parent
GOAL = "Write a short, exact and friendly description of the tide tables for the harbour's web page. " * 4
INSTRUCTIONS = "You write for people who are in a hurry."
SENTENCE = "The water is high at noon and low in the evening. "


class StubModel(Model):
    """Answers at once, each time with another candidate, under the name and at the prices of a real model.

    Args:
        candidate_bytes: the size of each candidate.
        on_request: gets the messages of each request.
    """

    def __init__(
        self, *, candidate_bytes: int = 1_000, on_request: Callable[[Sequence[ModelMessage]], None] | None = None
    ) -> None:
        super().__init__()
        self._filling = (SENTENCE * (candidate_bytes // len(SENTENCE) + 1))[:candidate_bytes]
        self._on_request = on_request
        self._asked = 0

    @property
    def model_name(self) -> str:
        return "gpt-4o-mini"

    @property
    def system(self) -> str:
        return "openai"

    @property
    def base_url(self) -> str:
        return "https://api.openai.com/v1"

    @property
    def provider(self) -> None:
        return

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        self._asked += 1
        if self._on_request:
            self._on_request(messages)
        return ModelResponse(
            parts=[TextPart(f"{self._asked}. {self._filling}")],
            usage=RequestUsage(input_tokens=1_000, output_tokens=250),
            model_name=self.model_name,
        )


def agent(model: Model) -> Agent[object, str]:
    """The agent of every benchmark."""
    return Agent(model, instructions=INSTRUCTIONS, deps_type=object)


@asynccontextmanager
async def loop(model: Model, url: str, iterations: int, *, history: HistorySpec | None = None) -> AsyncGenerator[Loop]:
    """The whole runner around the model and the HTTP evaluator at `url`, on a budget."""
    async with EgressClient(EgressPolicy(allow_hosts=frozenset({host_and_port(url)}))) as egress:
        yield Loop(
            agent=agent(model),
            evaluate=EndpointEvaluator(url=url, egress=egress),
            stop=MaxIterations(iterations) | Budget("1000"),
            history=history,
        )


@contextmanager
def evaluator_process(*, remark_bytes: int = 300) -> Generator[str]:
    """A real HTTP evaluator in a process of its own; gives its URL."""
    command = [sys.executable, "-m", "benchmarks.endpoint", str(remark_bytes)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/score"
        process.stdin.close()


@dataclass(frozen=True)
class Target:
    """A figure and the most that it may be."""

    name: str
    value: float
    most: float
    unit: str = ""

    def __str__(self) -> str:
        mark = "ok" if self.value <= self.most else "MISSED"
        return f"{self.name}: {self.value:.2f}{self.unit} (target: at most {self.most:g}{self.unit}) {mark}"


def arguments(doc: str | None, *, iterations: int | None = None, rounds: int | None = None) -> argparse.ArgumentParser:
    """The options that benchmarks have: iterations of a run, rounds of measuring, whether to check the targets."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if iterations is not None:
        parser.add_argument("--iterations", type=int, default=iterations, help="iterations of a run (%(default)s)")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="how often to measure (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    return parser


def verdict(targets: Sequence[Target], *, check: bool) -> int:
    """Print the targets and return the exit code."""
    for target in targets:
        print(target)
    return int(check and any(target.value > target.most for target in targets))
