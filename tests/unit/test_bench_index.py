"""`epp bench index` runs as documented; what it measures is for people to read."""

import json

from epp.sim.benches.index import bench


def test_the_costs_are_told_as_text_and_as_json() -> None:
    told = bench([3], keys=2000, prompt_keys=16, prompts=3, as_json=False)
    assert "a match of 16 keys" in told
    assert [line.split()[0] for line in told.splitlines()[2:]] == ["3", "3"]
    prompts, scattered = json.loads(bench([5], keys=2000, prompt_keys=16, prompts=3, as_json=True))
    assert (prompts["holders"], scattered["holders"]) == ("by prompts", "scattered")
    assert set(prompts["match_us"]) == {"conversation", "stairs", "cold"}


def test_a_key_of_a_million_takes_64_bytes_at_most_and_4_for_each_further_holder() -> None:
    # In processes of their own: one that ran other tests grows by less, or by more, than it takes.
    told = bench([100], keys=1_000_000, prompt_keys=16, prompts=1, as_json=True)
    for cost in json.loads(told):
        assert 4 < cost["bytes_per_key"] <= 64, cost["holders"]
