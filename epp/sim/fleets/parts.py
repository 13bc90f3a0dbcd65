"""The programs of a fleet: for each part its command, its files, and when it is ready."""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from epp.framework import Role
from epp.sim.gateway.envoy import EnvoySettings, command, render

from . import affinity, probes, vllm
from .binaries import find_envoy, find_redis
from .ports import HOST, Ports
from .roster import EngineKind, Member, roster
from .supervisor import Part

Store = Literal["memory", "redis"]
Gateway = Literal["standalone", "full-duplex"]
Split = Literal["prefix", "cost", "always", "never"]

POOL = "local"
SIM_MODEL = "sim"
LEASE_S = {"sim": 30, "vllm": 120}
"""How long blocks are kept for a pull. Real engines that share two cores with others' work have
starved each other for half a minute, and a pull after the lease may read another prompt's KV."""
_KV_ROLES = {Role.PREFILL: "producer", Role.DECODE: "consumer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What a fleet consists of: plain engines, or some that prefill and some that decode."""

    engines: int = 0
    prefill: int = 0
    decode: int = 0
    ports: Ports
    kind: EngineKind = "sim"
    split: Split = "prefix"
    store: Store = "memory"
    envoy: Gateway = "standalone"
    tls: bool = True
    """Between Envoy and the picker."""
    run_dir: Path | None = None
    """For logs and configuration; None: a new directory of its own."""
    engine_flags: tuple[str, ...] = ()
    """More flags of `epp local engine`, the same for all."""
    engine_env: Mapping[str, str] = field(default_factory=dict[str, str])
    """More variables of every engine."""
    vllm_venv: Path | None = None
    """Where vLLM is installed; None: `.venv-vllm`."""

    @property
    def members(self) -> tuple[Member, ...]:
        """In the order of their ports. Raises LocalError when the numbers do not fit together."""
        return roster(self.engines, self.prefill, self.decode)

    @property
    def model(self) -> str:
        """Served name."""
        return SIM_MODEL if self.kind == "sim" else vllm.MODEL


OWN_ENV = {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Parts:
    """Builds each part of one fleet. `run_dir` takes configuration, keys and copied programs."""

    settings: FleetSettings
    run_dir: Path

    def waves(self) -> list[list[Part]]:
        """Every part but Redis, in groups of which each is ready before the next one starts.

        Real engines keep all cores busy for a minute, so they come after the rest. Raises
        LocalError for programs that are missing.
        """
        members = range(len(self.settings.members))
        engines = [self.engine(index) for index in members]
        ours = [self.picker(), *(self.sidecar(index) for index in members), self.envoy()]
        return [engines + ours] if self.settings.kind == "sim" else [ours, engines]

    def write_files(self) -> None:
        """What parts read when they start: the endpoints, and the key of prefill legs."""
        entries: list[dict[str, object]] = []
        for member, port in zip(self.settings.members, self.settings.ports.sidecars, strict=True):
            entry: dict[str, object] = {"name": member.name, "address": HOST, "port": port}
            if member.role is not Role.UNLABELLED:
                entry["labels"] = {"llm-d.ai/role": member.role.value}
            entries.append(entry)
        text = json.dumps({"endpoints": entries}, indent=1)
        self.endpoints_file.write_text(text + "\n", encoding="utf-8")
        self.leg_key_file.unlink(missing_ok=True)
        with open(
            os.open(self.leg_key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w"
        ) as f:
            f.write(secrets.token_hex(32) + "\n")

    @property
    def endpoints_file(self) -> Path:
        return self.run_dir / "endpoints.json"

    @property
    def leg_key_file(self) -> Path:
        return self.run_dir / "leg.key"

    @property
    def scratch(self) -> Path:
        return self.run_dir / "bin"

    def redis(self) -> Part:
        port = self.settings.ports.redis
        options = {
            "--port": str(port),
            "--bind": HOST,
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self.run_dir),
        }
        binary = str(find_redis(self.scratch))
        flags = [word for pair in options.items() for word in pair]
        return Part(
            name="redis",
            command=(binary, *flags),
            address=f"redis://{HOST}:{port}/0",
            probe=probes.redis(port),
        )

    def picker(self) -> Part:
        settings, ports = self.settings, self.settings.ports
        flags = [
            *("--host", HOST, "--pool-name", POOL),
            *("--endpoints-file", str(self.endpoints_file), "--split", settings.split),
            *("--grpc-port", str(ports.grpc), "--grpc-health-port", str(ports.health)),
            *("--metrics-port", str(ports.metrics), "--admin-port", str(ports.admin)),
            *("--state-port", str(ports.state), "--store", settings.store),
            *("--drain-timeout", "2", "--log-format", "text"),
            "--secure-serving" if settings.tls else "--no-secure-serving",
        ]
        if settings.store == "redis":
            flags += ["--redis-url", self._state_url]
        return Part(
            name="epp",
            command=own_command("serve", *flags),
            address=f"{HOST}:{ports.grpc}",
            probe=probes.http(ports.admin, "/healthz"),
            env=OWN_ENV,
        )

    def engine(self, index: int) -> Part:
        return self._simulated(index) if self.settings.kind == "sim" else self._real(index)

    def _simulated(self, index: int) -> Part:
        ports, member = self.settings.ports, self.settings.members[index]
        port = ports.engines[index]
        flags = [
            *("--host", HOST, "--port", str(port), "--model", SIM_MODEL),
            *("--name", member.name, "--kv-events", self._kv_events(index)),
            *("--kv-replay", self._kv_replay(index), "--hash-seed", str(index + 1)),
        ]
        if member.role in _KV_ROLES:
            flags += ["--kv-role", _KV_ROLES[member.role], "--lease", str(LEASE_S["sim"])]
            flags += ["--side-channel-port", str(ports.side_channels[index])]
        return Part(
            name=member.name,
            command=own_command("local", "engine", *flags, *self.settings.engine_flags),
            address=f"http://{HOST}:{port}",
            probe=probes.http(port, "/health"),
            env={**OWN_ENV, **self.settings.engine_env},
        )

    def _real(self, index: int) -> Part:
        ports, member = self.settings.ports, self.settings.members[index]
        server = vllm.Server(
            vllm=self._vllm,
            port=ports.engines[index],
            role=member.role,
            kv_events=self._kv_events(index),
            kv_replay=self._kv_replay(index),
            side_channel_port=ports.side_channels[index],
            lease_s=LEASE_S["vllm"],
        )
        return Part(
            name=member.name,
            command=server.command(),
            address=f"http://{HOST}:{server.port}",
            probe=probes.http(server.port, "/health"),
            env={**server.env(), **self.settings.engine_env},
            ready_s=vllm.READY_S,
            starts_others=True,
            cpus=affinity.share(index, len(self.settings.members)),
        )

    @cached_property
    def _vllm(self) -> vllm.Vllm:
        return vllm.find(self.settings.vllm_venv)

    def sidecar(self, index: int) -> Part:
        ports, member = self.settings.ports, self.settings.members[index]
        engine = f"http://{HOST}:{ports.engines[index]}"
        flags = [
            *("--host", HOST, "--port", str(ports.sidecars[index])),
            *("--metrics-port", str(ports.sidecar_metrics[index])),
            *("--pool-name", POOL, "--name", f"default/{member.name}"),
            *("--engine-url", engine, "--state-url", self._state_url),
            *("--kv-events", self._kv_events(index), "--kv-replay", self._kv_replay(index)),
            *("--settle", "0", "--grace", "2", "--log-format", "text"),
        ]
        if self.settings.kind == "vllm":
            flags += ["--kv-events-bind"]
        if member.role is not Role.UNLABELLED:
            flags += ["--endpoints-file", str(self.endpoints_file)]
            flags += [
                "--leg-key-file",
                str(self.leg_key_file),
                "--kv-lease",
                str(LEASE_S[self.settings.kind]),
            ]
        return Part(
            name=member.sidecar,
            command=own_command("sidecar", *flags),
            address=f"http://{HOST}:{ports.sidecars[index]}",
            probe=probes.http(ports.sidecar_metrics[index], "/healthz"),
            env=OWN_ENV,
        )

    def envoy(self) -> Part:
        settings, ports = self.settings, self.settings.ports
        servers = [
            f"{HOST}:{port}"
            for member, port in zip(settings.members, ports.sidecars, strict=True)
            if member.role is not Role.PREFILL
        ]
        config = EnvoySettings(
            listen_port=ports.gateway,
            admin_port=ports.envoy_admin,
            ext_proc_port=ports.grpc,
            endpoints=servers,
            tls=settings.tls,
            shape=settings.envoy,
        )
        return envoy_part("envoy", config, self.run_dir, self.scratch)

    def _kv_replay(self, index: int) -> str:
        return f"tcp://{HOST}:{self.settings.ports.kv_replays[index]}"

    def _kv_events(self, index: int) -> str:
        return f"tcp://{HOST}:{self.settings.ports.kv_events[index]}"

    @property
    def _state_url(self) -> str:
        ports = self.settings.ports
        if self.settings.store == "redis":
            return f"redis://{HOST}:{ports.redis}/0"
        return f"tcp://{HOST}:{ports.state}"


def own_command(*arguments: str) -> tuple[str, ...]:
    """A command of ours, run by this very interpreter; the working directory is not searched."""
    return (sys.executable, "-P", "-m", "epp.cli", *arguments)


def envoy_part(name: str, config: EnvoySettings, run_dir: Path, scratch: Path) -> Part:
    """An Envoy with this bootstrap, written to `run_dir`. Raises LocalError without a binary."""
    path = run_dir / f"{name}.json"
    path.write_text(render(config), encoding="utf-8")
    return Part(
        name=name,
        command=tuple(command(find_envoy(scratch), path)),
        address=f"http://{HOST}:{config.listen_port}",
        probe=probes.http(config.admin_port, "/ready"),
    )
