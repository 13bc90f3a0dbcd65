"""The endpoint file: what it may say, and where an error says it is."""

from pathlib import Path

import pytest

from epp.config.located import MAX_BYTES
from epp.control.files import load_endpoints, parse_endpoints
from epp.errors import ConfigError
from epp.framework import EndpointId, PoolId, Role
from epp.state.endpoints import Member
from epp.state.event_ports import NOTHING_SAID, EventPorts

POOL = PoolId("pool")


def read(text: str, warned: list[str] | None = None) -> list[Member]:
    warn = warned.append if warned is not None else lambda _: None
    return parse_endpoints(text.encode(), "e.yaml", POOL, warn=warn)


def fault(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value)


def test_a_full_entry() -> None:
    (member,) = read(
        """
        endpoints:
          - name: engine-0
            namespace: llm
            address: 10.0.0.7
            port: "8000"
            labels: {llm-d.ai/role: decode, zone: a}
            metricsPort: 9100
            sidecar: false
        """
    )
    assert member == Member(
        id=EndpointId(POOL, "llm/engine-0", 8000),
        address="10.0.0.7:8000",
        role=Role.DECODE,
        labels={"llm-d.ai/role": "decode", "zone": "a"},
        metrics_url="http://10.0.0.7:9100/metrics",
        has_sidecar=False,
    )


def test_an_engine_without_a_sidecar_may_say_where_its_events_are() -> None:
    head = "{name: a, address: 127.0.0.1, port: 8001, sidecar: false"
    (member,) = read(
        f"endpoints: [{head}, kvEventsPort: 5557, kvReplayPort: 0, kvEventsTopic: kv, dpRank: 1}}]"
    )
    assert member.events == EventPorts(events=5557, replay=0, topic="kv", step=1, rank=1)
    (member,) = read(f"endpoints: [{head}}}]")
    assert member.events == NOTHING_SAID


@pytest.mark.parametrize("said", ["kvEventsPort", "kvReplayPort", "kvEventsTopic", "dpRank"])
def test_events_of_an_engine_behind_a_sidecar_are_told_to_that_alone(said: str) -> None:
    text = f"endpoints: [{{name: a, address: 127.0.0.1, port: 1, {said}: 1}}]"
    told = fault(text.replace("Topic: 1", "Topic: '1'"))
    assert told.startswith("e.yaml:1:")
    assert "sidecar: false" in told


def test_the_least_entry_and_json() -> None:
    (member,) = read('{"endpoints": [{"name": "a", "address": "127.0.0.1", "port": 8000}]}')
    assert member.id == EndpointId(POOL, "default/a", 8000)
    assert member.has_sidecar
    assert member.role is Role.UNLABELLED
    assert member.metrics_url == "http://127.0.0.1:8000/metrics"


def test_a_uid_is_the_identity() -> None:
    (member,) = read("endpoints: [{name: a, uid: 0a1b, address: 127.0.0.1, port: 1}]")
    assert member.id.name == "0a1b"


def test_an_empty_pool_has_to_be_said() -> None:
    assert read("endpoints: []") == []
    assert fault("").startswith("e.yaml:1:1 is empty")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("endpoints:\n- nmae: a\n", "e.yaml:2:3 unknown field 'nmae'; did you mean 'name'?"),
        ("endpoint: []", "e.yaml:1:1 unknown field 'endpoint'; did you mean 'endpoints'?"),
        ("endpoints:\n- {name: a, port: 1}", "e.yaml:2:3 'address' is missing"),
        ("endpoints: [{name: a, address: host, port: 1}]", "names are not resolved"),
        ("endpoints: [{name: a, address: 0.0.0.0, port: 1}]", "address of one endpoint"),
        ("endpoints: [{name: a, address: 'fe80::1%eth0', port: 1}]", "without a zone"),
        ("endpoints: [{name: a, address: 1.2.3.4, port: 0}]", "e.yaml:1:41 'port':"),
        ("endpoints: [{name: a, address: 1.2.3.4, port: 65536}]", "'port':"),
        ("endpoints: [{name: a, address: 1.2.3.4, port: x}]", "'port':"),
        ("endpoints: [{name: 'a|b', address: 1.2.3.4, port: 1}]", "'name':"),
        ("endpoints: [{name: a, name: b}]", "e.yaml:1:23 'name' stands here a second time"),
        ("endpoints: {a: b}", "e.yaml:1:1 'endpoints': input should be a valid list"),
        ("- a", "e.yaml:1:1 'the file'"),
        ("endpoints:\n\t- a", "e.yaml:2:1 is neither YAML nor JSON"),
        ("endpoints: &a [*a]", "nested too deeply"),
        ("[" * 5_000, "is neither YAML nor JSON"),
        ("a: b\x00", "is neither YAML nor JSON"),
    ],
)
def test_a_fault_says_where_and_what_to_do(text: str, says: str) -> None:
    assert says in fault(text)


def test_all_faults_are_told_at_once() -> None:
    text = "endpoints:\n" + "- {name: a, address: b, port: 0, x: 1}\n" * 3
    message = fault(text)
    assert message.count("e.yaml:") == 5
    assert message.endswith("and 4 more")


def test_each_endpoint_stands_once() -> None:
    one = "{name: a, address: 1.2.3.4, port: 1}"
    assert "e.yaml:1:51 has the same identity as entry 1" in fault(f"endpoints: [{one}, {one}]")
    other = one.replace("name: a", "name: b")
    assert "has the same address as entry 1" in fault(f"endpoints: [{one}, {other}]")
    assert len(read(f"endpoints: [{one}, {other.replace('port: 1', 'port: 2')}]")) == 2


def test_an_unknown_role_is_let_pass_with_a_warning() -> None:
    warned: list[str] = []
    entry = "{name: a, address: 1.2.3.4, port: 1, labels: {llm-d.ai/role: boss}}"
    (member,) = read(f"endpoints: [{entry}]", warned)
    assert member.role is Role.UNLABELLED
    assert warned[0].startswith("e.yaml:1:")
    assert "'boss'" in warned[0]


def test_aliases_cannot_multiply_a_small_file_into_a_large_one() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for old, new in zip("abcdef", "bcdefg", strict=True):
        lines.append(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]")
    assert "nested too deeply, or has too many parts" in fault("\n".join(lines))


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("endpoints: []\n#" + "x" * (MAX_BYTES - 15))
    assert load_endpoints(path, POOL) == []
    path.write_text("endpoints: []\n#" + "x" * (MAX_BYTES - 14))
    with pytest.raises(ConfigError, match="larger than"):
        load_endpoints(path, POOL)
    entries = [f"{{name: e{n}, address: 10.0.{n // 250}.{n % 250}, port: 1}}" for n in range(1025)]
    assert len(read(f"endpoints: [{', '.join(entries[:1024])}]")) == 1024
    assert "at most 1024" in fault(f"endpoints: [{', '.join(entries)}]")


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_endpoints(tmp_path / "none.yaml", POOL)
