"""Where a prompt may be prefilled, as the picker's header says."""

import pytest

from sidecar.transfer.targets import MAX_TARGETS, MAX_TEXT, Target, Targets, parse


@pytest.mark.parametrize(
    ("values", "found", "malformed"),
    [
        ([], [], 0),
        ([""], [], 0),
        (["10.0.0.1:8000"], [("10.0.0.1", 8000)], 0),
        (["a:1,b:2"], [("a", 1), ("b", 2)], 0),
        (["a:1", "b:2"], [("a", 1), ("b", 2)], 0),
        (["a:1,a:1,A:1"], [("a", 1)], 0),
        (["pod-0.ns.svc:65535"], [("pod-0.ns.svc", 65535)], 0),
        (["[2001:DB8:0:0::1]:80"], [("2001:db8::1", 80)], 0),
        (["[::ffff:10.0.0.1]:80"], [("::ffff:a00:1", 80)], 0),
        (["a:1,bad,b:2"], [("a", 1), ("b", 2)], 1),
    ],
)
def test_targets_are_read_in_order(
    values: list[str], found: list[tuple[str, int]], malformed: int
) -> None:
    assert parse(values) == Targets(tuple(Target(*one) for one in found), malformed)


@pytest.mark.parametrize(
    "item",
    [
        "http://a:1",
        "u@a:1",
        "a:1/x",
        "a:1?x",
        "a b:1",
        "a:+1",
        "a:-1",
        "a:1.0",
        "a:0x50",
        "a:65536",
        "a:0",
        "a:000080",
        "a:\u0661",
        "\u00e9:1",
        "127.1:80",
        "2130706433:80",
        "0x7f000001:80",
        "0x7f.0.0.1:80",
        "0177.0.0.1:80",
        "1.2.3.256:80",
        "127.0.0.1.:80",
        "...:80",
        "[fe80::1%eth0]:80",
        "[::1]",
        "[:::]:80",
        "[1.2.3.4]:80",
        "a:1\r\nx: y",
        "a:1\n",
        "\x00:1",
    ],
)
def test_items_that_are_no_host_and_port_are_left_out_and_counted(item: str) -> None:
    assert parse([item]) == Targets((), 1)


def test_lists_are_bounded() -> None:
    many = ",".join(f"a:{port}" for port in range(1, 100))
    assert len(parse([many]).found) == MAX_TARGETS
    assert parse([f"{'a' * (MAX_TEXT - 2)}:1"]).malformed == 1
    exact = ("a:1," * MAX_TEXT)[:MAX_TEXT]
    assert parse([exact]).found == (Target("a", 1),)
    assert parse([exact + ","]) == Targets((), 1)


@pytest.mark.parametrize(
    ("target", "text"), [(Target("10.0.0.1", 80), "10.0.0.1:80"), (Target("::1", 80), "[::1]:80")]
)
def test_a_target_reads_as_it_is_written(target: Target, text: str) -> None:
    assert str(target) == text
    assert parse([text]).found == (target,)


def test_the_reason_says_why_there_is_nowhere_to_prefill() -> None:
    assert parse(["a:1"]).reason is None
    assert parse([" , "]).reason == "no-targets"
    assert parse(["a"]).reason == "targets-malformed"
