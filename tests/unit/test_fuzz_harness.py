"""The fuzzer finds what is hidden behind several comparisons, and it knows every parser."""

from pathlib import Path
from random import Random

import pytest

from epp.request.apis import catalog
from tests.fuzz.__main__ import TARGETS
from tests.fuzz.hunt import Found, Target, hunt, keep
from tests.fuzz.mutations import bytes_from, pack, steps_from, unpack

DOORS = (b"{", b'"model"', b":", b"null")


def maze(data: bytes) -> None:
    """Fails behind four doors; each that opens is a new way through this loop's code."""
    for number, door in enumerate(DOORS):
        if not data.startswith(door):
            STEPS[number]()
            return
        data = data[len(door) :]
    raise ValueError("found")


STEPS = [lambda: 0, lambda: 1, lambda: 2, lambda: 3]


def _hunt(watched: str) -> Found:
    target = Target("maze", maze, [b"...."], (watched,))
    return hunt(target, go_on=lambda runs: runs < 30_000, chance=Random(1))


def test_coverage_leads_to_a_fault_that_chance_does_not_find(tmp_path: Path) -> None:
    found = _hunt("tests/unit/test_fuzz_harness.py")
    ((data, text),) = found.crashes.values()
    assert data.startswith(b"".join(DOORS))
    assert "ValueError: found" in text
    (told,) = keep(found, tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == data
    assert f"-m tests.fuzz --again maze {path}" in told
    assert not _hunt("epp/errors.py").crashes


def test_a_hang_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.hunt.HANG_S", 0.01)

    def hang(_: bytes) -> None:
        while True:
            pass

    target = Target("hang", hang, [b""], ("epp/errors.py",))
    found = hunt(target, go_on=lambda _: False, chance=Random(1))
    assert list(found.crashes) == ["HangError "]


def test_steps_survive_their_packing_and_lies_about_lengths() -> None:
    steps = [(1, b"one"), (255, b""), (0, b"x" * 1000)]
    assert unpack(pack(steps)) == steps
    assert unpack(pack(steps)[:-1])[-1] == (0, b"x" * 999)
    assert unpack(b"\1\0") == []


@pytest.mark.parametrize("mutate", [bytes_from, steps_from])
def test_children_differ_and_are_bounded(mutate: object) -> None:
    chance = Random(2)
    parent = pack([(0, b"abc"), (1, b"def")])
    children = {mutate(parent, [parent], chance) for _ in range(200)}  # type: ignore[operator]
    assert len(children) > 100
    assert max(map(len, children)) <= 80_000


def test_every_parser_is_a_target() -> None:
    parsers = set(catalog.PARSERS.values())
    first = {parser: suffix for suffix, parser in reversed(catalog.PARSERS.items())}
    assert {f"api{first[parser].replace('/', '-')}" for parser in parsers} <= set(TARGETS)
    assert {"stream", "api-forms", "spans", "usage", "rename", "subset", "headers"} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_inputs_of_every_target_do_no_harm(name: str) -> None:
    found = hunt(TARGETS[name], go_on=lambda runs: runs < 300, chance=Random(3))
    assert found.crashes == {}
    assert found.edges > 20
