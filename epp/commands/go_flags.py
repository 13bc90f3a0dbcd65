"""The Go picker's command lines, turned into ours. Pure.

Whoever replaces it keeps their arguments: `-grpc-port=9002`, `--secure-serving=false`, `-v 4`,
`--zap-encoder json`. Each of its flags means here what it means there, or is refused with a
sentence that says what to use instead: `ELSEWHERE` has those that are not simply ours.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from epp.config.values import seconds
from epp.errors import ConfigError

from .serve import serve_flags

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
DEBUG_VERBOSITY = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A flag of the Go picker that is none of ours."""

    name: str
    switch: bool = False
    """It takes true or false, and true when it stands alone."""
    says: str
    """For people: what it does here, or what to use instead."""
    refused: Callable[[str], bool] = lambda _: True
    """Of a value (switches: `true` or `false`)."""
    becomes: Callable[[str], str] = lambda _: ""
    """Our own argument in its place; empty for none."""


def _on(value: str) -> bool:
    return value == "true"


def _never(_: str) -> bool:
    return False


def _format(encoder: str) -> str:
    if encoder not in {"json", "console"}:
        raise ValueError("expected json or console")
    return "--log-format=json" if encoder == "json" else "--log-format=text"


def _verbosity(level: str) -> str:
    if not level.lstrip("+-").isdigit():
        raise ValueError("expected a number")
    return f"--log-level={'debug' if int(level) >= DEBUG_VERBOSITY else 'info'}"


def _zap_level(level: str) -> str:
    named = {"debug": "debug", "info": "info", "error": "error", "panic": "error"}
    return f"--log-level={named[level]}" if level in named else _verbosity(level)


def _duration(value: str) -> str:
    seconds(value)
    return ""


_NO_TLS = "the metrics page has no TLS yet: keep its port inside, or put a proxy before it"
_NO_NAMES = "describe engines with core-metrics-extractor's engineConfigs, in --config-file"

ELSEWHERE: dict[str, Foreign] = {
    row.name: row
    for row in (
        Foreign(
            name="ha-enable-leader-election",
            switch=True,
            says="all replicas serve at once, with --store redis; leave it out",
            refused=_on,
        ),
        Foreign(
            name="health-checking",
            switch=True,
            says="nothing: the ext_proc port always answers health checks, and says if it is ready",
            refused=_never,
        ),
        Foreign(
            name="refresh-prometheus-metrics-interval",
            says="nothing: our metrics are computed when they are read",
            refused=_never,
            becomes=_duration,
        ),
        Foreign(
            name="metrics-endpoint-auth",
            switch=True,
            says="the metrics page asks for no token yet: keep its port inside, and say "
            "--metrics-endpoint-auth=false",
            refused=_on,
        ),
        Foreign(name="metrics-client-ca-file", says=_NO_TLS),
        Foreign(name="metrics-cert-dir", says=_NO_TLS),
        Foreign(
            name="enable-pprof",
            switch=True,
            says="profiles of Go programs: look at this process with a sampling profiler for "
            "Python, and say --enable-pprof=false",
            refused=_on,
        ),
        Foreign(
            name="tracing",
            switch=True,
            says="traces go where --trace-endpoint says: give that, and say --tracing=false",
            refused=_on,
        ),
        *(
            Foreign(name=f"{what}-metric", says=_NO_NAMES)
            for what in (
                "total-queued-requests",
                "total-running-requests",
                "kv-cache-usage-percentage",
                "lora-info",
                "cache-info",
            )
        ),
        Foreign(
            name="v",
            says=f"--log-level=debug from {DEBUG_VERBOSITY} on, else --log-level=info",
            refused=_never,
            becomes=_verbosity,
        ),
        Foreign(
            name="zap-log-level",
            says="--log-level; a number as with -v, which it beats",
            refused=_never,
            becomes=_zap_level,
        ),
        Foreign(
            name="zap-encoder",
            says="--log-format: json, or text for console",
            refused=_never,
            becomes=_format,
        ),
        Foreign(
            name="zap-devel",
            switch=True,
            says="--log-format=text, false: json; --zap-encoder beats it",
            refused=_never,
            becomes=lambda on: f"--log-format={'text' if _on(on) else 'json'}",
        ),
        Foreign(
            name="zap-stacktrace-level",
            says="nothing: only our own faults are logged with their traces",
            refused=_never,
        ),
        Foreign(
            name="zap-time-encoding",
            says="nothing: times are always ISO 8601 in UTC",
            refused=_never,
        ),
    )
}

_ORDER = ("v", "zap-devel", "zap-log-level", "zap-encoder")
"""Of those that say the same, a later one beats an earlier one; our own flags beat them all."""


def own_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of `epp serve` in our own spelling. Raises ConfigError for what is refused.

    An empty value is no value, as charts write it. What we do not know is left for the parser,
    which names the nearest flag.
    """
    first, *rest = arguments
    ours: list[str] = []
    theirs: list[tuple[str, str]] = []
    for word, name, value in _words(rest):
        if name in ELSEWHERE:
            theirs.append((name, _foreign(ELSEWHERE[name], value)))
        elif name is None:
            ours.append(word)
        elif value is None:
            ours.append(f"--{name}")
        elif serve_flags()[name].takes == "bool":
            ours.append(f"--{name}" if _on(_switch(name, value)) else f"--no-{name}")
        elif value:
            ours.append(f"--{name}={value}")
    theirs.sort(key=lambda said: _ORDER.index(said[0]) if said[0] in _ORDER else -1)
    return [first, *(argument for _, argument in theirs if argument), *ours]


def _words(arguments: Sequence[str]) -> Iterator[tuple[str, str | None, str | None]]:
    """Each argument, the known flag that it names, and the flag's value.

    The name is None for what is no flag that we know; the value is None where it is missing.
    """
    waiting = iter(arguments)
    for word in waiting:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-v") and word[2:].isdigit():
            yield word, "v", word[2:]
        elif not word.startswith("-") or (name not in ELSEWHERE and name not in serve_flags()):
            yield word, None, None
        elif equals:
            yield word, name, value
        elif _is_switch(name):
            yield word, name, "true"
        else:
            yield word, name, next(waiting, None)


def _is_switch(name: str) -> bool:
    if name in ELSEWHERE:
        return ELSEWHERE[name].switch
    return serve_flags()[name].takes == "bool"


def _switch(name: str, value: str) -> str:
    if value in _TRUE:
        return "true"
    if value in _FALSE:
        return "false"
    raise ConfigError("", f"--{name}: expected true or false, got {value!r}")


def _foreign(flag: Foreign, value: str | None) -> str:
    if value is None:
        raise ConfigError("", f"--{flag.name} needs a value")
    if not value:
        return ""
    value = _switch(flag.name, value) if flag.switch else value
    if flag.refused(value):
        raise ConfigError("", f"--{flag.name}: {flag.says}")
    try:
        return flag.becomes(value)
    except ValueError as error:
        raise ConfigError("", f"--{flag.name}: {error}, got {value!r}") from None
