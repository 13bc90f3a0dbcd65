"""Structured logs: one line an event, JSON for machines or text for people.

Prompts, header values and tokens never enter a log line; events carry ids, counts and reasons. An
exception's own words may quote what it failed on, so that above level `debug` only its type and
its place in the code are told (fault G09).
"""

import io
import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from types import TracebackType
from typing import Any, TextIO, cast

import msgspec
import structlog

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_MAX_CHAIN = 16
"""Exceptions told of one failure, with their causes and the members of groups."""
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
    if form != "json":
        shared.append(without_nothing)
    structlog.configure(
        processors=[*shared, _exceptions(level), renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Stderr())),
    )
    logging.basicConfig(level=max(_LEVELS[level], logging.WARNING), stream=sys.stderr, force=True)
    if level != "debug":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_Wordless(logging.BASIC_FORMAT))


def _exceptions(level: str) -> structlog.typing.Processor:
    """Renders `exc_info`: whole at level debug, else without the exceptions' own words."""
    if level == "debug":
        return structlog.processors.format_exc_info
    return structlog.processors.ExceptionRenderer(without_words)


def without_words(exc_info: Any) -> str:
    """A traceback that says where and what kind, but not what an exception quotes."""
    error = exc_info[1]
    return "\n".join(_told(each) for each in _chain(error)) if error is not None else ""


def _told(error: BaseException) -> str:
    frames: TracebackType | None = error.__traceback__
    return "".join(traceback.format_tb(frames)) + type(error).__qualname__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, the members of a group, and what each of them came from."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MAX_CHAIN:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
        cause = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        if cause is not None:
            waiting.append(cause)


class _Wordless(logging.Formatter):
    """For lines of libraries that use the standard library's loggers."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - named by the standard library
        return without_words(ei)


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


def without_nothing(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For people: fields without a value say nothing. Machines count on finding them."""
    return {name: value for name, value in event.items() if value is not None}


def _encode(value: Any, **_: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
