"""Where an engine without a sidecar tells what its cache holds."""

import pytest

from epp.state.event_ports import NOTHING_SAID, EventPorts, EventSource, source_of

POOL = EventPorts(events=5557, replay=5600, topic="kv@")


def test_what_the_endpoint_says_goes_before_what_the_pool_says() -> None:
    said = EventPorts(events=6000, topic="", step=2, rank=2)
    assert source_of("[::1]:8002", said, POOL) == EventSource(
        events="tcp://[::1]:6002", replay="tcp://[::1]:5602", topic="", rank=2
    )
    assert source_of("10.0.0.1:8000", NOTHING_SAID, POOL) == EventSource(
        events="tcp://10.0.0.1:5557", replay="tcp://10.0.0.1:5600", topic="kv@", rank=None
    )


@pytest.mark.parametrize(
    ("said", "pool"),
    [
        (NOTHING_SAID, EventPorts()),
        (NOTHING_SAID, EventPorts(events=0, replay=5600)),
        (EventPorts(events=0), POOL),
        (EventPorts(events=65_535, step=1), POOL),
    ],
)
def test_without_a_port_there_is_nothing_to_follow(said: EventPorts, pool: EventPorts) -> None:
    assert source_of("10.0.0.1:8000", said, pool) is None


def test_a_port_of_0_is_no_replay() -> None:
    source = source_of("10.0.0.1:8000", EventPorts(replay=0), POOL)
    assert source is not None
    assert source.replay is None
