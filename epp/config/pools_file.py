"""The pools file: several pools that one picker serves, read strictly. Pure.

    pools:
      - name: llama
        hosts: [llama.example.com]
        flags: {endpoints-file: llama.yaml, config-file: llama-config.yaml}
      - name: qwen
        hosts: ["*.qwen.example.com"]
        flags: {endpoint-selector: app=qwen, endpoint-target-ports: [8000]}

A pool takes the flags of the command line, with its own before them. Every fault is a ConfigError
with `file:line:column` and what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from . import located
from .located import Located
from .serve import ServeSettings, fault_of, flag_of
from .values import matching

MAX_POOLS = 64

OF_ONE_POOL = (
    "pool_namespace",
    "pool_group",
    "endpoints_file",
    "kubeconfig",
    "endpoint_selector",
    "endpoint_target_ports",
    "state_port",
    "redis_streams",
    "kv_events_port",
    "kv_replay_port",
    "kv_events_topic",
    "known_models",
    "decision_deadline_s",
    "max_endpoints",
    "config_file",
    "objectives_file",
    "mode",
    "tokenizer",
    "tokenizer_dir",
    "render_url",
    "salt_key_file",
    "cache_namespace",
    "handoff_key_file",
    "handoff_life_s",
    "split",
    "split_threshold_tokens",
    "prefill_candidates",
)
"""Settings that a pool may have for itself; the rest belongs to the process."""

_FIELDS = {flag_of(field)[2:]: field for field in OF_ONE_POOL}

Host = Annotated[
    str,
    StringConstraints(to_lower=True, max_length=253),
    matching(
        r"\*|(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*",
        "a name such as llama.example.com, *.example.com or *, without a port",
    ),
]


class PoolEntry(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[
        str, matching(r"[A-Za-z0-9._-]{1,253}", "1 to 253 letters, digits, '.', '_' and '-'")
    ]
    """`--pool-name`: in Kubernetes that of its InferencePool."""
    hosts: Annotated[list[Host], Field(max_length=64)] = Field(default_factory=list[Host])
    """Names under which clients reach it, `*.example.com` for all below one, `*` for the rest;
    none: the gateway says which pool it means."""
    flags: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Flags of `epp serve` without their dashes."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: Annotated[list[PoolEntry], Field(min_length=1, max_length=MAX_POOLS)]


@dataclass(frozen=True, slots=True)
class ServedPool:
    """A pool, and the names under which it is reached."""

    settings: ServeSettings
    hosts: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.settings.pool_name


def parse_pools(text: bytes, where: str, base: ServeSettings) -> tuple[ServedPool, ...]:
    """Read a file's text; `where` names it in errors. `base`: the command line's settings.

    Names, hosts and state ports are distinct. Raises ConfigError.
    """
    file = located.read(text, where, empty="is empty; it lists the pools that are served")
    common = base.model_dump(exclude_unset=True, exclude={"pools_file", "pool_name"})
    pools: list[ServedPool] = []
    seen: dict[tuple[str, object], int] = {}
    for number, entry in enumerate(located.checked(_File, file).pools):
        settings = _settings(file, number, entry, common)
        pools.append(ServedPool(settings, tuple(entry.hosts)))
        for what, value, path in _distinct(entry, settings):
            if (what, value) in seen:
                raise file.fault(
                    ("pools", number, *path),
                    f"has the same {what} as pool {seen[what, value] + 1}: {value}",
                )
            seen[what, value] = number
    return tuple(pools)


def _settings(
    file: Located, number: int, entry: PoolEntry, common: Mapping[str, Any]
) -> ServeSettings:
    own: dict[str, Any] = {}
    for flag, value in entry.flags.items():
        path = ("pools", number, "flags", flag)
        if flag not in _FIELDS:
            raise file.fault(path, _not_own(flag))
        own[_FIELDS[flag]] = value
    try:
        return ServeSettings.model_validate({**common, **own, "pool_name": entry.name})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        raise file.fault(("pools", number, "flags", flag_of(field)[2:]), fault_of(first)) from None


def _not_own(flag: str) -> str:
    if f"--{flag}" in map(flag_of, ServeSettings.model_fields):
        return f"--{flag} is of the whole picker: say it on the command line"
    return located.unknown("flag of a pool", flag, sorted(_FIELDS))


def _distinct(
    entry: PoolEntry, settings: ServeSettings
) -> list[tuple[str, object, tuple[str | int, ...]]]:
    """What no two pools may share: what it is, its value, and where it stands in the entry."""
    found: list[tuple[str, object, tuple[str | int, ...]]] = [("name", entry.name, ("name",))]
    found += [("host", host, ("hosts", at)) for at, host in enumerate(entry.hosts)]
    if settings.store == "memory" and settings.state_port:
        found.append(("state port", settings.state_port, ("flags", "state-port")))
    return found
