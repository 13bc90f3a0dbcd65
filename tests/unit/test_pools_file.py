"""Several pools of one picker, as users write them down."""

import pytest

from epp.config.pools_file import MAX_POOLS, ServedPool, parse_pools
from epp.config.serve import serve_settings
from epp.errors import ConfigError

TWO = b"""\
pools:
  - name: llama
    hosts: [Llama.example.com]
    flags: {endpoints-file: llama.yaml, split: never, state-port: 9014}
  - name: qwen
    hosts: ["*.qwen.example.com", "*"]
    flags: {endpoint-selector: app=qwen, endpoint-target-ports: [8000, 8001]}
"""


def parse(text: bytes, **flags: object) -> tuple[ServedPool, ...]:
    return parse_pools(text, "pools.yaml", serve_settings(dict(flags)))


def test_a_pool_has_the_flags_of_the_command_line_and_its_own_before_them() -> None:
    llama, qwen = parse(TWO, split="always", decision_deadline_s="50ms", pools_file="pools.yaml")
    assert (llama.name, llama.hosts) == ("llama", ("llama.example.com",))
    assert (qwen.name, qwen.hosts) == ("qwen", ("*.qwen.example.com", "*"))
    assert (llama.settings.split, qwen.settings.split) == ("never", "always")
    assert llama.settings.decision_deadline_s == qwen.settings.decision_deadline_s == 0.05
    assert str(llama.settings.endpoints_file) == "llama.yaml"
    assert qwen.settings.endpoint_target_ports == ("8000", "8001")
    assert llama.settings.pools_file is None
    assert (llama.settings.state_port, qwen.settings.state_port) == (9014, 9004)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "pools.yaml:1:1 is empty; it lists the pools that are served"),
        (b"pools: []", "pools.yaml:1:1"),
        (b"pools: [{hosts: [a]}]", "'name' is missing"),
        (b"pools: [{name: a, host: [a]}]", "did you mean 'hosts'"),
        (b"pools: [{name: 'a b'}]", "pools.yaml:1:10"),
        (b"pools: [{name: a, hosts: ['a:80']}]", "pools.yaml:1:27"),
        (
            b"pools:\n- {name: a}\n- {name: a, flags: {state-port: 1}}",
            "pools.yaml:3:4 has the same name as pool 1: a",
        ),
        (
            b"pools:\n- {name: a, hosts: [X]}\n- {name: b, hosts: [x], flags: {state-port: 1}}",
            "pools.yaml:3:21 has the same host as pool 1: x",
        ),
        (
            b"pools:\n- {name: a}\n- {name: b}",
            "pools.yaml:3:3 has the same state port as pool 1: 9004",
        ),
        (
            b"pools: [{name: a, flags: {grpc-port: 1}}]",
            "pools.yaml:1:27 --grpc-port is of the whole picker: say it on the command line",
        ),
        (b"pools: [{name: a, flags: {splitt: never}}]", "did you mean 'split'"),
        (
            b"pools: [{name: a, flags: {split: sometimes}}]",
            "pools.yaml:1:27 --split: Input should be",
        ),
        (
            b"pools: [{name: a, flags: {tokenizer: local}}]",
            "--tokenizer local and --tokenizer-dir need each other",
        ),
    ],
)
def test_a_fault_is_told_with_its_place(text: bytes, said: str) -> None:
    with pytest.raises(ConfigError) as fault:
        parse(text)
    assert said in str(fault.value)


def test_pools_share_a_state_port_where_nobody_listens_on_it() -> None:
    redis = {"store": "redis", "redis_url": "redis://127.0.0.1:6379/0"}
    assert [pool.name for pool in parse(b"pools: [{name: a}, {name: b}]", **redis)] == ["a", "b"]


def test_there_are_not_too_many() -> None:
    names = [f"- {{name: p{number}, flags: {{state-port: 0}}}}" for number in range(MAX_POOLS + 1)]
    assert len(parse("\n".join(["pools:", *names[:-1]]).encode())) == MAX_POOLS
    with pytest.raises(ConfigError, match="at most 64"):
        parse("\n".join(["pools:", *names]).encode())


def test_several_pools_have_one_process() -> None:
    with pytest.raises(ConfigError, match="--pools-file and --workers exclude each other"):
        serve_settings({"pools_file": "pools.yaml", "workers": "2"})
