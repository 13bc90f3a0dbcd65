import pytest
from pydantic import ValidationError

from epp.framework.engines import SGLANG, VLLM, specs
from epp.state.writing.life import Life
from sidecar.http import headers
from sidecar.settings import SidecarSettings

GOOD = {"pool": "default/pool", "name": "default/pod-0"}


def test_a_pool_and_a_name_are_enough() -> None:
    settings = SidecarSettings.model_validate(GOOD)
    assert settings.engine_url == "http://127.0.0.1:8200"
    assert settings.flush_ms == 20
    assert settings.pool_id == "default/pool"


@pytest.mark.parametrize(
    "wrong",
    [
        {"pool": ""},
        {"pool": "a|b"},
        {"name": "a b"},
        {"engine_url": "ftp://127.0.0.1:8000"},
        {"tls_cert_file": "a"},
        {"tls_key_file": "a"},
        {"tls_client_ca_file": "a"},
        {"engine_tls_cert_file": "a"},
        {"engine_tls_insecure": True, "engine_tls_ca_file": "a"},
        {"leg_tls": True, "leg_tls_key_file": "a"},
        {"leg_tls": True, "leg_tls_insecure": True, "leg_tls_ca_file": "a"},
        {"leg_tls_ca_file": "a"},
        {"leg_tls_insecure": True},
        {"leg_tls_name": "a"},
        {"engine_url": "http://127.0.0.1:8000/v1"},
        {"engine_url": "http://user@127.0.0.1:8000"},
        {"engine_url": "http://127.0.0.1:99999"},
        {"engine_url": "127.0.0.1:8000"},
        {"state_url": "http://127.0.0.1"},
        {"kv_events": "127.0.0.1:5557"},
        {"port": 65_536},
        {"flush_ms": 0},
        {"idle_timeout_s": 0},
        {"max_body_bytes": 0},
        {"unknown": 1},
        {"engine_type": "tgi"},
        {"engine_metrics": ["queuedRequestsSpec"]},
        {"engine_metrics": ["queued_requests_spec=q"]},
        {"engine_metrics": ["queuedRequestsSpec=a b"]},
    ],
)
def test_a_value_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SidecarSettings.model_validate({**GOOD, **wrong})


def test_an_engine_is_one_of_the_built_in_with_what_differs() -> None:
    assert SidecarSettings.model_validate(GOOD).engine_names == VLLM
    given = {
        "engine_type": "sglang",
        "engine_metrics": ["queuedRequestsSpec=q{state=waiting}", "kvUsageSpec="],
    }
    names = SidecarSettings.model_validate({**GOOD, **given}).engine_names
    assert names.waiting == specs("q{state=waiting}")
    assert names.kv_usage == ()
    assert names.running == SGLANG.running


@pytest.mark.parametrize("more", [{"connector": "mooncake"}, {"endpoints_file": None}])
def test_pairs_can_be_warmed_where_engines_shake_hands_and_members_are_known(
    more: dict[str, object],
) -> None:
    good = {**GOOD, "warm_pairs": True, "endpoints_file": "pool.yaml"}
    assert SidecarSettings.model_validate(good).warm_pairs
    with pytest.raises(ValidationError, match="--warm-pairs"):
        SidecarSettings.model_validate({**good, **more})


def test_the_token_is_not_shown() -> None:
    settings = SidecarSettings.model_validate({**GOOD, "state_token": "s3cret"})
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("64", 64),
        ("4294967295", 2**32 - 1),
        ("4294967296", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        (None, None),
        ("٣", None),
        ("1" * 5000, None),
    ],
)
def test_predicted_tokens_are_a_count_or_nothing(text: str | None, count: int | None) -> None:
    assert headers.count(text) == count


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("d-1", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("", False),
        (None, False),
        ("é", False),
        ("a\tb", False),
    ],
)
def test_a_decision_id_is_short_and_printable_or_nothing(text: str | None, kept: bool) -> None:
    assert headers.decision_id(text) == (text if kept else None)


def test_the_engines_own_start_names_its_life() -> None:
    life = Life()
    assert life.seen(1000, 5000)
    assert not life.seen(1000, 6000)
    life.lost()
    assert not life.seen(1000, 7000), "its port refused for a moment, but it is the same process"
    assert life.seen(2000, 8000)
    assert life.start_ms == 2000


def test_without_a_start_the_first_sight_after_a_loss_is_a_new_life() -> None:
    life = Life()
    assert life.seen(None, 5000)
    assert not life.seen(None, 6000)
    life.lost()
    assert life.seen(None, 7000)
    assert life.start_ms == 7000


def test_a_start_learnt_later_does_not_end_a_life() -> None:
    life = Life()
    life.seen(None, 5000)
    assert not life.seen(1000, 6000)
    assert life.start_ms == 5000
    assert life.seen(5500, 7000)


def test_starts_only_ever_rise_though_clocks_fall() -> None:
    life = Life()
    life.seen(9000, 9000)
    assert life.seen(8000, 8000)
    assert life.start_ms == 9001
    life.lost()
    assert life.seen(None, 10)
    assert life.start_ms == 9002
