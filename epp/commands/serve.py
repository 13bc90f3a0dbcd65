"""`epp serve`: one flag for each field of its settings, which is where they are declared."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

import inspect
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from epp.config import values
from epp.config.serve import ServeSettings, flag_of, serve_settings

_SPELLINGS = {
    values.seconds: "duration",
    values.size: "size",
    values.optional_size: "size",
    values.listed: "names",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """What a user may say of one setting."""

    field: str
    name: str
    """Without dashes, as in Go."""
    takes: str
    """`bool`, `text`, `number`, `path`, `duration`, `size`, `names`, or `a|b` of fixed words."""
    default: str
    """As a user would write it; empty where nothing stands for it."""
    env: str | None
    help: str


@cache
def serve_flags() -> dict[str, Flag]:
    """All flags of `epp serve` by name, in the order of the settings."""
    flags = [_flag(name, field) for name, field in ServeSettings.model_fields.items()]
    return {flag.name: flag for flag in flags}


def _flag(name: str, field: FieldInfo) -> Flag:
    takes = _takes(field)
    return Flag(
        field=name,
        name=flag_of(name)[2:],
        takes=takes,
        default="" if field.is_required() else _text(field.default, takes),
        env=next((mark.name for mark in field.metadata if isinstance(mark, values.Env)), None),
        help=field.description or "",
    )


def _takes(field: FieldInfo) -> str:
    for mark in field.metadata:
        if isinstance(mark, BeforeValidator) and mark.func in _SPELLINGS:
            return _SPELLINGS[mark.func]
    kind: Any = field.annotation
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    kinds = {kind, *get_args(kind)}
    for known, word in ((bool, "bool"), (int, "number"), (float, "number"), (Path, "path")):
        if known in kinds:
            return word
    return "text"


def _text(value: object, takes: str) -> str:
    if value is None or value == ():
        return ""
    match value:
        case bool():
            return str(value).lower()
        case int() if takes == "size":
            return values.size_text(value)
        case float() if takes == "duration":
            return values.seconds_text(value)
    return str(value)


def serve(**given: Any) -> None:
    """Run the endpoint picker: ext_proc, health, metrics.

    Gateways ask the first port; the others are for kubelets, Prometheus and operators.

    The Go picker's spellings work too: -grpc-port=9002, --secure-serving=false, -v=4, --zap-encoder
    json. docs/flags.md says which of its flags we do not have, and what to use instead.
    """
    from epp.request.transport import ciphers

    settings = serve_settings(given)
    suites = ciphers.cipher_suites(settings.tls_min_version, settings.tls_cipher_suites)
    if suites is not None:
        os.environ[ciphers.VARIABLE] = suites  # before anybody loads gRPC

    if settings.workers > 1:
        from epp.workers.host import run as host

        host(settings)
        return
    from epp.app import run

    run(settings)


def _parameter(flag: Flag) -> inspect.Parameter:
    """As typer wants it. All values stay text: the settings judge them, all at once."""
    names = f"--{flag.name}/--no-{flag.name}" if flag.takes == "bool" else f"--{flag.name}"
    kind: Any = {"bool": bool | None, "names": list[str] | None}.get(flag.takes, str | None)
    option = typer.Option(
        names,
        envvar=flag.env,
        help=flag.help,
        metavar=None if flag.takes == "bool" else f"<{flag.takes}>",
    )
    default: object = flag.default or None
    if flag.takes == "bool":
        default = flag.default == "true"
    return inspect.Parameter(
        flag.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # how inspect is told
    [_parameter(flag) for flag in serve_flags().values()]
)
