"""`epp local …` and `epp bench …`: fleets on this machine, and what they cost."""

# ruff: noqa: PLC0415 - imports wait for their command

import random
from pathlib import Path
from typing import Annotated

import typer

from .flags import (
    AsJson,
    AutoPorts,
    EngineKind,
    Gateway,
    KvRole,
    OnFailure,
    PortBase,
    RunDir,
    Split,
    Store,
    VllmVenv,
    checked,
    run,
)
from .gateway import gateway_config
from .log_benches import bench_follow, bench_store

local = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A whole fleet on this machine: no cluster, no GPU.",
)
bench = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure on this machine, side by side."
)


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
    kv_replay: Annotated[
        str | None, typer.Option(help="ZeroMQ endpoint where missed ones can be asked for.")
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
    """Run one simulated engine, without a GPU.

    It has vLLM's HTTP API and KV events."""
    from epp.sim.serving.server import EngineSettings
    from epp.sim.serving.server import run as run_engine

    settings = checked(
        lambda: EngineSettings(
            host=host,
            port=port,
            name=name,
            model=model,
            kv_events=kv_events,
            kv_replay=kv_replay,
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
    run(run_engine(settings))


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
    restart: Annotated[
        bool, typer.Option("--restart", help="Start parts again that die, as a kubelet would.")
    ] = False,
    port_base: PortBase = None,
    auto_ports: AutoPorts = False,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """Start Envoy, picker, engines and sidecars.

    Ctrl-C ends all of it."""
    from epp.sim.fleets.local import chosen_ports, up
    from epp.sim.fleets.parts import FleetSettings
    from epp.sim.fleets.roster import DEFAULT_ENGINES, roster

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
    raise typer.Exit(run(up(settings, as_json=as_json, restart=restart)))


local.command("gateway-config")(gateway_config)


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
    """Check what we promise with real requests.

    Exit code 1 when a claim does not hold."""
    from epp.sim.promises.demo import DemoSettings, demo

    settings = DemoSettings(kind=engine, vllm_venv=vllm_venv, run_dir=run_dir)
    raise typer.Exit(run(demo(settings, as_json=as_json, rng=random.SystemRandom())))


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
    """What the way through Envoy, picker and sidecar costs.

    Beside doing without each of them."""
    from epp.sim.benches.request import BenchSettings, bench

    settings = BenchSettings(requests=requests, streams=streams, rounds=rounds, run_dir=run_dir)
    raise typer.Exit(run(bench(settings, as_json=as_json, rng=random.SystemRandom())))


@bench.command("index")
def bench_index(
    *,
    endpoints: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Endpoints of the pool; once for each size (default: 100, 1000).",
        ),
    ] = None,
    keys: Annotated[
        int, typer.Option(min=100, max=10_000_000, help="Different block keys.")
    ] = 1_000_000,
    prompt_keys: Annotated[
        int, typer.Option(min=8, max=10_000, help="Block keys of a prompt.")
    ] = 128,
    prompts: Annotated[int, typer.Option(min=1, max=10_000, help="Prompts of each kind.")] = 100,
    as_json: AsJson = False,
) -> None:
    """What the index of the engines' blocks costs in CPU and memory."""
    from epp.sim.benches.index import bench

    typer.echo(
        bench(
            endpoints or [100, 1000],
            keys=keys,
            prompt_keys=prompt_keys,
            prompts=prompts,
            as_json=as_json,
        )
    )


@bench.command("tokens")
def bench_tokens(
    folder: Annotated[
        Path, typer.Argument(help="A model's tokenizer.json, tokenizer_config.json and template.")
    ],
    *,
    requests: Annotated[int, typer.Option(min=5, max=100_000, help="Chats of each kind.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the text.")] = 1,
    as_json: AsJson = False,
) -> None:
    """What making the tokens of chats here costs in CPU.

    With the files of a model."""
    from epp.commands.tokens import bench

    typer.echo(bench(folder, requests=requests, seed=seed, as_json=as_json))


bench.command("store")(bench_store)
bench.command("follow")(bench_follow)


@bench.command("decide")
def bench_decide(
    *,
    endpoints: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=10_000, help="Endpoints of the pool; once for each size (default: five)."
        ),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=64, max=100_000, help="Tokens of each prompt.")
    ] = 8000,
    decisions: Annotated[
        int, typer.Option(min=20, max=100_000, help="Decisions of each size.")
    ] = 500,
    config_file: Annotated[
        Path | None, typer.Option(help="EndpointPickerConfig to decide by (default: our own).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What one decision costs the picker in CPU.

    By the number of endpoints."""
    from epp.commands.decide import SIZES, bench
    from epp.observe import logs

    logs.configure("error", "text")
    typer.echo(
        bench(
            endpoints or list(SIZES),
            prompt_tokens=prompt_tokens,
            decisions=decisions,
            config={} if config_file is None else {"config_file": config_file},
            as_json=as_json,
        )
    )


@bench.command("kube")
def bench_kube(
    *,
    pods: Annotated[int, typer.Option(min=1, max=100_000, help="Pods of the pool.")] = 10_000,
    changes: Annotated[float, typer.Option(min=0.1, max=10_000, help="Changes a second.")] = 50,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long to watch.")] = 20,
    as_json: AsJson = False,
) -> None:
    """What following a large pool in Kubernetes costs.

    And how soon a change counts."""
    from epp.commands.kube import bench, shown

    found = run(bench(pods=pods, changes_per_s=changes, seconds=seconds))
    typer.echo(shown(found, as_json=as_json))


@bench.command("sidecar")
def bench_sidecar(
    *,
    requests: Annotated[
        int, typer.Option(min=100, max=1_000_000, help="Plain requests of each way and round.")
    ] = 10_000,
    streams: Annotated[int, typer.Option(min=1, max=1000, help="Concurrent streams.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Interleaved rounds.")] = 3,
    run_dir: RunDir = None,
    as_json: AsJson = False,
) -> None:
    """What a sidecar costs in front of an engine.

    Beside nginx and the reference relay."""
    from epp.sim.benches.sidecar import BenchSettings, bench

    settings = BenchSettings(requests=requests, streams=streams, rounds=rounds, run_dir=run_dir)
    raise typer.Exit(run(bench(settings, as_json=as_json, rng=random.SystemRandom())))


@bench.command("origin", hidden=True)
def origin(
    *,
    port: Annotated[int, typer.Option(help="Port to answer on.")],
    gap: Annotated[float, typer.Option(help="Seconds between two events of a stream.")],
) -> None:
    """Run an engine that computes nothing."""
    from epp.sim.benches.origin import serve

    run(serve(port, gap))


@bench.command("fixed-picker", hidden=True)
def fixed_picker(
    *,
    grpc_port: Annotated[int, typer.Option(help="Port of ext_proc, plaintext.")],
    destination: Annotated[list[str], typer.Option(help="ip:port; several are taken in turn.")],
) -> None:
    """Run a picker that decides nothing: what ext_proc itself costs."""
    from epp.fixed import serve

    run(serve(grpc_port, destination))
