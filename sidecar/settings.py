"""What a sidecar is told by its user, checked before anything starts."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from epp.config.values import CollectorUrl, matching
from epp.framework import EngineNames, PoolId
from epp.framework.engines import BUILT_IN, DEFAULT, SETTINGS, described
from epp.framework.plugins import yaml_name
from epp.state.writing.publisher import Tempo

from .connectors import Connector, Ports
from .encoding.stage import EncodeConnector, EncodePolicy
from .transfer.steps import Fallback, HandoffPolicy
from .trust.settings import TlsSettings

Kind = Literal["own", "aiohttp"]
Port = Annotated[int, Field(ge=0, le=65_535)]
"""0 lets the system choose, for tests."""
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Bytes = Annotated[int, Field(ge=1, le=1 << 31)]

Name = Annotated[str, matching(r"[^|\s]{1,253}", "1 to 253 characters but '|' and spaces")]

_ZMQ = re.compile(r"tcp://\S+:(\d{1,5}|\*)|(ipc|inproc)://\S+")

STATE_SCHEMES = (
    "tcp",
    *(f"redis{tls}{kind}" for tls in ("", "s") for kind in ("", "+sentinel", "+cluster")),
)


class SidecarSettings(TlsSettings):
    """Everything that one sidecar needs to know. Immutable; unknown names are errors."""

    pool: Name
    """Pool of the engine, as the picker names it."""
    name: Name
    """Pod uid, or the name in the endpoint file (`namespace/name`)."""
    engine_url: str = "http://127.0.0.1:8200"
    """Base URL of the local engine: scheme, host and port, no path."""
    host: str | None = None
    """Address to listen on; None means every interface."""
    port: Port = 8000
    """Port of the proxy, which is also the port in the endpoint's identity."""
    metrics_port: Port = 9092
    """Port of `/metrics` and `/healthz`, on the same address."""

    engine_type: str = DEFAULT
    """Which metrics of the engine's page say what, and where it is: one of the built-in engines."""
    engine_metrics: tuple[str, ...] = ()
    """Other names of metrics, each `name=value` with a name of `core-metrics-extractor`, such as
    `queuedRequestsSpec=my_queue{state=waiting}`; an empty value takes a metric away."""

    model: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Served model name that block keys are seeded with; None asks the engine's `/v1/models`."""
    models_interval_s: Seconds = 10.0
    """Time between two looks at the engine's `/v1/models`, whose names become labels of metrics."""
    request_usage: bool = True
    """Ask the engine for the usage of streams whose clients did not, and keep it from them."""
    state_url: str = "tcp://127.0.0.1:9004"
    """Where state goes: `tcp://` a picker's state port, or `redis://` and its kin."""
    state_token: SecretStr | None = None
    """Shared secret of the picker's state port, or the password of a Redis."""
    state_password_file: Path | None = None
    """File with the password of a Redis, read again for every connection."""
    state_ca_file: Path | None = None
    """Certificates of who signs that of a `rediss://` server; None: whom the system trusts."""
    state_streams: Annotated[int, Field(ge=1, le=64)] = 1
    """Streams that the pool's log has in Redis; the pickers must be told the same."""
    kv_events: str | None = None
    """ZeroMQ endpoint of the engine's KV events; None publishes load only."""
    kv_events_bind: bool = False
    """Bind the endpoint and let the engine connect (vLLM connects to plain `tcp://127.0.0.1:…`)."""
    kv_replay: str | None = None
    """ZeroMQ endpoint of the engine's replays (vLLM's `replay_endpoint`); None: gaps forget."""
    dp_rank: Annotated[int, Field(ge=0, le=1023)] | None = None
    """Data parallel rank whose cache this is; its events come from the endpoints' ports plus it.
    None takes the rank that speaks first at those endpoints, and no other."""
    dp_size: Annotated[int, Field(ge=1, le=64)] = 1
    """Data parallel ranks of the pod. Each is an endpoint with a sidecar of its own, all in one
    process: the ports of rank r are those of rank 0, and r more; so are those of its engine."""
    dp_by_header: bool = False
    """One API server has all ranks: its port is the same, and a header names the rank."""
    salt_key_file: Path | None = None
    """File with the pool's key for cache salts, at least 32 bytes, the picker's too."""
    cache_namespace: Annotated[str, Field(max_length=1024)] = ""
    """What else makes KV of the same tokens another (revision, data type), the picker's too."""

    endpoints_file: Path | None = None
    """The picker's endpoints file: who belongs to the pool. None hands nothing over."""
    endpoints_interval_s: Seconds = 0.5
    """Time between two looks at that file, and at those of keys and certificates."""
    handoff_key_file: Path | None = None
    """File with the key under which the pickers seal their lists of pods, at least 32 bytes; two
    lines while it changes. None believes any list, as far as it names members of the pool."""
    leg_key_file: Path | None = None
    """File with the pool's key for prefill legs, at least 32 bytes; two lines while it changes."""
    leg_port: Port | None = None
    """Without a key: a port that takes prefill legs from members of the pool only."""
    prefill_timeout_s: Seconds = 120.0
    """From sending a prefill leg to the end of its answer."""
    stream_timeout_s: Seconds = 120.0
    """From sending a decode leg to its first byte, for a stream."""
    answer_timeout_s: Seconds = 900.0
    """The same for an answer in one piece."""
    drain_s: Seconds = 30.0
    """How long a decode leg may go on to its first byte for a client that has left."""
    kv_lease_s: Seconds = 30.0
    """How long prefill engines keep blocks (vLLM's `kv_lease_duration`)."""
    kv_lease_margin_s: Seconds = 5.0
    """Parameters are not sent when less than this is left of the lease."""
    prefill_retries: Annotated[int, Field(ge=0, le=1)] = 1
    """Further prefills after failures that may have pinned blocks."""
    compare_pairs: bool = True
    """Compare version, model, block size and data type of an engine with this one's before the
    first prompt goes there, as far as both tell."""
    warm_pairs: bool = False
    """Prefill and pull a few tokens with each member that prefills before its first prompt, so that
    no request waits for engines to shake hands. For the connector nixlv2."""
    breaker_failures: Annotated[int, Field(ge=1, le=1000)] = 3
    """Prefill legs that fail in a row until their pod is left out."""
    breaker_pause_s: Seconds = 1.0
    """For how long, at first; then one leg tries it, and each that fails doubles the pause."""
    breaker_max_pause_s: Seconds = 30.0
    on_prefill_failure: Fallback | None = None
    """When no target could prefill: compute here, or fail the request. None computes here, but for
    the connector sglang, whose engines compute no prompts in decode mode."""
    on_pull_failure: Fallback | None = None
    """When the KV could not be pulled and no byte was sent: likewise, and once."""
    connector: Connector = "nixlv2"
    """How the engines of the pool hand over KV, of all its pods alike."""
    ec_connector: EncodeConnector | None = None
    """How embeddings of images, audio and video get to who computes a prompt; None encodes nothing
    elsewhere, and takes no legs that ask for it."""
    encode_timeout_s: Seconds = 60.0
    """How long encoders have for all media of a request."""
    on_encode_failure: Fallback = Fallback.RECOMPUTE
    """When an item could not be encoded elsewhere: encode it with the prompt, or fail."""
    bootstrap_port: Annotated[int, Field(ge=1, le=65_535)] = 8998
    """Where prefill engines are met, with the connectors sglang and mooncake."""
    p2p_port: Annotated[int, Field(ge=1, le=65_535)] = 7777
    """Where engines fetch from each other, with the connector offloading."""

    flush_ms: Annotated[float, Field(ge=1, le=10_000)] = 20
    """Shortest time between two records."""
    heartbeat_ms: Annotated[float, Field(ge=10, le=60_000)] = 500
    """Longest time between two records; a picker calls a report stale after 2 s."""
    snapshot_s: Seconds = 20.0
    """Longest time between two snapshots, from which pickers and a restarted sidecar go on."""
    snapshot_timeout_s: Seconds = 10.0
    """How long the store may take for one of them, which may have megabytes."""
    append_timeout_s: Seconds = 2.0
    """How long the store may take for one record before it counts as away."""

    health_interval_s: Seconds = 1.0
    metrics_interval_s: Seconds = 0.25
    probe_timeout_s: Seconds = 2.0
    """Limit of one health check or scrape of the engine."""

    relay: Kind = "own"
    """What moves the bytes: our own relay, or the one on aiohttp that it is compared with."""
    max_connections: Annotated[int, Field(ge=1, le=1_000_000)] = 16_384
    """Connections of clients, idle ones and TLS handshakes too; one more is closed at once. Our own
    relay's."""
    head_timeout_s: Seconds = 60.0
    """A client that takes longer for the head of a request is given up. Our own relay's."""
    total_timeout_s: Seconds = 86_400.0
    """The longest that one exchange may take, however much moves."""
    connect_timeout_s: Seconds = 2.0
    idle_timeout_s: Seconds = 900.0
    """An exchange in which no byte moves either way for this long is given up."""
    upload_idle_s: Seconds = 60.0
    """A request body of which nothing comes for this long is given up with 408."""
    grace_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """After SIGTERM, how long answers in flight may take to end."""
    settle_s: Annotated[float, Field(ge=0, le=3600)] = 1.0
    """After SIGTERM, how long to keep accepting at least, until gateways have noticed."""

    max_body_bytes: Bytes = 64 << 20
    """Largest request body; a larger one is refused with 413."""
    max_held_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 30
    """Request bodies held at once, all together; more are refused with 503."""
    max_header_bytes: Bytes = 32 << 10
    """Largest request line or header field, either way."""
    max_headers: Annotated[int, Field(ge=8, le=10_000)] = 128
    """Most header fields in a message, either way."""
    max_in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = 4096
    """Exchanges at once; one more is refused with 503."""

    trace_endpoint: CollectorUrl | None = None
    """Where spans of handoffs go, in OTLP over HTTP, such as `http://collector:4318/v1/traces`.
    Needs the extra `otel`. None sends none."""
    trace_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Of the handoffs whose clients have no trace, how many begin one that is recorded, here and by
    the engines. A trace that is there already says it itself."""

    @property
    def pool_id(self) -> PoolId:
        return PoolId(self.pool)

    @property
    def engine_names(self) -> EngineNames:
        """Raises ValueError for names that cannot be read."""
        if self.engine_type not in BUILT_IN:
            raise ValueError(f"--engine-type must be one of {', '.join(sorted(BUILT_IN))}")
        known = {yaml_name(key): key for key in SETTINGS}
        settings: dict[str, str] = {}
        for text in self.engine_metrics:
            name, equals, value = text.partition("=")
            if not equals or name not in known:
                raise ValueError(
                    f"--engine-metrics is name=value, got {text!r}; names: {', '.join(known)}"
                )
            settings[known[name]] = value
        return described(BUILT_IN[self.engine_type], settings)

    @property
    def tempo(self) -> Tempo:
        """How often state is said."""
        return Tempo(
            flush_s=self.flush_ms / 1000,
            heartbeat_s=self.heartbeat_ms / 1000,
            snapshot_s=self.snapshot_s,
            snapshot_timeout_s=self.snapshot_timeout_s,
            append_timeout_s=self.append_timeout_s,
        )

    @property
    def handoff_policy(self) -> HandoffPolicy:
        """Raises ValueError where limits do not fit each other."""
        return HandoffPolicy(
            prefill_s=self.prefill_timeout_s,
            stream_s=self.stream_timeout_s,
            answer_s=self.answer_timeout_s,
            drain_s=self.drain_s,
            lease_s=self.kv_lease_s,
            margin_s=self.kv_lease_margin_s,
            prefill_retries=self.prefill_retries,
            on_prefill_failure=self.on_prefill_failure or self._fallback,
            on_pull_failure=self.on_pull_failure or self._fallback,
        )

    @property
    def encode_policy(self) -> EncodePolicy:
        return EncodePolicy(within_s=self.encode_timeout_s, on_failure=self.on_encode_failure)

    @property
    def _fallback(self) -> Fallback:
        return Fallback.FAIL if self.connector == "sglang" else Fallback.RECOMPUTE

    @property
    def ports(self) -> Ports:
        """Where engines of the pool listen for each other."""
        first = self.port - (self.dp_rank or 0) if self.dp_size > 1 else self.port
        return Ports(
            sidecar=first, ranks=self.dp_size, bootstrap=self.bootstrap_port, p2p=self.p2p_port
        )

    @property
    def header_rank(self) -> int | None:
        """The rank that requests to the engine name; None where they name none."""
        return self.dp_rank if self.dp_by_header else None

    @property
    def ranks(self) -> tuple[Self, ...]:
        """The settings of each sidecar of the pod: these, unless it has several ranks."""
        if self.dp_size == 1:
            return (self,)
        return tuple(self._of_rank(rank) for rank in range(self.dp_size))

    def _of_rank(self, rank: int) -> Self:
        url = urlsplit(self.engine_url)
        up = 0 if self.dp_by_header else rank
        port = (url.port or 80) + up
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        return self.model_copy(
            update={
                "dp_rank": rank,
                "port": self.port + rank if self.port else 0,
                "metrics_port": self.metrics_port + rank if self.metrics_port else 0,
                "engine_url": f"{url.scheme}://{host}:{port}",
            }
        )

    @model_validator(mode="after")
    def _handoff_is_possible(self) -> Self:
        if self.leg_key_file is not None and self.leg_port is not None:
            raise ValueError("--leg-key-file excludes --leg-port: legs prove one thing")
        if self.warm_pairs and (self.connector != "nixlv2" or self.endpoints_file is None):
            raise ValueError(
                "--warm-pairs needs --connector nixlv2, whose engines shake hands, and "
                "--endpoints-file, which says who prefills"
            )
        if self.leg_port is not None and self.endpoints_file is None:
            raise ValueError("--leg-port needs --endpoints-file: it serves members of the pool")
        _ = self.handoff_policy
        return self

    @model_validator(mode="after")
    def _ranks_have_ports(self) -> Self:
        ipc = [one for one in (self.kv_events, self.kv_replay) if one and one.startswith("ipc://")]
        if (self.dp_rank or self.dp_size > 1) and ipc:
            raise ValueError(f"ranks count ports up, and {ipc[0]} has none")
        if self.dp_size > 1 and self.dp_rank is not None:
            raise ValueError("--dp-size is for all ranks of a pod, --dp-rank for one of them")
        if self.dp_by_header and self.dp_size == 1 and self.dp_rank is None:
            raise ValueError("--dp-by-header names a rank: set --dp-size, or --dp-rank")
        if self.dp_size > 1 and self.leg_port is not None:
            raise ValueError("--leg-port is one port: ranks prove their legs by --leg-key-file")
        if max(self.port, self.metrics_port) + self.dp_size - 1 > 65_535:
            raise ValueError("there are no ports for all ranks")
        return self

    @model_validator(mode="after")
    def _engine_can_be_read(self) -> Self:
        _ = self.engine_names
        return self

    @field_validator("engine_url")
    @classmethod
    def _engine_is_http(cls, url: str) -> str:
        parts = urlsplit(url)
        if (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or parts.username is not None
        ):
            raise ValueError("must look like http://127.0.0.1:8200")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("must have no path: the request's own target is passed on unchanged")
        _ = parts.port  # raises ValueError when out of range
        return url.rstrip("/")

    @field_validator("state_url")
    @classmethod
    def _store_is_known(cls, url: str) -> str:
        if urlsplit(url).scheme not in STATE_SCHEMES:
            raise ValueError("must start with " + ", ".join(f"{s}://" for s in STATE_SCHEMES))
        return url

    @field_validator("kv_events", "kv_replay")
    @classmethod
    def _events_endpoint_is_known(cls, endpoint: str | None) -> str | None:
        if endpoint is None or _ZMQ.fullmatch(endpoint):
            return endpoint
        raise ValueError("expected tcp://host:port or ipc:///path")
