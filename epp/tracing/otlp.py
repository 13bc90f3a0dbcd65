"""Sends spans to a collector in OTLP over HTTP, with the OpenTelemetry SDK of the extra `otel`.

Whatever the standard's environment variables say holds too: `OTEL_EXPORTER_OTLP_HEADERS`,
`…_CERTIFICATE`, `…_COMPRESSION`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`.
"""

import logging
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from .spans import Span

SEND_S = 2.0
"""How long the collector may take for one batch, repeats included."""
_NS = 1_000_000_000


class Otlp:
    """A `sender.Sender`."""

    def __init__(self, endpoint: str, service: str) -> None:
        """`endpoint`: the whole URL, such as `http://collector:4318/v1/traces`."""
        # It tells of each batch that did not arrive; we count them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)
        self._resource = Resource({"service.name": service}).merge(OTELResourceDetector().detect())

    def send(self, spans: Sequence[Span]) -> bool:
        found = self._exporter.export([self._readable(span) for span in spans])
        return found is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: Span) -> ReadableSpan:
        status = trace.Status()
        if span.failure is not None:
            status = trace.Status(trace.StatusCode.ERROR, span.failure)
        return ReadableSpan(
            name=span.name,
            context=_context(span, span.context.span_id),
            parent=None if span.parent is None else _context(span, span.parent),
            resource=self._resource,
            attributes=span.attributes,
            status=status,
            start_time=int(span.began_s * _NS),
            end_time=int(span.ended_s * _NS),
        )


def _context(span: Span, span_id: str) -> trace.SpanContext:
    return trace.SpanContext(
        int(span.context.trace_id, 16),
        int(span_id, 16),
        is_remote=False,
        trace_flags=trace.TraceFlags(span.context.flags),
    )
