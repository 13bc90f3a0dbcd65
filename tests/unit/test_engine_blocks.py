"""EngineBlocks: real recordings, limits, holes, groups, tiers, extras."""

import json
from pathlib import Path
from typing import Any

import pytest

from epp.state.blocks import seed_of, token_keys
from epp.state.engine_blocks import EngineBlocks
from epp.state.engine_tier import MAX_GROUPS
from epp.state.events import decode
from epp.state.records import MAX_TIER_NAME, MAX_TIERS, TierChange
from tests.fakes.kv_publisher import CLEARED, removed, stored

DATA = Path(__file__).parent.parent / "data" / "kv_events"
RECORDED: list[dict[str, Any]] = json.loads((DATA / "vllm_0.32.0.json").read_text())
PROMPT = list(range(1000, 1512))


def keys(tokens: list[int], model: str = "m", salt: str = "") -> tuple[int, ...]:
    return token_keys(tokens, seed_of(model, salt=salt))


def test_real_recordings_replay_and_give_the_keys_of_their_prompts() -> None:
    checked = 0
    for source in dict.fromkeys(message["source"] for message in RECORDED):
        engine = EngineBlocks("tiny")
        for message in (one for one in RECORDED if one["source"] == source):
            delta = engine.apply(decode(bytes.fromhex(message["payload_hex"])).events)
            for told in message["decoded"][1]:
                if told["type"] == "BlockStored" and told["parent_block_hash"] is None:
                    salt = (told["extra_keys"][0] or [""])[0]
                    expected = keys(told["token_ids"], "tiny", salt)
                    # vLLM holds nothing back: the prompt's keys are all there, in its order.
                    assert set(expected) <= set(engine.present())
                    assert [key for key in delta.stored if key in expected] == list(expected)
                    checked += len(expected)
    assert checked > 20


def test_a_child_in_a_later_event_continues_its_parents_chain() -> None:
    engine = EngineBlocks("m")
    first = engine.apply([stored(range(5), PROMPT[:160], 32)])
    assert first.stored == keys(PROMPT[:160])
    second = engine.apply([stored(range(5, 16), PROMPT[160:], 32, parent=4)])
    assert first.stored + second.stored == keys(PROMPT)


def test_a_hole_takes_its_keys_and_gives_them_back() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored(range(10), PROMPT[:480], 48)])
    whole = keys(PROMPT[:480])
    # Block 2 covers tokens 96 to 143: parts of the second and third own block.
    assert set(engine.apply([removed(2)]).removed) == {whole[1], whole[2]}
    assert set(engine.apply([stored([2], PROMPT[96:144], 48, parent=1)]).stored) == {
        whole[1],
        whole[2],
    }


def test_a_child_of_a_block_with_a_hole_before_it_counts_by_itself() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored([0, 1], PROMPT[:400], 200)])
    engine.apply([removed(0)])
    # Block 1 (200 to 399) has lost the own block that begins before it, but its tail is its own.
    whole = keys([*PROMPT[:400], *range(200)])
    assert set(engine.present()) == set(whole[4:6])
    assert engine.apply([stored([2], list(range(200)), 200, parent=1)]).stored == whole[6:9]


def test_a_block_that_returns_behind_a_hole_does_not_bridge_it() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored(range(4), PROMPT[:64], 16)])
    engine.apply([removed(0, 2)])
    assert engine.apply([stored([2], PROMPT[32:48], 16, parent=1)]).empty
    assert engine.present() == []
    assert engine.apply([stored([0], PROMPT[:16], 16)]).stored == keys(PROMPT[:64])


def test_a_batch_that_undoes_itself_changes_nothing() -> None:
    engine = EngineBlocks("m")
    delta = engine.apply([stored(range(4), PROMPT[:256], 64), removed(3, 2, 1, 0)])
    assert delta.empty
    engine.apply([stored([0], PROMPT[:64], 64)])
    assert engine.apply([removed(0), stored([0], PROMPT[:64], 64)]).empty


def test_a_clear_reports_all_that_came_after_it_as_the_whole_state() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored(range(4), PROMPT[:256], 64)])
    delta = engine.apply([CLEARED, stored([9], PROMPT[64:128], 64)])
    assert (delta.reset, delta.stored, delta.removed) == (True, keys(PROMPT[64:128]), ())
    assert engine.clear().reset
    assert engine.present() == []
    assert engine.apply([]).empty


def test_more_blocks_than_the_limit_forget_everything_and_say_so() -> None:
    engine = EngineBlocks("m", max_blocks=4)
    delta = engine.apply([stored(range(4), PROMPT[:256], 64)])
    assert (len(delta.stored), engine.overflows) == (4, 0)
    delta = engine.apply([stored([7], PROMPT[256:320], 64)])
    assert delta.reset
    assert delta.stored == keys(PROMPT[256:320])
    assert (engine.overflows, len(engine)) == (1, 1)
    # One event larger than the limit: what its lost head carried is an orphan.
    delta = engine.apply([stored(range(10, 16), PROMPT[:384], 64)])
    assert delta.reset
    assert len(engine) <= 4
    assert engine.overflows == 2
    assert engine.orphans == 3


def test_a_key_needs_all_full_attention_groups_once_they_are_known() -> None:
    engine = EngineBlocks("m")
    kind = {"kv_cache_spec_kind": "full_attention"}
    one, two = keys(PROMPT[:128])
    assert engine.apply([stored([1, 2], PROMPT[:128], 64, group_idx=0, **kind)]).stored == (
        one,
        two,
    )
    assert engine.apply([stored([1], PROMPT[:64], 64, group_idx=1, **kind)]).removed == (two,)
    assert engine.apply([removed(1, group_idx=1)]).removed == (one,)
    assert engine.apply([stored([1], PROMPT[:64], 64, group_idx=1, **kind)]).stored == (one,)
    assert engine.present() == [one]


def test_groups_beyond_the_limit_are_ignored() -> None:
    engine = EngineBlocks("m")
    for group in range(MAX_GROUPS + 2):
        engine.apply(
            [stored([1], PROMPT[:64], 64, group_idx=group, kv_cache_spec_kind="full_attention")]
        )
    assert engine.ignored == 2
    assert engine.present() == list(keys(PROMPT[:64]))


def test_an_adapter_named_only_by_number_matches_no_request() -> None:
    engine = EngineBlocks("m")
    delta = engine.apply([stored([1], PROMPT[:64], 64, lora_id=3)])
    assert len(delta.stored) == 1
    assert delta.stored != keys(PROMPT[:64])
    assert EngineBlocks("m").apply([stored([1], PROMPT[:64], 64, lora_id=4)]) != delta


def test_salt_and_adapter_in_the_extra_keys_give_the_keys_of_such_a_request() -> None:
    extra = (["poet", "secret"], ["poet"])
    engine = EngineBlocks("m")
    delta = engine.apply(
        [stored([1, 2], PROMPT[:128], 64, lora_id=1, lora_name="poet", extra_keys=extra)]
    )
    assert delta.stored == keys(PROMPT[:128], "poet", "secret")


@pytest.mark.parametrize(
    "extra", [["img", 5], ("img", 5), {"img": 5}, b"digest"], ids=["list", "tuple", "map", "bytes"]
)
def test_an_image_changes_the_keys_from_its_block_on(extra: Any) -> None:
    engine = EngineBlocks("m")
    told = (None, None, [extra], None)
    delta = engine.apply([stored(range(4), PROMPT[:256], 64, extra_keys=told)])
    plain = keys(PROMPT[:256])
    assert delta.stored[:2] == plain[:2]
    assert not set(delta.stored[2:]) & set(plain)


@pytest.mark.parametrize("size", [16, 32, 48, 128])
def test_an_image_changes_every_own_block_that_its_engine_block_touches(size: int) -> None:
    count = 384 // size
    image_at = 200 // size
    told = tuple([["img", 5]] if at == image_at else None for at in range(count))
    delta = EngineBlocks("m").apply([stored(range(count), PROMPT[:384], size, extra_keys=told)])
    same = image_at * size // 64
    plain = keys(PROMPT[:384])
    assert delta.stored[:same] == plain[:same]
    assert len(delta.stored) == 6
    assert not set(delta.stored[same:]) & set(plain)


def test_an_images_identity_survives_in_the_tail_of_a_partial_own_block() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored([1], PROMPT[:16], 16, extra_keys=([["img", 5]],))])
    delta = engine.apply([stored([2, 3, 4], PROMPT[16:64], 16, parent=1)])
    assert len(delta.stored) == 1
    assert delta.stored != keys(PROMPT[:64])


@pytest.mark.parametrize("wrong", [{"own_block_tokens": 0}, {"max_blocks": 0}])
def test_limits_are_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        EngineBlocks("m", **wrong)


def test_many_continuations_of_one_partial_block_follow_it_in_and_out() -> None:
    engine = EngineBlocks("m")
    engine.apply([stored([0], PROMPT[:48], 48)])
    for at in range(1, 200):
        engine.apply([stored([at], [at] * 48, 48, parent=0)])
    assert len(engine.apply([removed(0)]).removed) == 199
    assert len(engine.apply([stored([0], PROMPT[:48], 48)]).stored) == 199
    for at in range(1, 200):
        engine.apply([removed(at)])
    assert engine.present() == []


def test_tiers_beyond_the_limit_and_of_endless_names_are_ignored() -> None:
    engine = EngineBlocks("m")
    for tier in ("GPU", *(f"T{at}" for at in range(MAX_TIERS + 2))):
        engine.apply([stored([1], PROMPT[:64], 64, medium=tier)])
    assert len(engine.tiers_present()) == MAX_TIERS
    assert engine.ignored == 2
    other = EngineBlocks("m")
    other.apply([stored([1], PROMPT[:64], 64, medium="x" * (MAX_TIER_NAME + 1))])
    assert (other.ignored, other.tiers_present()) == (1, {})


def test_a_slower_tier_that_is_full_takes_no_more_and_forgets_nothing() -> None:
    engine = EngineBlocks("m", max_blocks=2)
    engine.apply([stored([1, 2], PROMPT[:128], 64)])
    delta = engine.apply([stored([1, 2, 3], PROMPT[:192], 64, medium="cpu")])
    assert delta.tiers == (TierChange("CPU", keys(PROMPT[:128])),)
    assert not delta.reset
    assert engine.overflows == 1
    assert engine.apply([removed(1, medium="CPU")]).tiers == (
        TierChange("CPU", (), keys(PROMPT[:64])),
    )


def test_orphans_beyond_the_limit_are_dropped_and_counted() -> None:
    engine = EngineBlocks("m", max_orphans=2)
    engine.apply([stored([2, 3, 4], PROMPT[64:256], 64, parent=1)])
    assert (engine.waiting, engine.orphans, engine.dropped_orphans) == (2, 3, 1)
    delta = engine.apply([stored([1], PROMPT[:64], 64)])
    assert set(delta.stored) == set(keys(PROMPT[:192]))
    assert engine.waiting == 0
    with pytest.raises(ValueError, match="must be positive"):
        EngineBlocks("m", max_orphans=0)


def test_a_parent_on_a_slower_tier_is_gone_on_from_but_earns_the_gpu_nothing() -> None:
    engine = EngineBlocks("m")
    whole = keys(PROMPT[:128])
    engine.apply([stored([1, 2], PROMPT[:64], 32), stored([1, 2], [], 0, medium="CPU")])
    engine.apply([removed(2)])
    delta = engine.apply([stored([3, 4], PROMPT[64:128], 32, parent=2)])
    assert delta.stored == whole[1:]
    assert engine.tiers_present() == {"CPU": whole[:1]}
    engine.apply([removed(1, 3, 4), removed(1, medium="CPU")])
    assert engine.apply([stored([3], PROMPT[64:96], 32, parent=2)]).empty
    assert engine.apply([stored([4], PROMPT[96:128], 32, parent=3)]).stored == whole[1:]
