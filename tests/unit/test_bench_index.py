"""`epp bench index` runs as documented; what it measures is for people to read."""

import json

from epp.sim.benches.index import bench, measure


def test_the_costs_are_told_as_text_and_as_json() -> None:
    told = bench([3], keys=2000, prompt_keys=16, prompts=3, as_json=False)
    assert "a match of 16 keys" in told
    assert [line.split()[0] for line in told.splitlines()[2:]] == ["3", "3"]
    prompts, scattered = json.loads(bench([5], keys=2000, prompt_keys=16, prompts=3, as_json=True))
    assert (prompts["holders"], scattered["holders"]) == ("by prompts", "scattered")
    assert set(prompts["match_us"]) == {"conversation", "stairs", "cold"}


def test_a_key_takes_64_bytes_at_most_and_4_for_each_further_holder() -> None:
    for scattered in (False, True):
        cost = measure(100, 100_000, 16, 1, scattered)
        assert cost.bytes_per_key <= 64
