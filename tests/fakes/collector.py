"""A collector of traces that keeps the spans it is sent."""

from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.upstreams import RawUpstream, answer


@dataclass(frozen=True)
class Told:
    """One span as it arrived."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent: str
    took_s: float
    attributes: dict[str, str | bool | int | float]
    failure: str


@dataclass
class Collector:
    upstream: RawUpstream = field(default_factory=lambda: RawUpstream(answer(b"")))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.upstream.port}/v1/traces"

    @property
    def spans(self) -> list[Told]:
        return [
            Told(
                name=span.name,
                service=_service(batch),
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                took_s=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                attributes={one.key: _value(one.value) for one in span.attributes},
                failure=span.status.message,
            )
            for request in self.upstream.received
            for batch in ExportTraceServiceRequest.FromString(request.body).resource_spans
            for scope in batch.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> list[Told]:
        return [span for span in self.spans if span.name == name]


def _service(batch) -> str:
    return next(
        one.value.string_value for one in batch.resource.attributes if one.key == "service.name"
    )


def _value(value):
    return getattr(value, value.WhichOneof("value"))
