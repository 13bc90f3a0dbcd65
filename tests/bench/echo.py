"""CPU time of a token that passes through the picker: `python -m tests.bench.echo`.

Prints microseconds of CPU per piece of an answer, parsing included, for the cases that differ: a
body that nobody reads, events whose cost is looked for, and events that get their model's name
back. No transport, and a progress that does nothing: what is left is the stream's own work.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from epp._pb import extproc_pb2 as pb
from epp.fixed import Unwatched
from epp.request.exchange import ModelName, Route
from epp.request.stream import Stream
from tests.fakes import extproc_messages as envoy

PIECES = 20_000
ROUNDS = 7
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1764521234,'
    b'"model":"org/internal","choices":[{"index":0,"text":" token","logprobs":null,'
    b'"finish_reason":null,"stop_reason":null}]%b}\n\n'
)
PLAIN, WITH_NULL = EVENT % b"", EVENT % b',"usage":null'
NAME = ModelName(asked="chat", served="org/internal")
SSE, OPAQUE = "text/event-stream", "application/octet-stream"
CASES: tuple[tuple[str, int, str, bytes, ModelName | None], ...] = (
    ("full duplex, not for us to read", pb.FULL_DUPLEX_STREAMED, OPAQUE, PLAIN, None),
    ("full duplex, events", pb.FULL_DUPLEX_STREAMED, SSE, PLAIN, None),
    ("full duplex, events with usage:null", pb.FULL_DUPLEX_STREAMED, SSE, WITH_NULL, None),
    ("full duplex, events, model renamed", pb.FULL_DUPLEX_STREAMED, SSE, PLAIN, NAME),
    ("streamed, events", pb.STREAMED, SSE, PLAIN, None),
    ("streamed, events, model renamed", pb.STREAMED, SSE, PLAIN, NAME),
)


def routed(mode: int, content_type: str, model: ModelName | None) -> Stream:
    """A stream whose answer has begun."""
    stream = envoy.a_stream()
    stream.receive(envoy.request_headers(end=True, response_mode=mode))
    stream.decided(replace(Route(destination="10.0.0.1:80", progress=Unwatched()), model=model))
    stream.receive(envoy.response_headers(more=[("content-type", content_type)]))
    return stream


def _us(work: Callable[[], object], times: int) -> float:
    """The best of some rounds, microseconds of CPU for each of `times`."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best / times * 1e6


def main() -> None:
    for name, mode, content_type, event, model in CASES:
        stream = routed(mode, content_type, model)
        message = envoy.response_body(event)

        def echo(stream: Stream = stream, message: bytes = message) -> None:
            for _ in range(PIECES):
                stream.receive(message)

        print(f"{name:<36} {_us(echo, PIECES):6.2f} us a piece of {len(event)} bytes")
    first = envoy.request_headers(end=True, response_mode=pb.FULL_DUPLEX_STREAMED)
    route = Route(destination="10.0.0.1:80", progress=Unwatched())
    answer = envoy.response_headers(more=[("content-type", SSE), ("x-request-id", "x")] * 4)

    def exchange() -> None:
        for _ in range(PIECES // 10):
            stream = envoy.a_stream()
            stream.receive(first)
            stream.decided(route)
            stream.receive(answer)

    print(f"{'request and answer headers':<36} {_us(exchange, PIECES // 10):6.2f} us together")


if __name__ == "__main__":
    main()
