"""What a simulated engine is: its model of a machine, and where it listens."""

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from epp.sim.meetings import KvConnector

DEFAULT_CONTEXT_TOKENS = 16_384

LoadFailurePolicy = Literal["fail", "recompute"]
KvRole = Literal["producer", "consumer", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """The modelled machine. Raises ValueError when no engine could be like this."""

    block_tokens: int = 16
    """Tokens in one KV block, 1 to 4096."""
    num_blocks: int = 2048
    """KV blocks of the machine, running requests and cache together."""
    max_num_seqs: int = 16
    """Requests that run at once; more wait."""
    max_batched_tokens: int = 2048
    """Tokens computed in one step at most; longer prompts are computed in chunks."""
    max_waiting: int = 1024
    """Requests that wait at most; more are refused."""
    max_model_len: int | None = None
    """Context length in tokens; None takes what fits, at most `DEFAULT_CONTEXT_TOKENS`."""
    prefill_tokens_per_s: float = 20_000.0
    decode_step_s: float = 0.01
    """Seconds of a step with one sequence; prefill tokens come on top."""
    batch_growth: float = 0.02
    """Share of `decode_step_s` that every further sequence in the batch adds."""
    seed: int = 0
    """Seed of the answers: engines with equal seeds answer equally."""
    hash_seed: int = 0
    """Seed of the block hashes; engines that differ in it name the same block differently."""
    lease_s: float = 30.0
    """How long blocks stay pinned for a decode engine that does not pull them. A decode engine
    sends heartbeats every sixth of its own lease while a request waits for its pull."""
    pull_setup_s: float = 0.005
    """Seconds that every pull costs."""
    pull_tokens_per_s: float = 500_000.0
    """Speed of a pull; comes on top of `pull_setup_s`."""
    kv_bytes_per_token: int = 1024
    """Only counted."""
    kv_load_failure_policy: LoadFailurePolicy = "fail"
    """What happens to a request whose KV cannot be pulled: an error, or computing it here."""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "max_num_seqs", "max_waiting"):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        _require(1 <= self.block_tokens <= 4096, "block_tokens must be 1 to 4096")
        # One token each for all running sequences must fit, or decoding would starve.
        _require(
            self.max_batched_tokens >= self.max_num_seqs,
            "max_batched_tokens must be at least max_num_seqs",
        )
        for name in ("prefill_tokens_per_s", "decode_step_s", "lease_s", "pull_tokens_per_s"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, f"{name} must be positive")
        for name in ("batch_growth", "pull_setup_s", "kv_bytes_per_token"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, f"{name} must not be negative")
        _require(
            self.kv_load_failure_policy in get_args(LoadFailurePolicy),
            "kv_load_failure_policy must be fail or recompute",
        )
        if self.max_model_len is not None:
            _require(
                2 <= self.max_model_len <= self.num_blocks * self.block_tokens,
                "max_model_len must be at least 2 and fit into num_blocks * block_tokens",
            )
        _require(self.context_tokens >= 2, "num_blocks * block_tokens must be at least 2")
        for name in ("seed", "hash_seed"):
            _require(0 <= getattr(self, name) < 2**64, f"{name} must be an unsigned 64-bit number")

    @property
    def context_tokens(self) -> int:
        """Prompt and answer of one request together, at most."""
        if self.max_model_len is not None:
            return self.max_model_len
        return min(DEFAULT_CONTEXT_TOKENS, self.num_blocks * self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings(CoreSettings):
    """One engine process. Raises ValueError when a value cannot be used."""

    host: str = "127.0.0.1"
    """Address to listen on; the admin routes exist on loopback addresses only."""
    port: int = 8000
    """0 takes a free one."""
    name: str = "engine"
    """Answered in `x-inference-pod`."""
    model: str = "sim"
    loras: tuple[str, ...] = ()
    """Adapter names that are served as models of their own."""
    kv_events: str | None = None
    """ZMQ endpoint of the KV events, such as `tcp://127.0.0.1:5557` (port 0: a free one)."""
    kv_events_bind: bool = True
    """False connects instead: the subscriber then binds."""
    kv_replay: str | None = None
    """ZMQ endpoint where missed KV events can be asked for; needs `kv_events`."""
    kv_role: KvRole | None = None
    """Whether KV is handed over: None ignores `kv_transfer_params`. The roles are not enforced."""
    kv_connector: KvConnector = "nixlv2"
    """How it is handed over. Bootstrap servers of others are this engine's side channel."""
    kv_storage: Path | None = None
    """Directory of the connector shared-storage."""
    ec_role: KvRole | None = None
    """Whether embeddings of images, audio and video are handed over; None encodes all here."""
    ec_storage: Path | None = None
    """Directory in which engines share them; None: answers and requests tell where they are."""
    encode_s: float = 0.0
    """How long it takes to encode one item."""
    meet_s: float = 30.0
    """How long a decode engine waits for an offer under a name, before the request fails."""
    side_channel_host: str | None = None
    """Address where other engines pull from; None is `host`."""
    side_channel_port: int = 0
    """0 takes a free one."""
    advertise_host: str | None = None
    """`remote_host` in answers, where it is not `side_channel_host`."""
    handshake_s: float = 5.0
    """How long a pull from an engine that was never reached tries, before it fails."""
    usage_counts_remote_cache: bool = False
    """Report the prefill engine's cached tokens in the usage of a decode answer, as vLLM does when
    the parameters carry `remote_prefill_cached_tokens`. False reports this engine's own cache."""
    exit_when_dead: bool = False
    """End the process once the engine has died of a request, as vLLM does. False answers 500 to
    everything from then on."""
    max_body_bytes: int = 16 * 1024 * 1024
    grace_s: float = 1.0
    """How long running requests may go on once the engine has been told to stop."""

    def __post_init__(self) -> None:
        # Two arguments: slots make a new class, which the short form would not find.
        super(EngineSettings, self).__post_init__()
        for name in ("port", "side_channel_port"):
            _require(0 <= getattr(self, name) <= 65_535, f"{name} must be 0 to 65535")
        _require(bool(self.host), "host must not be empty")
        _require(bool(self.name) and self.name.isprintable(), "name must be printable")
        _require(bool(self.model), "model must not be empty")
        _require(
            all(self.loras) and len({self.model, *self.loras}) == 1 + len(self.loras),
            "loras must be distinct names, none of them the model's",
        )
        _require(self.kv_events is None or "://" in self.kv_events, "kv_events must be a ZMQ URL")
        _require(self.kv_replay is None or "://" in self.kv_replay, "kv_replay must be a ZMQ URL")
        _require(self.kv_replay is None or self.kv_events is not None, "kv_replay needs kv_events")
        _require(self.max_body_bytes >= 1024, "max_body_bytes must be at least 1024")
        _require(
            self.kv_role is None or self.kv_role in get_args(KvRole),
            "kv_role must be producer, consumer or both",
        )
        _require(
            self.kv_connector in get_args(KvConnector),
            f"kv_connector must be one of {', '.join(get_args(KvConnector))}",
        )
        _require(
            (self.kv_connector == "shared-storage") == (self.kv_storage is not None),
            "kv_storage is for the connector shared-storage, which needs it",
        )
        _require(
            self.ec_role is None or self.ec_role in get_args(KvRole),
            "ec_role must be producer, consumer or both",
        )
        for name in ("grace_s", "handshake_s", "meet_s", "encode_s"):
            value = getattr(self, name)
            _require(math.isfinite(value) and 0 <= value <= 600, f"{name} must be 0 to 600")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the port."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
