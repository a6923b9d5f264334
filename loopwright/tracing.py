"""Traces: what a run did and how long each part took, sent where the OTEL_* variables say, and nowhere without them.

A run is one trace, whichever process executes it and however often it is taken up again: its iterations, the requests
to models (pydantic-ai's own spans), the evaluations. Spans tell names, times, tokens and scores. What was said to a
model or by it, and the words of errors, which may quote it, are in none; prompts and answers are only where
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is `true`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING

from .core.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

ADDRESSES = ("url.", "http.url", "http.target", "http.request.header", "http.response.header")
"""Attributes that HTTP clients set, and in which people put keys; the host is told by `server.address`."""

FLUSH_SECONDS = 3.0
"""How long a leaving process tries to send what it still has."""

_run: ContextVar[str | None] = ContextVar("loopwright_run", default=None)
"""The run whose trace is to be begun."""

_cause: ContextVar[tuple[Link, ...]] = ContextVar("loopwright_cause", default=())


@contextmanager
def span(name: str, **attributes: str | int | float) -> Generator[Span]:
    """A part of what is going on. That it failed is told by the kind of error alone."""
    from opentelemetry.trace import Status, StatusCode, get_tracer

    with get_tracer("loopwright").start_as_current_span(
        name,
        attributes={f"loopwright.{key}": value for key, value in attributes.items()},
        links=_cause.get(),
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        token = _cause.set(())
        try:
            yield current
        except BaseException as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            _cause.reset(token)


@contextmanager
def trace_of(run_id: str) -> Generator[None]:
    """What begins inside is of this run's trace, beside whatever caused it here, such as the engine's own span."""
    from opentelemetry import context, trace

    around = trace.get_current_span().get_span_context()
    run, cause = _run.set(run_id), _cause.set((trace.Link(around),) if around.is_valid else ())
    token = context.attach(context.Context())
    try:
        yield
    finally:
        context.detach(token)
        _cause.reset(cause)
        _run.reset(run)


def trace_id(run_id: str) -> int:
    """The number of a run's trace: the same wherever the run is executed."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:16], "big") or 1


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    addressed = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return exporter != "none" and bool(exporter or addressed)


def set_up(environ: Mapping[str, str] = os.environ, exporter: SpanExporter | None = None) -> TracerProvider | None:
    """Send traces where the environment says; `None` where it says nothing.

    Args:
        environ: where OTEL_* are looked up.
        exporter: takes them instead.

    Raises:
        InvalidInput: the environment asks for what there isn't.
    """
    if exporter is None and not wanted(environ):
        return None
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    known = trace.get_tracer_provider()
    if isinstance(known, TracerProvider):
        return known
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings

    names = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "loopwright"}
    resource = Resource.create({**names, "service.version": version("loopwright")})
    provider = TracerProvider(resource=resource, id_generator=_ids())
    provider.add_span_processor(BatchSpanProcessor(_discreet(exporter or _exporter(environ))))
    trace.set_tracer_provider(provider)
    content = environ.get(CONTENT, "").lower() == "true"
    Agent.instrument_all(
        InstrumentationSettings(
            tracer_provider=provider,
            include_content=content,
            include_binary_content=False,
            include_model_request_parameters=False,
        )
    )
    return provider


def _exporter(environ: Mapping[str, str]) -> SpanExporter:
    kind = environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower()
    protocol = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if kind not in ("", "otlp"):
        raise InvalidInput(Problem(field="OTEL_TRACES_EXPORTER", message="must be otlp, console or none"))
    if protocol not in (None, "", "http/protobuf"):
        message = "must be http/protobuf; collectors take it at port 4318"
        raise InvalidInput(Problem(field="OTEL_EXPORTER_OTLP_PROTOCOL", message=message))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _ids():
    """Numbers of traces: that of the run, where one begins."""
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        def generate_trace_id(self) -> int:
            run_id = _run.get()
            return trace_id(run_id) if run_id else super().generate_trace_id()

    return Ids()


def _discreet(inner: SpanExporter) -> SpanExporter:
    """An exporter that leaves out addresses, and the words of errors: they quote what providers and tools said."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.trace import Status

    def without_words(each: ReadableSpan) -> ReadableSpan:
        return ReadableSpan(
            name=each.name,
            context=each.context,
            parent=each.parent,
            resource=each.resource,
            attributes={key: value for key, value in (each.attributes or {}).items() if not key.startswith(ADDRESSES)},
            events=[event for event in each.events if event.name != "exception"],
            links=each.links,
            kind=each.kind,
            status=Status(each.status.status_code),
            start_time=each.start_time,
            end_time=each.end_time,
            instrumentation_scope=each.instrumentation_scope,
        )

    class Discreet(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return inner.export([without_words(each) for each in spans])

        def shutdown(self) -> None:
            inner.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return inner.force_flush(timeout_millis)

    return Discreet()
