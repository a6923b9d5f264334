from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from loopwright.core.models import Candidate, EvaluationRequest
from loopwright.core.ports import EvaluatorContext
from loopwright.egress import EgressClient, EgressPolicy
from loopwright.store.memory import MemoryRunStore

from .endpoint import Endpoint, running_endpoint

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


class StandingClock:
    def now(self) -> datetime:
        return NOW


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with running_endpoint() as running:
        yield running


@pytest.fixture
async def egress(endpoint: Endpoint) -> AsyncIterator[EgressClient]:
    async with EgressClient(EgressPolicy(allow_hosts=frozenset({endpoint.host}))) as client:
        yield client


@pytest.fixture
def context() -> EvaluatorContext:
    clock = StandingClock()
    return EvaluatorContext(store=MemoryRunStore("run-1", cap=None, clock=clock), clock=clock)


@pytest.fixture
def request_() -> EvaluationRequest:
    return request_for(Candidate(text="the sea"))


def request_for(candidate: Candidate, goal: str = "a sentence") -> EvaluationRequest:
    return EvaluationRequest(goal=goal, candidate=candidate, run_id="run-1", attempt=2, iteration=3)
