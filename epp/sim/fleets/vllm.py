"""Real engines for a local fleet: `vllm serve` on CPUs with a tiny model, from `.venv-vllm`.

What its flags and variables are for, where they do not say so themselves:

* `--block-size 32`: the attention on CPUs knows multiples of 32 only. 256 blocks keep memory small.
* A plain `tcp://127.0.0.1:…` is an address that vLLM connects to: the sidecar must bind it.
* No `engine_id` is set: a restarted engine with the same one fails all later handoffs.
* `UCX_*` and `GLOO_*` keep all traffic on loopback; NIXL then moves memory to memory over TCP.
* An engine with NIXL burns half a core when idle, so real fleets are small and end soon; each has
  CPUs of its own (see `affinity`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from epp.errors import LocalError
from epp.framework import Role

from .ports import HOST

MODEL = "tiny"
VENV = Path(".venv-vllm")
READY_S = 600.0
"""Two servers that start together took 90 to 270 s on two cores, by how busy those were."""
BLOCK_TOKENS = 32
BLOCKS = 256
CONTEXT_TOKENS = 2048

_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
_CPU = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
_LOOPBACK = {
    "VLLM_HOST_IP": HOST,
    "GLOO_SOCKET_IFNAME": "lo",
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp,self",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
}


@dataclass(frozen=True, slots=True)
class Vllm:
    """An environment in which vLLM runs."""

    venv: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def model(self) -> Path:
        """Every engine is given this very path: engines that hand over KV compare it."""
        return self.venv / "share" / MODEL

    def block_bytes(self) -> int:
        """Bytes of one KV block: keys and values of every layer and head, four bytes each."""
        config = json.loads((self.model / "config.json").read_text(encoding="utf-8"))
        heads = config["num_hidden_layers"] * config["num_key_value_heads"]
        return int(2 * heads * config["head_dim"] * 4 * BLOCK_TOKENS)


def find(venv: Path | None = None) -> Vllm:
    """vLLM's environment: the one given, or `.venv-vllm` here or beside our own sources.

    Raises LocalError that says how to get one.
    """
    beside = Path(__file__).parents[3] / VENV
    for place in (VENV, beside) if venv is None else (venv,):
        found = Vllm(place.absolute())
        if (found.venv / "bin" / "vllm").is_file() and (found.model / "config.json").is_file():
            return found
    wanted = VENV if venv is None else venv
    raise LocalError(
        f"real engines need {wanted}, which is missing or not complete: run `make setup-vllm` "
        "(vLLM for CPUs, 2 GB, a few minutes, once), or use --engine sim"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One `vllm serve`."""

    vllm: Vllm
    port: int
    role: Role = Role.UNLABELLED
    kv_events: str
    kv_replay: str
    side_channel_port: int
    lease_s: int
    """`kv_lease_duration`."""

    def command(self) -> tuple[str, ...]:
        flags = {
            "--served-model-name": MODEL,
            "--host": HOST,
            "--port": str(self.port),
            "--dtype": "float32",
            "--max-model-len": str(CONTEXT_TOKENS),
            "--max-num-seqs": "8",
            "--block-size": str(BLOCK_TOKENS),
            "--num-gpu-blocks-override": str(BLOCKS),
            "--seed": "0",
            "--distributed-executor-backend": "uni",
            "--kv-events-config": json.dumps(
                {
                    "enable_kv_cache_events": True,
                    "publisher": "zmq",
                    "endpoint": self.kv_events,
                    "replay_endpoint": self.kv_replay,
                }
            ),
        }
        if self.role in _ROLES:
            flags["--kv-transfer-config"] = json.dumps(
                {
                    "kv_connector": "NixlConnector",
                    "kv_role": _ROLES[self.role],
                    "kv_buffer_device": "cpu",
                    # "fail": the sidecar repeats a failed pull itself, where that is safe.
                    "kv_load_failure_policy": "fail",
                    "kv_connector_extra_config": {"kv_lease_duration": self.lease_s},
                }
            )
        switches = ("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details")
        words = [word for pair in flags.items() for word in pair]
        program = str(self.vllm.venv / "bin" / "vllm")
        return (str(self.vllm.python), program, "serve", str(self.vllm.model), *words, *switches)

    def env(self) -> Mapping[str, str]:
        # Block hashes depend on this seed in some versions; engines of one pool should agree.
        own = {"PYTHONHASHSEED": "0", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel_port)}
        return {**_CPU, **_LOOPBACK, **_OFFLINE, **own}
