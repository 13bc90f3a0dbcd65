"""`epp local gateway-config`: what a standalone Envoy in front of the picker needs to know."""

# ruff: noqa: PLC0415 - imports wait for their command

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from epp.sim.gateway.routes import RoutedPool

GatewayShape = Literal["standalone", "full-duplex", "original-dst", "buffered"]


def gateway_config(
    *,
    envoy: Annotated[
        GatewayShape, typer.Option(help="What passes the picker: see docs/operations.md.")
    ] = "standalone",
    response_trailers: Annotated[
        Literal["skip", "send"],
        typer.Option(help="send: the picker sees where answers end, and cuts them when it dies."),
    ] = "skip",
    endpoint: Annotated[
        list[str] | None, typer.Option(help="ip:port of a sidecar; once for each of the pool.")
    ] = None,
    pools_file: Annotated[
        Path | None,
        typer.Option(help="Several pools instead, as `epp serve --pools-file` has them."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address for clients.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for clients.")] = 8080,
    picker_host: Annotated[str, typer.Option(help="Address or name of `epp serve`.")] = "127.0.0.1",
    picker_port: Annotated[int, typer.Option(help="Its ext_proc port.")] = 9002,
    tls: Annotated[bool, typer.Option(help="TLS to the picker.")] = True,
    fail_open: Annotated[
        bool, typer.Option(help="Let requests pass unrouted when the picker is down.")
    ] = False,
    api_path: Annotated[
        list[str] | None,
        typer.Option(help="One more path that clients may call, with all under it."),
    ] = None,
    every_path: Annotated[
        bool, typer.Option("--every-path", help="Let all paths pass, /sleep and /metrics too.")
    ] = False,
) -> None:
    """Print the configuration of a standalone Envoy.

    As manifests/envoy/ has it."""
    from epp.errors import ConfigError
    from epp.sim.gateway.envoy import EnvoySettings, render
    from epp.sim.gateway.routes import API_PATHS, EVERY_PATH

    if endpoint and pools_file:
        raise ConfigError("", "--pools-file says which endpoints there are: leave --endpoint out")
    pools = () if pools_file is None else tuple(_pools(pools_file, known=envoy != "original-dst"))
    settings = EnvoySettings(
        listen_host=host,
        listen_port=port,
        admin_port=9901,
        ext_proc_host=picker_host,
        ext_proc_port=picker_port,
        endpoints=endpoint or [f"127.0.0.1:{8100 + number}" for number in range(4)],
        pools=pools,
        tls=tls,
        shape=envoy,
        response_trailers=response_trailers,
        fail_open=fail_open,
        api_paths=EVERY_PATH if every_path else (*API_PATHS, *(api_path or ())),
    )
    typer.echo(render(settings), nl=False)


def _pools(file: Path, *, known: bool) -> "Iterator[RoutedPool]":
    """`known`: Envoy has to know the endpoints, too. Raises ConfigError."""
    from epp.config.endpoints_file import parse_entries
    from epp.config.pools_file import parse_pools
    from epp.config.serve import serve_settings
    from epp.config.text_file import read_file
    from epp.errors import ConfigError
    from epp.sim.gateway.routes import RoutedPool

    for pool in parse_pools(read_file(file), str(file), serve_settings({})):
        if not pool.hosts:
            raise ConfigError(str(file), f"pool {pool.name!r} has no hosts: Envoy routes by them")
        members = pool.settings.endpoints_file
        if known and members is None:
            what = "only --envoy original-dst goes without knowing the endpoints"
            raise ConfigError(str(file), f"pool {pool.name!r} has no endpoints-file: {what}")
        entries = parse_entries(read_file(members), str(members)).entries if members else ()
        yield RoutedPool(
            name=pool.name,
            hosts=pool.hosts,
            endpoints=[f"{entry.host}:{entry.port}" for entry in entries],
        )
