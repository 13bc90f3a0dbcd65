"""Settings of `epp serve`: one field a flag, with the reference's names where it has them."""

import ipaddress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from epp.errors import ConfigError

from .token import read_header_token, read_token
from .values import CollectorUrl, Env, Names, OptionalSize, Seconds, Size, matching

Port = Annotated[int, Field(ge=0, le=65535)]
Mode = Literal["normal", "load-only", "random", "shadow"]
LogLevel = Literal["debug", "info", "warning", "error"]
LEAST_REFRESH_S = 0.05

PoolName = matching(r"[A-Za-z0-9._/-]{1,253}", "1 to 253 letters, digits, '.', '_', '/' and '-'")
Namespace = matching(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
    "a namespace: at most 63 of a-z, 0-9 and '-', the first and the last a letter or digit",
)
ApiGroup = matching(r"[a-z0-9.-]{1,253}", "an API group: 1 to 253 of a-z, 0-9, '.' and '-'")
ServerUrl = matching(r"https?://[^/?#]+", "http:// or https:// with host and port, without a path")


def _at_least_50_ms(value: float) -> float:
    """The reference raises shorter intervals too, rather than refuse them."""
    return max(value, LEAST_REFRESH_S)


class ServeSettings(BaseModel):
    """What one picker replica needs to know. Ports may be 0 in tests: any free one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pool_name: Annotated[str, PoolName] = Field(
        "default",
        description="Name of the served pool, in Kubernetes that of its InferencePool; sidecars "
        "and replicas must say the same.",
    )
    pool_namespace: Annotated[str, Namespace, Env("NAMESPACE")] = Field(
        "default", description="Namespace of the pool."
    )
    pool_group: Annotated[str, ApiGroup] = Field(
        "inference.networking.k8s.io",
        description="API group of the InferencePool: this one (v1), or "
        "inference.networking.x-k8s.io (v1alpha2).",
    )
    pod_name: Annotated[str | None, Env("POD_NAME")] = Field(
        None, description="Name of this replica, for logs; its end begins the ids of decisions."
    )
    pools_file: Path | None = Field(
        None,
        description="YAML or JSON file of several pools that this one picker serves, each with the "
        "names under which clients reach it and with flags of its own; see docs/operations.md.",
    )
    endpoints_file: Path | None = Field(
        None,
        description="Watched YAML or JSON file that lists the endpoints. Without one, and without "
        "file-discovery in a configuration, Kubernetes is asked.",
    )
    kubeconfig: Path | None = Field(
        None,
        description="Kubeconfig of the cluster to ask; default: the one that we run in, by our "
        "service account.",
    )
    endpoint_selector: str | None = Field(
        None,
        description="Labels of the pods that are the pool, such as app=llama,tier=gpu, where there "
        "is no InferencePool; with --endpoint-target-ports.",
    )
    endpoint_target_ports: Names = Field(
        (), description="Ports of these pods, 1 to 8, each an endpoint."
    )
    host: str = Field("0.0.0.0", description="Address of the ext_proc, health and metrics ports.")  # noqa: S104 - a service listens on all addresses of its pod
    grpc_port: Port = Field(9002, description="ext_proc.")
    grpc_health_port: Port = Field(9003, description="grpc.health.v1, plaintext.")
    metrics_port: Port = Field(9090, description="Prometheus metrics.")
    admin_port: Port = Field(
        9091, description="Debug pages, the mode switch, and what would become of a request."
    )
    admin_host: str = Field("127.0.0.1", description="Address of the admin port; keep it loopback.")
    admin_token_file: Path | None = Field(
        None,
        description="File with the operator's token: a request with it in x-epp-admin-token is told"
        " its decision, and off loopback the admin port asks for it.",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes that decide, each with its own copy of the state, behind one set of "
        "ports. The system deals the gateway's connections out among them.",
    )
    secure_serving: bool = Field(True, description="TLS on the ext_proc port.")
    cert_path: Path | None = Field(
        None, description="Directory with tls.crt and tls.key; default: a self-signed certificate."
    )
    enable_cert_reload: bool = Field(
        False, description="Read the certificate again when its files change."
    )
    tls_min_version: str | None = Field(
        None, description="Oldest TLS version: VersionTLS12 (also without this) or VersionTLS13."
    )
    tls_cipher_suites: Names = Field(
        (), description="Suites that TLS 1.2 may use, by their IANA names; default: gRPC's."
    )
    grpc_max_recv_msg_size: OptionalSize = Field(
        None,
        gt=0,
        lt=2**31,
        description="Largest message from the gateway; default: 1MiB above --max-request-bytes.",
    )
    grpc_max_send_msg_size: OptionalSize = Field(
        None, gt=0, lt=2**31, description="Largest message to the gateway; default: no limit."
    )
    enable_grpc_stream_metrics: bool = Field(
        False, description="Also measure how long ext_proc streams last."
    )
    store: Literal["memory", "redis"] = Field(
        "memory", description="memory: sidecars stream to us, one replica only. redis: shared."
    )
    redis_url: Annotated[str | None, Env("EPP_REDIS_URL")] = Field(
        None,
        description="redis://[user:password@]host:port/db, rediss:// with TLS, redis+sentinel://"
        "host:port,host:port/service or redis+cluster://host:port,host:port; the variable keeps a "
        "password off the command line.",
    )
    redis_password_file: Path | None = Field(
        None, description="File with the password, read again for every connection."
    )
    redis_ca_file: Path | None = Field(
        None,
        description="Certificates of who signs that of a rediss:// server; default: the system's.",
    )
    redis_streams: int = Field(
        1,
        ge=1,
        le=64,
        description="Streams that the pool's log has, one for each 256 endpoints or so; sidecars "
        "must say the same.",
    )
    warm_timeout_s: Seconds = Field(
        10.0,
        ge=0,
        le=600,
        description="How long to stay unready at the start while what the log knows is read.",
    )
    state_host: str = Field("127.0.0.1", description="Address of the state port.")
    state_port: Port = Field(9004, description="Where sidecars stream state to (store memory).")
    state_token_file: Path | None = Field(
        None, description="File with the token that sidecars must show; required off loopback."
    )
    kv_events_port: Port = Field(
        0,
        description="TCP port where engines without a sidecar publish their KV events (vLLM: 5557);"
        " one elected replica follows them. 0: only where a pod or an entry names one.",
    )
    kv_replay_port: Port = Field(
        0,
        description="Where they say events again that were missed (vLLM's replay_endpoint). 0: "
        "nowhere; such an engine is only predicted after a gap, until its cache is emptied.",
    )
    kv_events_topic: str = Field(
        "",
        max_length=1024,
        description="How the topics of their events begin; others are left out. Default: all.",
    )
    decision_deadline_s: Seconds = Field(
        0.2, gt=0, le=10, description="Time for one decision; then load alone decides."
    )
    max_request_bytes: Size = Field(
        10 * 2**20, gt=0, description="Largest request body; a larger one gets 413."
    )
    max_total_bytes: Size = Field(
        512 * 2**20, gt=0, description="Bytes of request bodies held at once by this replica."
    )
    max_endpoints: int = Field(
        1, ge=1, le=16, description="Length of the fallback list in the destination header."
    )
    emit_endpoint_scores: bool = Field(
        False, description="Tell the gateway the score of every candidate, as dynamic metadata."
    )
    disable_endpoint_subset_filter: bool = Field(
        False, description="Choose among all endpoints, whatever subset the gateway names."
    )
    known_models: Names = Field(
        (), description="Models that are served; others get 404. Default: any name is passed on."
    )
    refresh_metrics_interval_s: Annotated[Seconds, AfterValidator(_at_least_50_ms)] = Field(
        0.25,
        gt=0,
        le=60,
        description="Time between two scrapes of an engine without a sidecar; at least 50ms.",
    )
    metrics_staleness_threshold_s: Seconds = Field(
        2.0, gt=0, le=3600, description="Age at which an engine's load report says nothing."
    )
    conformance: bool = Field(
        False, description="Let test headers choose endpoints; for conformance tests only."
    )
    config_file: Path | None = Field(
        None, description="EndpointPickerConfig in YAML or JSON, followed; see docs/scheduling.md."
    )
    config_text: str | None = Field(
        None, description="The same as text; not with --config-file. Default: our own profiles."
    )
    allow_experimental_plugins: bool = Field(
        False, description="Plugins of stability alpha may be configured."
    )
    objectives_file: Path | None = Field(
        None,
        description="InferenceObjectives and InferenceModelRewrites in YAML or JSON, followed; see "
        "docs/scheduling.md.",
    )
    mode: Mode = Field(
        "normal",
        description="Break-glass: load-only, random. shadow: decide and count, but let the gateway "
        "balance by itself. Also a live switch.",
    )
    tokenizer: Literal["local", "engine", "estimate"] = Field(
        "engine",
        description="engine: exact tokens from the engines: from their render endpoints, else from "
        "/tokenize. local: made here from --tokenizer-dir, engines are asked where that does not "
        "do. estimate: bytes.",
    )
    tokenizer_dir: Path | None = Field(
        None,
        description="Directory with a folder for each served model: tokenizer.json, "
        "tokenizer_config.json, chat_template.jinja; files at its top serve every other model.",
    )
    render_url: Annotated[str, ServerUrl] | None = Field(
        None,
        description="URL of a server that renders requests as the engines do (vllm launch render). "
        "It is asked instead of their render endpoints, and for requests with images, too.",
    )
    salt_key_file: Path | None = Field(
        None,
        description="File with the pool's key for cache salts, at least 32 bytes, the sidecars' "
        "too. Without one salts are hashed under the pool's name, which whoever reads the store "
        "may know, too.",
    )
    cache_namespace: str = Field(
        "",
        max_length=1024,
        description="What else makes KV of the same tokens another (revision, data type), the "
        "sidecars' too.",
    )
    tier_speed: Names = Field(
        (),
        description="How many tokens an engine loads in a second from a slower tier of its KV "
        "cache, such as CPU=200000,DISK=20000; by the names in its events. Of others it is learnt.",
    )
    handoff_key_file: Path | None = Field(
        None,
        description="File with the key under which x-epp-handoff seals the lists of pods that "
        "sidecars are told, at least 32 bytes, theirs too; two lines while it changes, followed.",
    )
    handoff_life_s: Seconds = Field(
        60.0,
        ge=1,
        le=86_400,
        description="How long such a seal holds: 60s and the longest time that the gateway's route "
        "lets a request wait.",
    )
    split: Literal["prefix", "cost", "always", "never"] = Field(
        "prefix",
        description="Which prompts endpoints with a prefill role compute for others. prefix: those "
        "of which the chosen endpoint lacks --split-threshold-tokens. cost: those that cost fewer "
        "seconds there, by both endpoints' load.",
    )
    split_threshold_tokens: int = Field(
        512,
        ge=1,
        description="Uncached tokens that are worth a handoff; fewer fit into one step of an "
        "engine beside running answers.",
    )
    prefill_candidates: int = Field(
        2, ge=1, le=4, description="Prefill endpoints named in x-prefiller-host-port, best first."
    )
    drain_timeout_s: Seconds = Field(
        30.0, ge=0, description="How long live streams may go on after SIGTERM."
    )
    trace_endpoint: CollectorUrl | None = Field(
        None,
        description="Where a span of each request and one of its decision go, in OTLP over HTTP, "
        "such as http://collector:4318/v1/traces; needs the extra otel. Default: nowhere.",
    )
    trace_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Of the requests that come without a trace, how many begin one that is "
        "recorded. A trace that is there already says it itself.",
    )
    log_level: LogLevel = Field("info", description="Log level.")
    log_format: Literal["json", "text"] = Field("json", description="Log format.")

    @model_validator(mode="after")
    def _consistent(self) -> "ServeSettings":
        if self.store == "redis" and not self.redis_url:
            raise ValueError("--store redis needs --redis-url")
        exposed = self.store == "memory" and not is_loopback(self.state_host)
        if exposed and not self.state_token_file:
            raise ValueError("a state port off loopback needs --state-token-file")
        if not is_loopback(self.admin_host) and not self.admin_token_file:
            raise ValueError("an admin port off loopback needs --admin-token-file")
        if self.pools_file is not None and self.workers > 1:
            raise ValueError("--pools-file and --workers exclude each other: add replicas instead")
        if self.config_file is not None and self.config_text is not None:
            raise ValueError("--config-file and --config-text exclude each other")
        configured = self.config_file is not None or self.config_text is not None
        if (self.endpoint_selector is None) != (not self.endpoint_target_ports):
            raise ValueError("--endpoint-selector and --endpoint-target-ports need each other")
        asked = self.kubeconfig is not None or self.endpoint_selector is not None
        if self.endpoints_file is not None and asked:
            raise ValueError(
                "--endpoints-file says which endpoints there are: leave --kubeconfig and "
                "--endpoint-selector out"
            )
        if configured and (self.split, self.split_threshold_tokens) != ("prefix", 512):
            raise ValueError(
                "--split and --split-threshold-tokens shape the default profiles: a configuration "
                "says the same by its profile handler and decider"
            )
        if (self.tokenizer == "local") != (self.tokenizer_dir is not None):
            raise ValueError("--tokenizer local and --tokenizer-dir need each other")
        self.tier_speeds()
        if self.tokenizer == "estimate" and self.render_url is not None:
            raise ValueError("--tokenizer estimate asks nobody: leave --render-url out")
        if self.metrics_staleness_threshold_s <= self.refresh_metrics_interval_s:
            raise ValueError(
                "--metrics-staleness-threshold must be longer than --refresh-metrics-interval, "
                "or every report is stale"
            )
        return self

    def tier_speeds(self) -> dict[str, float]:
        """`tier_speed` by tier. Raises ValueError for what is none of these."""
        speeds: dict[str, float] = {}
        for one in self.tier_speed:
            name, _, speed = one.partition("=")
            if not (name and speed.isascii() and speed.isdecimal() and int(speed)):
                raise ValueError(
                    f"--tier-speed takes tiers and tokens, such as CPU=200000, not {one}"
                )
            speeds[name.upper()] = float(speed)
        return speeds

    def state_token(self) -> str | None:
        """The token in `state_token_file`, None without one. Raises ConfigError if unreadable."""
        if self.state_token_file is None:
            return None
        return read_token(self.state_token_file)

    def admin_token(self) -> str | None:
        """The token in `admin_token_file`, None without one. Raises ConfigError."""
        return None if self.admin_token_file is None else read_header_token(self.admin_token_file)


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def serve_settings(values: dict[str, object]) -> ServeSettings:
    """Build settings from flag values; None means the default. Raises ConfigError, all faults."""
    try:
        return ServeSettings.model_validate({k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise ConfigError("", "; ".join(fault_of(entry) for entry in error.errors())) from None


def flag_of(field: str) -> str:
    """The flag of a setting: units are part of a value there, not of a name."""
    return "--" + field.removesuffix("_s").replace("_", "-")


def fault_of(entry: object) -> str:
    """A sentence for one of a ValidationError's `errors`."""
    assert isinstance(entry, dict)
    if not entry["loc"]:
        return str(entry["msg"]).removeprefix("Value error, ")
    flag = flag_of(str(entry["loc"][0]))
    message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{flag}: {message}, got {entry['input']!r}"
