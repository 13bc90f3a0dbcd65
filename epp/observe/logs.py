"""Structured logs: one line an event, JSON for machines or text for people.

Prompts, header values and tokens never enter a log line; events carry ids, counts and reasons.
"""

import io
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import msgspec
import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SECRETS = frozenset({"token", "password", "authorization", "redis_url", "salt", "secret"})


def configure(level: str, form: str) -> None:
    """Set up structlog and send the standard library's loggers the same way."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(serializer=_encode)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), stream=sys.stderr, force=True)


class _Stderr(io.TextIOBase):
    """Whatever `sys.stderr` is when a line is written: a replaced one may be closed by then."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the values of fields whose names say that they are secret."""
    for name in _SECRETS & event.keys():
        event[name] = "***"
    return event


def _encode(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
