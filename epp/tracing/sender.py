"""The way to whoever collects traces. OpenTelemetry is loaded when one is opened, not before."""

from collections.abc import Sequence
from typing import Protocol

from epp.errors import ConfigError

from .spans import Span


class Sender(Protocol):
    """Called in a thread, one call at a time."""

    def send(self, spans: Sequence[Span], /) -> bool:
        """Whether they arrived. Takes as long as its own limits allow."""

    def close(self) -> None:
        """Give up what is being sent; no `send` after it."""


def open_sender(endpoint: str, service: str) -> Sender:
    """Raises ConfigError where the extra `otel` is not installed."""
    try:
        from .otlp import Otlp  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError("trace_endpoint", "needs the extra otel, as in gie-epp[otel]") from error
    return Otlp(endpoint, service)
