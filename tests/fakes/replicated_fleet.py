"""Real processes: engines with sidecars, one Redis, and pickers each behind an Envoy of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import SystemRandom

from epp.sim.fleets.fleet import Fleet
from epp.sim.fleets.parts import FleetSettings, Parts
from epp.sim.fleets.ports import HOST, Ports, auto_ports


@dataclass(slots=True)
class Replicated:
    """`fleet` is the first replica's; `gateways` has each replica's own, its first."""

    fleet: Fleet
    gateways: list[str]
    admins: list[str] = field(default_factory=list)

    async def until_each_knows_all(self) -> None:
        """Every replica is told of every engine precisely, and of the other replicas."""
        own = self.fleet.settings
        for gateway, admin in zip(self.gateways, self.admins, strict=True):
            ports = replace(own.ports, gateway=_port(gateway), admin=_port(admin))
            self.fleet.settings = replace(own, ports=ports)
            await self.fleet.wait_settled()
        self.fleet.settings = own


@asynccontextmanager
async def replicated_fleet(
    directory: Path, *, engines: int, replicas: int = 1, engine_flags: tuple[str, ...] = ()
) -> AsyncIterator[Replicated]:
    rng = SystemRandom()
    settings = FleetSettings(
        engines=engines,
        ports=auto_ports(engines, rng),
        store="redis",
        run_dir=directory,
        engine_flags=engine_flags,
    )
    async with Fleet(settings) as fleet:
        made = Replicated(fleet, [fleet.gateway], [fleet.admin])
        for number in range(1, replicas):
            ports = _beside(settings.ports, auto_ports(engines, rng))
            parts = Parts(replace(settings, ports=ports), directory / f"replica-{number}")
            parts.run_dir.mkdir()
            parts.write_files()
            for part in (parts.picker(), parts.envoy()):
                fleet.supervisor.start(replace(part, name=f"{part.name}-{number}"))
            made.gateways.append(f"http://{HOST}:{ports.gateway}")
            made.admins.append(f"http://{HOST}:{ports.admin}")
        await fleet.supervisor.wait_ready()
        await made.until_each_knows_all()
        yield made


def _beside(first: Ports, own: Ports) -> Ports:
    """A further replica: doors of its own, the same engines and the same log."""
    return replace(
        first,
        gateway=own.gateway,
        envoy_admin=own.envoy_admin,
        grpc=own.grpc,
        health=own.health,
        metrics=own.metrics,
        admin=own.admin,
        state=own.state,
    )


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
