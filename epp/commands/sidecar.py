"""`epp sidecar`: a flag for each field of its settings, which say more of each."""

# ruff: noqa: PLC0415 - imports wait for the command that needs them

from pathlib import Path
from typing import Annotated

import typer

from epp.config.token import read_token

from .flags import ConnectorKind, EncodeKind, Format, Level, OnFailure, RelayKind, checked
from .flags import run as run_coroutine


def sidecar(
    *,
    pool_name: Annotated[str, typer.Option(help="Pool of the engine, as the picker names it.")],
    name: Annotated[str, typer.Option(help="Pod uid, or namespace/name as in the endpoints file.")],
    engine_url: Annotated[
        str, typer.Option(help="Base URL of the local engine.")
    ] = "http://127.0.0.1:8200",
    engine_type: Annotated[
        str, typer.Option(help="By whose names the engine's metrics are read: sglang, …")
    ] = "vllm",
    engine_metrics: Annotated[
        list[str] | None,
        typer.Option(help="Another name, such as queuedRequestsSpec=my_queue; as often as needed."),
    ] = None,
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
    state_password_file: Annotated[
        Path | None, typer.Option(help="File with a Redis password, read for every connection.")
    ] = None,
    state_ca_file: Annotated[
        Path | None, typer.Option(help="Certificates of who signs that of a rediss:// server.")
    ] = None,
    state_streams: Annotated[
        int, typer.Option(help="Streams of the pool's log in Redis; pickers must say the same.")
    ] = 1,
    kv_events: Annotated[
        str | None, typer.Option(help="ZeroMQ endpoint of the engine's KV events.")
    ] = None,
    kv_events_bind: Annotated[
        bool, typer.Option("--kv-events-bind", help="Bind it, and let the engine connect.")
    ] = False,
    kv_replay: Annotated[
        str | None, typer.Option(help="ZeroMQ endpoint that says KV events again after a gap.")
    ] = None,
    dp_rank: Annotated[
        int | None, typer.Option(help="Data parallel rank of this endpoint; ports count up by it.")
    ] = None,
    dp_size: Annotated[
        int,
        typer.Option(help="Data parallel ranks of the pod; a sidecar for each, ports count up."),
    ] = 1,
    dp_by_header: Annotated[
        bool,
        typer.Option(
            "--dp-by-header", help="One engine port serves all ranks: a header names them."
        ),
    ] = False,
    salt_key_file: Annotated[
        Path | None, typer.Option(help="The pool's key for cache salts; the picker's too.")
    ] = None,
    cache_namespace: Annotated[
        str, typer.Option(help="What else makes KV of the same tokens another; the picker's too.")
    ] = "",
    endpoints_file: Annotated[
        Path | None,
        typer.Option(help="The picker's endpoints file: who belongs to the pool."),
    ] = None,
    handoff_key_file: Annotated[
        Path | None,
        typer.Option(help="The pickers' key for their lists of pods; two lines while it changes."),
    ] = None,
    leg_key_file: Annotated[
        Path | None,
        typer.Option(help="The pool's key for prefill legs; two lines while it changes."),
    ] = None,
    leg_port: Annotated[
        int | None, typer.Option(help="Without a key: takes prefill legs from members only.")
    ] = None,
    connector: Annotated[
        ConnectorKind, typer.Option(help="How the pool's engines hand over KV, all alike.")
    ] = "nixlv2",
    ec_connector: Annotated[
        EncodeKind | None,
        typer.Option(help="How embeddings get to who computes a prompt; none encodes locally."),
    ] = None,
    encode_timeout: Annotated[
        float, typer.Option(help="Seconds that encoders have for all media of a request.")
    ] = 60.0,
    on_encode_failure: Annotated[
        OnFailure, typer.Option(help="When others cannot encode: do it with the prompt, or fail.")
    ] = "recompute",
    bootstrap_port: Annotated[
        int, typer.Option(help="Where prefill engines are met (sglang, mooncake).")
    ] = 8998,
    p2p_port: Annotated[
        int, typer.Option(help="Where engines fetch from each other (offloading).")
    ] = 7777,
    compare_pairs: Annotated[
        bool, typer.Option(help="Compare a prefill engine with this one before its first prompt.")
    ] = True,
    warm_pairs: Annotated[
        bool, typer.Option("--warm-pairs", help="Let engines shake hands before a first prompt.")
    ] = False,
    breaker_failures: Annotated[
        int, typer.Option(help="Prefill legs that fail in a row until their pod is left out.")
    ] = 3,
    breaker_pause: Annotated[
        float, typer.Option(help="Seconds until one leg tries it again; doubled each time.")
    ] = 1.0,
    breaker_max_pause: Annotated[float, typer.Option(help="The longest such pause.")] = 30.0,
    tls_cert_file: Annotated[
        Path | None, typer.Option(help="Certificate chain; the ports then speak TLS only.")
    ] = None,
    tls_key_file: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    tls_client_ca_file: Annotated[
        Path | None, typer.Option(help="Who signs the certificates that clients must show.")
    ] = None,
    engine_tls_ca_file: Annotated[
        Path | None, typer.Option(help="Who signs that of an https engine (default: the system's).")
    ] = None,
    engine_tls_cert_file: Annotated[
        Path | None, typer.Option(help="Certificate chain that the engine is shown.")
    ] = None,
    engine_tls_key_file: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    engine_tls_name: Annotated[
        str | None, typer.Option(help="Name in the engine's certificate (default: the URL's host).")
    ] = None,
    engine_tls_insecure: Annotated[
        bool, typer.Option("--engine-tls-insecure", help="Believe whoever answers as the engine.")
    ] = False,
    leg_tls: Annotated[
        bool, typer.Option("--leg-tls", help="Speak TLS to other sidecars.")
    ] = False,
    leg_tls_ca_file: Annotated[
        Path | None, typer.Option(help="Who signs their certificates (default: the system's).")
    ] = None,
    leg_tls_cert_file: Annotated[
        Path | None, typer.Option(help="Certificate chain that they are shown.")
    ] = None,
    leg_tls_key_file: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    leg_tls_name: Annotated[
        str | None, typer.Option(help="Name in all their certificates (default: each its address).")
    ] = None,
    leg_tls_insecure: Annotated[
        bool, typer.Option("--leg-tls-insecure", help="Believe whoever answers as a sidecar.")
    ] = False,
    on_prefill_failure: Annotated[
        OnFailure | None,
        typer.Option(
            help="When no target could prefill: compute here, or fail (default with sglang)."
        ),
    ] = None,
    on_pull_failure: Annotated[
        OnFailure | None,
        typer.Option(
            help="When the KV could not be pulled: compute here, or fail (default with sglang)."
        ),
    ] = None,
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
    request_usage: Annotated[
        bool, typer.Option(help="Ask for the usage of streams whose clients did not, and hide it.")
    ] = True,
    relay: Annotated[
        RelayKind, typer.Option(help="What moves the bytes: our own, or the reference on aiohttp.")
    ] = "own",
    max_connections: Annotated[
        int,
        typer.Option(help="Connections of clients, idle ones and handshakes too; our own relay's."),
    ] = 16_384,
    head_timeout: Annotated[
        float, typer.Option(help="Seconds that a client may take for a request's head.")
    ] = 60.0,
    total_timeout: Annotated[
        float, typer.Option(help="Seconds that one exchange may take, however much moves.")
    ] = 86_400.0,
    flush_ms: Annotated[float, typer.Option(help="Shortest time between two records.")] = 20,
    settle: Annotated[
        float, typer.Option(help="Seconds to go on accepting requests after SIGTERM.")
    ] = 1.0,
    grace: Annotated[
        float, typer.Option(help="Seconds that answers in flight have after SIGTERM.")
    ] = 30.0,
    trace_endpoint: Annotated[
        str | None,
        typer.Option(help="Where spans go, such as http://collector:4318/v1/traces (extra otel)."),
    ] = None,
    trace_share: Annotated[
        float, typer.Option(help="Share of handoffs without a trace that begin a recorded one.")
    ] = 0.1,
    log_level: Level = "info",
    log_format: Format = "json",
) -> None:
    """Relay the requests of one engine, and publish its state.

    Lengths of time are numbers of seconds, but --flush-ms."""
    from epp.observe import logs
    from sidecar.app import run
    from sidecar.settings import SidecarSettings

    values: dict[str, object] = {
        "pool": pool_name,
        "name": name,
        "engine_url": engine_url,
        "engine_type": engine_type,
        "engine_metrics": tuple(engine_metrics or ()),
        "host": host,
        "port": port,
        "metrics_port": metrics_port,
        "model": model,
        "state_url": state_url,
        "state_token": None if state_token_file is None else read_token(state_token_file),
        "state_password_file": state_password_file,
        "state_ca_file": state_ca_file,
        "state_streams": state_streams,
        "kv_events": kv_events,
        "kv_events_bind": kv_events_bind,
        "kv_replay": kv_replay,
        "dp_rank": dp_rank,
        "dp_size": dp_size,
        "dp_by_header": dp_by_header,
        "salt_key_file": salt_key_file,
        "cache_namespace": cache_namespace,
        "endpoints_file": endpoints_file,
        "handoff_key_file": handoff_key_file,
        "leg_key_file": leg_key_file,
        "leg_port": leg_port,
        "connector": connector,
        "ec_connector": ec_connector,
        "encode_timeout_s": encode_timeout,
        "on_encode_failure": on_encode_failure,
        "bootstrap_port": bootstrap_port,
        "p2p_port": p2p_port,
        "compare_pairs": compare_pairs,
        "warm_pairs": warm_pairs,
        "breaker_failures": breaker_failures,
        "breaker_pause_s": breaker_pause,
        "breaker_max_pause_s": breaker_max_pause,
        "tls_cert_file": tls_cert_file,
        "tls_key_file": tls_key_file,
        "tls_client_ca_file": tls_client_ca_file,
        "engine_tls_ca_file": engine_tls_ca_file,
        "engine_tls_cert_file": engine_tls_cert_file,
        "engine_tls_key_file": engine_tls_key_file,
        "engine_tls_name": engine_tls_name,
        "engine_tls_insecure": engine_tls_insecure,
        "leg_tls": leg_tls,
        "leg_tls_ca_file": leg_tls_ca_file,
        "leg_tls_cert_file": leg_tls_cert_file,
        "leg_tls_key_file": leg_tls_key_file,
        "leg_tls_name": leg_tls_name,
        "leg_tls_insecure": leg_tls_insecure,
        "on_prefill_failure": on_prefill_failure,
        "on_pull_failure": on_pull_failure,
        "prefill_timeout_s": prefill_timeout,
        "stream_timeout_s": stream_timeout,
        "answer_timeout_s": answer_timeout,
        "kv_lease_s": kv_lease,
        "kv_lease_margin_s": kv_lease_margin,
        "request_usage": request_usage,
        "relay": relay,
        "max_connections": max_connections,
        "head_timeout_s": head_timeout,
        "total_timeout_s": total_timeout,
        "flush_ms": flush_ms,
        "settle_s": settle,
        "grace_s": grace,
        "trace_endpoint": trace_endpoint,
        "trace_share": trace_share,
    }
    settings = checked(lambda: SidecarSettings.model_validate(values))
    logs.configure(log_level, log_format)
    run_coroutine(run(settings))
