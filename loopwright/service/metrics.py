"""What monitoring reads: figures of the whole installation from its records, and those of this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..cancellation import end_all
from ..store import measures
from ..store.measures import ModelFigures, RunFigures, Totals
from .runtime import Runtime

FRESH_SECONDS = 5.0
"""For how long the figures of the installation are kept: however often somebody asks, the database isn't busy by it."""

LAG_SECONDS = 0.25
"""How often the event loop is asked how late it is."""


@dataclass(frozen=True, kw_only=True)
class Installation(Collector):
    """Figures that all processes of an installation share."""

    runs: tuple[RunFigures, ...]
    models: tuple[ModelFigures, ...]
    totals: Totals
    running: int
    viewers: int

    def collect(self) -> Iterator[Metric]:
        """The figures as Prometheus has them."""
        yield from self._runs()
        yield from self._models()
        totals = self.totals
        for name, words, value in (
            ("reserved_usd", "US dollars set aside for requests in flight.", float(totals.reserved_usd)),
            ("workers", "Living workers, of all processes.", totals.workers),
            ("process_runs", "Runs that this process executes.", self.running),
            ("process_viewers", "Live streams that this process serves.", self.viewers),
        ):
            yield GaugeMetricFamily(f"loopwright_{name}", words, value=value)
        for name, words, value in (
            ("spent_usd", "US dollars spent by all runs.", float(totals.spent_usd)),
            ("evaluation_retries", "Evaluations that failed and were tried again.", totals.evaluation_retries),
            ("bound_overruns", "Requests that cost more than was reserved for them.", totals.overruns),
        ):
            yield CounterMetricFamily(f"loopwright_{name}", words, value=value)

    def _runs(self) -> Iterator[Metric]:
        live = GaugeMetricFamily("loopwright_runs", "Runs that wait (`queued`) or go on.", labels=["status"])
        over = CounterMetricFamily("loopwright_runs_finished", "Runs that are over.", labels=["stop_reason"])
        for each in self.runs:
            if each.status == "finished":
                over.add_metric([each.stop_reason or ""], each.runs)
        for status in ("queued", "running"):
            live.add_metric([status], sum(each.runs for each in self.runs if each.status == status))
        yield live
        yield over
        iterations = sum(each.iterations for each in self.runs)
        yield CounterMetricFamily("loopwright_iterations", "Finished iterations.", value=iterations)
        overrun = float(sum(each.overrun_usd for each in self.runs))
        words = "US dollars by which requests cost more than was reserved for them."
        yield CounterMetricFamily("loopwright_bound_overrun_usd", words, value=overrun)

    def _models(self) -> Iterator[Metric]:
        month = "of this month (UTC)"
        requests = CounterMetricFamily("loopwright_model_requests", f"Paid requests {month}.", labels=["model"])
        cost = CounterMetricFamily("loopwright_model_cost_usd", f"US dollars {month}.", labels=["model"])
        tokens = CounterMetricFamily("loopwright_model_tokens", f"Tokens {month}.", labels=["model", "kind"])
        for each in self.models:
            requests.add_metric([each.model], each.requests)
            cost.add_metric([each.model], float(each.cost_usd))
            for kind in ("input", "output", "cached"):
                tokens.add_metric([each.model, kind], getattr(each, f"{kind}_tokens"))
        yield from (requests, cost, tokens)


@dataclass
class Metrics:
    """The figures of one process, and the installation's as they were a moment ago."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _known: tuple[float, Installation] | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._requests = Counter(
            "loopwright_http_requests", "Answered requests.", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "loopwright_http_seconds",
            "Seconds until a request's answer began.",
            ["method", "route"],
            registry=self.registry,
            buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
        )
        self._lag = Histogram(
            "loopwright_event_loop_lag_seconds",
            "By how much the event loop of this process was late.",
            registry=self.registry,
            buckets=(0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    @asynccontextmanager
    async def measuring(self) -> AsyncGenerator[None]:
        """Measure how late the event loop is, as long as the block lasts."""
        task = asyncio.create_task(self._measure())
        try:
            yield
        finally:
            await end_all([task])

    async def _measure(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_SECONDS)
            self._lag.observe(max(0.0, time.monotonic() - before - LAG_SECONDS))

    async def text(self, runtime: Runtime) -> bytes:
        """All figures as Prometheus reads them.

        Raises:
            DatabaseAway: the database doesn't answer.
        """
        async with self._asking:
            if self._known is None or time.monotonic() - self._known[0] > FRESH_SECONDS:
                self._known = time.monotonic(), await _installation(runtime)
        shared = CollectorRegistry()
        shared.register(self._known[1])
        return generate_latest(shared) + generate_latest(self.registry)


async def _installation(runtime: Runtime) -> Installation:
    async with runtime.database.service_session() as connection:
        return Installation(
            runs=tuple(await measures.runs(connection)),
            models=tuple(await measures.models(connection)),
            totals=await measures.totals(connection),
            running=runtime.engine.running if runtime.engine else 0,
            viewers=runtime.hub.viewers,
        )
