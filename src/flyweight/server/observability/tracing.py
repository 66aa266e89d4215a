"""Sends traces of HTTP requests to an OpenTelemetry collector, in OTLP over HTTP.

Invariant: without `--otlp-traces-endpoint` nothing of OpenTelemetry is imported, and nothing is
sent.  Spans are made after the reply was sent, and wait in a bounded queue for a thread that sends
them: a collector that is slow or away delays no request and fails none.  A span holds no prompt, no
answer and no key.
"""

import logging
from collections.abc import Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from flyweight.server.observability.log import ServerLog
from flyweight.server.observability.spans import (
    PROVIDER,
    RequestTrace,
    describe_request,
    divide,
    measure_offset,
)
from flyweight.server.settings import ServerSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

LAST = 2.0  # seconds for the spans that wait when the server ends
OPTION = "--otlp-traces-endpoint"
PATH = "/v1/traces"


def open_tracer(server: ServerSettings, log: ServerLog) -> "RequestTracer | None":
    """None where no traces are to be sent."""
    if not server.otlp_traces_endpoint:
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return RequestTracer(OTLPSpanExporter(endpoint=complete(server.otlp_traces_endpoint)), log)


def complete(endpoint: str) -> str:
    """A collector's URL, with the usual path where it has none."""
    bare = urlsplit(endpoint).path in ("", "/")
    return endpoint.rstrip("/") + PATH if bare else endpoint


class RequestTracer:
    """Traces requests through an exporter.  OpenTelemetry's variables of the environment set the
    rest: headers, the sampler, the service's name, the sizes of the queue.
    """

    def __init__(self, exporter: "SpanExporter", log: ServerLog) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        theirs = logging.getLogger("opentelemetry")  # reports every batch that fails
        theirs.addHandler(logging.NullHandler())
        theirs.propagate = False
        named = Resource.create({"service.name": PROVIDER}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        sender: Any = ReportingExporter(exporter, log)
        self._provider.add_span_processor(BatchSpanProcessor(sender))
        self._tracer = self._provider.get_tracer("flyweight.server")
        self._propagator = TraceContextTextMapPropagator()
        self._log, self._failed = log, False

    def send(self, trace: RequestTrace) -> None:
        """Never raises: the reply was sent, and the connection goes on."""
        try:
            self._make_spans(trace)
        except Exception as error:
            if not self._failed:
                self._failed = True
                self._log.event("traces_lost", problem=type(error).__name__)

    def close(self) -> None:
        """Sends what waits, for a short time at most."""
        ending = Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(LAST)

    def _make_spans(self, trace: RequestTrace) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        request, *stages = divide(trace, measure_offset())
        parent = self._propagator.extract(dict(trace.context))
        attributes = describe_request(trace, [request, *stages])
        span = self._tracer.start_span(
            request.name, parent, SpanKind.SERVER, attributes, start_time=request.began
        )
        inside = set_span_in_context(span, parent)
        for name, began, ended in stages:
            self._tracer.start_span(name, inside, start_time=began).end(ended)
        if "error.type" in attributes:
            span.set_status(StatusCode.ERROR)
        span.end(request.ended)


class ReportingExporter:
    """An exporter that logs the first of several failures; requests are answered all the same."""

    def __init__(self, exporter: "SpanExporter", log: ServerLog) -> None:
        self.exporter, self.log = exporter, log
        self.failing = False

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self.exporter.export(spans)
        except Exception:  # of a library: it is a batch that was not sent
            result = SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self.failing:
            self.log.event(
                "traces_lost", spans=len(spans), hint=f"the collector of {OPTION} does not answer"
            )
        self.failing = failed
        return result

    def shutdown(self) -> None:
        self.exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return bool(self.exporter.force_flush(timeout_millis))
