"""Which port belongs to which part, and the message when one is taken."""

import random
import socket

import pytest

from epp.errors import LocalError
from epp.sim.fleets.ports import (
    HOST,
    MAX_ENGINES,
    SPAN,
    Ports,
    auto_ports,
    default_ports,
    free_ports,
    is_free,
    require_free,
    shifted_ports,
)


def numbers(ports: Ports) -> list[int]:
    return [port for _, port in ports.named()]


@pytest.mark.parametrize("engines", [1, 4, MAX_ENGINES])
def test_no_two_parts_share_a_port(engines: int) -> None:
    rng = random.Random(1)
    for ports in (
        default_ports(engines),
        shifted_ports(engines, 20_000),
        auto_ports(engines, rng),
    ):
        used = numbers(ports)
        assert len(set(used)) == len(used) == 8 + 6 * engines


def test_a_shifted_fleet_stays_within_its_span() -> None:
    used = numbers(shifted_ports(MAX_ENGINES, 20_000))
    assert min(used) == 20_000
    assert max(used) < 20_000 + SPAN


@pytest.mark.parametrize("engines", [0, -1, MAX_ENGINES + 1])
def test_the_number_of_engines_has_a_limit(engines: int) -> None:
    with pytest.raises(LocalError, match=f"between 1 and {MAX_ENGINES}"):
        default_ports(engines)


@pytest.mark.parametrize("base", [0, 1023, 65_535 - SPAN + 1])
def test_a_port_base_out_of_range_is_refused(base: int) -> None:
    with pytest.raises(LocalError, match="--port-base must be between"):
        shifted_ports(1, base)


def test_automatic_ports_are_below_the_range_of_outgoing_connections() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        lowest = int(file.read().split()[0])
    ports = free_ports(10, random.Random(2))
    assert len(set(ports)) == 10
    if lowest >= 16_000:
        assert max(ports) < lowest


def test_a_taken_port_is_named_with_what_wanted_it_and_the_way_out() -> None:
    ports = auto_ports(1, random.Random(3))
    with socket.create_server((HOST, ports.gateway)):
        assert not is_free(ports.gateway)
        with pytest.raises(LocalError) as caught:
            require_free(ports, redis=True)
    message = str(caught.value)
    assert f"port {ports.gateway} (the gateway (Envoy))" in message
    assert "--auto-ports" in message
    assert "--port-base" in message
    require_free(ports, redis=True)


def test_the_redis_port_matters_only_when_redis_is_wanted() -> None:
    ports = auto_ports(1, random.Random(4))
    with socket.create_server((HOST, ports.redis)):
        require_free(ports, redis=False)
        with pytest.raises(LocalError, match=r"\(Redis\)"):
            require_free(ports, redis=True)


def test_a_long_list_of_taken_ports_is_cut() -> None:
    ports = auto_ports(2, random.Random(5))
    servers = [socket.create_server((HOST, port)) for port in numbers(ports)]
    try:
        with pytest.raises(LocalError, match="and 15 more"):
            require_free(ports, redis=True)
    finally:
        for server in servers:
            server.close()
