"""Flags that several commands share, and how a command runs its work."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from epp.errors import ConfigError

Result = TypeVar("Result")

Store = Literal["memory", "redis"]
Gateway = Literal["standalone", "full-duplex"]
EngineKind = Literal["sim", "vllm"]
Split = Literal["prefix", "cost", "always", "never"]
KvRole = Literal["producer", "consumer", "both"]
OnFailure = Literal["recompute", "fail"]
RelayKind = Literal["own", "aiohttp"]
ConnectorKind = Literal["nixlv2", "shared-storage", "sglang", "mooncake", "offloading"]
EncodeKind = Literal["ec-nixl", "ec-example"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
PortBase = Annotated[
    int | None,
    typer.Option(help="Move every port: the gateway takes this one, the rest the next 500."),
]
AutoPorts = Annotated[bool, typer.Option("--auto-ports", help="Take any free ports.")]
RunDir = Annotated[
    Path | None,
    typer.Option("--dir", help="Directory for logs and configuration (default: .epp-local/…)."),
]
VllmVenv = Annotated[
    Path | None, typer.Option(help="Virtual environment of vLLM (default: .venv-vllm).")
]
Level = Annotated[LogLevel, typer.Option(help="Log level.")]
Format = Annotated[LogFormat, typer.Option(help="Log format.")]


def run(work: Coroutine[Any, Any, Result]) -> Result:
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _told(fault: dict[str, Any]) -> str:
    """A fault of a setting by its flag. What was given is not quoted: it may be a secret."""
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"]:
        return message
    field = {"pool": "pool_name"}.get(fault["loc"][0], str(fault["loc"][0]))
    return f"--{field.removesuffix('_s').replace('_', '-')}: {message}"


def checked(build: Callable[[], Result]) -> Result:
    """Build settings; a value out of range becomes a ConfigError with every fault in it."""
    try:
        return build()
    except ValueError as error:
        faults = getattr(error, "errors", None)  # pydantic's ValidationError is a ValueError
        if faults is None:
            raise ConfigError("", str(error)) from None
        raise ConfigError(
            "", "; ".join(_told(one) for one in faults(include_input=False))
        ) from None
