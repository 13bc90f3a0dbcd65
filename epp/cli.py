"""The command line: parse, build settings, call. Nothing is decided here.

Each command imports what it needs when it runs, so that none pays for the others. An error that a
user can mend is one line on stderr and exit code 2.
"""

# ruff: noqa: PLC0415 - see above: imports wait for their command

import inspect
import random
import sys
from collections.abc import Callable, Coroutine
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import typer

from epp.errors import ConfigError, EppError

DISTRIBUTION = "gie-epp"

Result = TypeVar("Result")

Store = Literal["memory", "redis"]
Gateway = Literal["standalone", "full-duplex"]
EngineKind = Literal["sim", "vllm"]
Split = Literal["prefix", "always", "never"]
KvRole = Literal["producer", "consumer", "both"]
OnFailure = Literal["recompute", "fail"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["json", "text"]

app = typer.Typer(
    name="epp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would cut the names of flags, and brackets out of sentences
    help="Endpoint picker for the Gateway API Inference Extension.",
)
local = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A whole fleet on this machine: no cluster, no GPU.",
)
bench = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure on this machine, side by side."
)
app.add_typer(local, name="local")
app.add_typer(bench, name="bench")

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


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    number = installed_version(DISTRIBUTION)
    if as_json:
        import json

        number = json.dumps({"version": number})
    typer.echo(number)


def serve(**flags: Any) -> None:
    """Run the endpoint picker: ext_proc for Envoy, health, metrics, debug pages."""
    from epp.app import run
    from epp.config.serve import serve_settings

    run(serve_settings(flags))


@app.command()
def sidecar(
    *,
    pool_name: Annotated[str, typer.Option(help="Pool of the engine, as the picker names it.")],
    name: Annotated[str, typer.Option(help="Pod uid, or namespace/name as in the endpoints file.")],
    engine_url: Annotated[
        str, typer.Option(help="Base URL of the local engine.")
    ] = "http://127.0.0.1:8200",
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (default: every interface).")
    ] = None,
    port: Annotated[int, typer.Option(help="Where the gateway sends requests.")] = 8000,
    metrics_port: Annotated[int, typer.Option(help="/metrics and /healthz.")] = 9092,
    model: Annotated[
        str | None, typer.Option(help="Served model name (default: ask the engine).")
    ] = None,
    state_url: Annotated[
        str,
        typer.Option(envvar="EPP_STATE_URL", help="tcp://host:port of a picker, or redis://…"),
    ] = "tcp://127.0.0.1:9004",
    state_token_file: Annotated[
        Path | None, typer.Option(help="File with the token of the picker's state port.")
    ] = None,
    kv_events: Annotated[
        str | None, typer.Option(help="ZeroMQ endpoint of the engine's KV events.")
    ] = None,
    kv_events_bind: Annotated[
        bool, typer.Option("--kv-events-bind", help="Bind it, and let the engine connect.")
    ] = False,
    endpoints_file: Annotated[
        Path | None,
        typer.Option(help="The picker's endpoints file: who belongs to the pool."),
    ] = None,
    leg_key_file: Annotated[
        Path | None,
        typer.Option(help="The pool's key for prefill legs; two lines while it changes."),
    ] = None,
    leg_port: Annotated[
        int | None, typer.Option(help="Without a key: takes prefill legs from members only.")
    ] = None,
    on_prefill_failure: Annotated[
        OnFailure, typer.Option(help="When no target could prefill: compute here, or fail.")
    ] = "recompute",
    on_pull_failure: Annotated[
        OnFailure, typer.Option(help="When the KV could not be pulled: compute here, or fail.")
    ] = "recompute",
    prefill_timeout: Annotated[
        float, typer.Option(help="Seconds that a prefill leg may take, answer included.")
    ] = 120.0,
    stream_timeout: Annotated[
        float, typer.Option(help="Seconds from a decode leg to its first byte, for a stream.")
    ] = 120.0,
    answer_timeout: Annotated[
        float, typer.Option(help="The same for an answer in one piece.")
    ] = 900.0,
    kv_lease: Annotated[
        float, typer.Option(help="Seconds that prefill engines keep blocks (kv_lease_duration).")
    ] = 30.0,
    kv_lease_margin: Annotated[
        float, typer.Option(help="Seconds of the lease that must be left for a pull.")
    ] = 5.0,
    flush_ms: Annotated[float, typer.Option(help="Shortest time between two records.")] = 20,
    settle: Annotated[
        float, typer.Option(help="Seconds to go on accepting requests after SIGTERM.")
    ] = 1.0,
    grace: Annotated[
        float, typer.Option(help="Seconds that answers in flight have after SIGTERM.")
    ] = 30.0,
    log_level: Level = "info",
    log_format: Format = "json",
) -> None:
    """Run the sidecar of one engine: relays its requests, publishes its state."""
    from epp.observe import logs
    from sidecar.app import run
    from sidecar.settings import SidecarSettings

    values: dict[str, object] = {
        "pool": pool_name,
        "name": name,
        "engine_url": engine_url,
        "host": host,
        "port": port,
        "metrics_port": metrics_port,
        "model": model,
        "state_url": state_url,
        "state_token": None if state_token_file is None else _secret(state_token_file),
        "kv_events": kv_events,
        "kv_events_bind": kv_events_bind,
        "endpoints_file": endpoints_file,
        "leg_key_file": leg_key_file,
        "leg_port": leg_port,
        "on_prefill_failure": on_prefill_failure,
        "on_pull_failure": on_pull_failure,
        "prefill_timeout_s": prefill_timeout,
        "stream_timeout_s": stream_timeout,
        "answer_timeout_s": answer_timeout,
        "kv_lease_s": kv_lease,
        "kv_lease_margin_s": kv_lease_margin,
        "flush_ms": flush_ms,
        "settle_s": settle,
        "grace_s": grace,
    }
    settings = _checked(lambda: SidecarSettings.model_validate(values))
    logs.configure(log_level, log_format)
    _run(run(settings))


@local.command()
def engine(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of vLLM's HTTP API.")] = 8200,
    name: Annotated[str, typer.Option(help="Answered in x-inference-pod.")] = "engine",
    model: Annotated[str, typer.Option(help="Served model name.")] = "sim",
    kv_events: Annotated[
        str | None, typer.Option(help="ZeroMQ endpoint to publish KV events on.")
    ] = None,
    block_tokens: Annotated[int, typer.Option(help="Tokens in one KV block.")] = 16,
    num_blocks: Annotated[int, typer.Option(help="KV blocks of the machine.")] = 2048,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at once.")] = 16,
    max_batched_tokens: Annotated[int, typer.Option(help="Tokens computed in one step.")] = 2048,
    prefill_tokens_per_s: Annotated[float, typer.Option(help="Prefill speed.")] = 20_000.0,
    decode_step_s: Annotated[float, typer.Option(help="Seconds for one output token.")] = 0.01,
    seed: Annotated[int, typer.Option(help="Engines with equal seeds answer equally.")] = 0,
    hash_seed: Annotated[int, typer.Option(help="Seed of the block hashes.")] = 0,
    kv_role: Annotated[
        KvRole | None, typer.Option(help="Hand KV over, as vLLM does with a NIXL connector.")
    ] = None,
    side_channel_port: Annotated[
        int, typer.Option(help="Where other engines pull KV from (0: a free one).")
    ] = 0,
    lease: Annotated[
        float, typer.Option(help="Seconds that blocks stay pinned for an engine that pulls them.")
    ] = 30.0,
    on_load_failure: Annotated[
        OnFailure, typer.Option(help="When KV cannot be pulled: compute it here, or fail.")
    ] = "fail",
) -> None:
    """Run one simulated engine: vLLM's HTTP API and KV events, no GPU."""
    from epp.sim.server import EngineSettings, run

    settings = _checked(
        lambda: EngineSettings(
            host=host,
            port=port,
            name=name,
            model=model,
            kv_events=kv_events,
            block_tokens=block_tokens,
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            prefill_tokens_per_s=prefill_tokens_per_s,
            decode_step_s=decode_step_s,
            seed=seed,
            hash_seed=hash_seed,
            kv_role=kv_role,
            side_channel_port=side_channel_port,
            lease_s=lease,
            kv_load_failure_policy=on_load_failure,
        )
    )
    _run(run(settings))


@local.command()
def up(
    *,
    engines: Annotated[
        int | None, typer.Option(help="Engines without a role, each with a sidecar (default: 4).")
    ] = None,
    prefill: Annotated[int, typer.Option(help="Engines that compute prompts for others.")] = 0,
    decode: Annotated[int, typer.Option(help="Engines that answer; needs --prefill.")] = 0,
    engine: Annotated[
        EngineKind,
        typer.Option(help="sim: simulated. vllm: real ones on CPUs (`make setup-vllm` first)."),
    ] = "sim",
    split: Annotated[
        Split, typer.Option(help="Which prompts prefill engines compute: see `epp serve --split`.")
    ] = "prefix",
    vllm_venv: VllmVenv = None,
    store: Annotated[
        Store, typer.Option(help="memory: the picker hosts the log. redis: a Redis is started.")
    ] = "memory",
    envoy: Annotated[
        Gateway,
        typer.Option(help="full-duplex: answers pass the picker, as gateways of a pool do it."),
    ] = "standalone",
    port_base: PortBase = None,
    auto_ports: AutoPorts = False,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Start Envoy, the picker, engines and sidecars; Ctrl-C ends all of it."""
    from epp.sim.local import chosen_ports, up
    from epp.sim.parts import FleetSettings
    from epp.sim.roster import DEFAULT_ENGINES, roster

    if engines is None:
        engines = 0 if prefill or decode else DEFAULT_ENGINES
    count = len(roster(engines, prefill, decode))
    settings = FleetSettings(
        engines=engines,
        prefill=prefill,
        decode=decode,
        kind=engine,
        split=split,
        store=store,
        envoy=envoy,
        ports=chosen_ports(count, port_base, auto=auto_ports, rng=random.SystemRandom()),
        run_dir=run_dir,
        vllm_venv=vllm_venv,
    )
    raise typer.Exit(_run(up(settings, as_json=as_json)))


@local.command("gateway-config")
def gateway_config(
    *,
    envoy: Annotated[Gateway, typer.Option(help="As in `epp local up`.")] = "standalone",
    endpoint: Annotated[
        list[str] | None, typer.Option(help="ip:port of a sidecar; once for each of the pool.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address for clients.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port for clients.")] = 8080,
    picker_host: Annotated[str, typer.Option(help="Address of `epp serve`.")] = "127.0.0.1",
    picker_port: Annotated[int, typer.Option(help="Its ext_proc port.")] = 9002,
    tls: Annotated[bool, typer.Option(help="TLS to the picker.")] = True,
) -> None:
    """Print the configuration of a standalone Envoy, as manifests/envoy/ has it."""
    from epp.sim.envoy import EnvoySettings, render

    settings = EnvoySettings(
        listen_host=host,
        listen_port=port,
        admin_port=9901,
        ext_proc_host=picker_host,
        ext_proc_port=picker_port,
        endpoints=endpoint or [f"127.0.0.1:{8100 + number}" for number in range(4)],
        tls=tls,
        shape=envoy,
    )
    typer.echo(render(settings), nl=False)


@local.command()
def demo(
    *,
    engine: Annotated[
        EngineKind,
        typer.Option(help="vllm: the claims about real engines (`make setup-vllm` first)."),
    ] = "sim",
    vllm_venv: VllmVenv = None,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Check what we promise with real requests; exit code 1 when a claim does not hold."""
    from epp.sim.demo import DemoSettings, demo

    settings = DemoSettings(kind=engine, vllm_venv=vllm_venv, run_dir=run_dir)
    raise typer.Exit(_run(demo(settings, as_json=as_json, rng=random.SystemRandom())))


@bench.command("request")
def bench_request(
    *,
    requests: Annotated[
        int, typer.Option(min=10, max=10_000, help="Sequential requests of each variant.")
    ] = 200,
    streams: Annotated[int, typer.Option(min=1, max=500, help="Concurrent streams.")] = 50,
    rounds: Annotated[
        int, typer.Option(min=1, max=20, help="Interleaved rounds of concurrent streams.")
    ] = 3,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """What the way through Envoy, picker and sidecar costs, beside doing without."""
    from epp.sim.bench import BenchSettings, bench

    settings = BenchSettings(requests=requests, streams=streams, rounds=rounds, run_dir=run_dir)
    raise typer.Exit(_run(bench(settings, as_json=as_json, rng=random.SystemRandom())))


@bench.command("fixed-picker", hidden=True)
def fixed_picker(
    *,
    grpc_port: Annotated[int, typer.Option(help="Port of ext_proc, plaintext.")],
    destination: Annotated[list[str], typer.Option(help="ip:port; several are taken in turn.")],
) -> None:
    """Run a picker that decides nothing: what ext_proc itself costs."""
    from epp.fixed import serve

    _run(serve(grpc_port, destination))


def _add_serve() -> None:
    """Register `serve` with one flag for each field of its settings."""
    from epp.config.serve import ServeSettings

    parameters = []
    for name, field in ServeSettings.model_fields.items():
        flag = "--" + name.replace("_", "-").removesuffix("-s")
        kind: Any = field.annotation
        if bool in (kind, *get_args(kind)):
            flag = f"{flag}/--no-{flag[2:]}"
        required = field.is_required()
        option = typer.Option(
            flag,
            envvar="EPP_REDIS_URL" if name == "redis_url" else None,  # it may hold a password
            help=field.description,
        )
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if required else field.default,
                annotation=Annotated[kind, option],
            )
        )
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # how inspect is told
    app.command("serve")(serve)  # once more replaces it


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _checked(build: Callable[[], Result]) -> Result:
    """Build settings; a value out of range becomes a ConfigError with every fault in it."""
    try:
        return build()
    except ValueError as error:
        faults = getattr(error, "errors", None)  # pydantic's ValidationError is a ValueError
        if faults is None:
            raise ConfigError("", str(error)) from None
        texts = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}"
            for one in faults(include_input=False)
        ]
        raise ConfigError("", "; ".join(texts)) from None


def _secret(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    if not token:
        raise ConfigError(str(path), "holds no token")
    return token


def main() -> None:
    """The console script `epp`."""
    known = {"sidecar", "local", "bench", "version"}
    if not known.intersection(sys.argv[1:2]):  # only `serve` and the overview pay for its flags
        _add_serve()
    try:
        app(prog_name="epp")
    except EppError as error:
        typer.echo(f"epp: {error}", err=True)
        raise SystemExit(2) from None
    except OSError as error:
        typer.echo(f"epp: {error.strerror or error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
