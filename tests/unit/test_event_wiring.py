"""What a sidecar's settings make of its engine's KV events."""

from pathlib import Path
from typing import Any

import pytest

from epp.errors import ConfigError
from epp.state.blocks import Naming, seed_of, token_keys
from epp.state.events import Frame
from epp.state.writing.cache import CacheMirror
from sidecar.settings import SidecarSettings
from sidecar.state.wiring import mirror_of
from tests.fakes.kv_publisher import payload, stored_map

TOKENS = list(range(64))


def settings(**more: Any) -> SidecarSettings:
    return SidecarSettings.model_validate({"pool": "p", "name": "n", **more})


def mirror(**more: Any) -> CacheMirror:
    made = mirror_of(settings(**more), lambda: 0.0)(lambda _: None)
    made.serve("m")
    return made


def salted(made: CacheMirror) -> list[int]:
    event = stored_map([1], TOKENS, 64, extra_keys=[["tenant"]])
    made.on(Frame(b"kv", 0, payload([event])))
    return made.present()


def keys(naming: Naming) -> list[int]:
    return list(token_keys(TOKENS, seed_of("m", salt="tenant", naming=naming)))


def test_salts_are_hashed_as_the_pools_picker_does(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"k" * 32)
    assert salted(mirror()) == keys(Naming.of_pool("p"))
    found = salted(mirror(salt_key_file=file, cache_namespace="fp8"))
    assert found == keys(Naming.of_pool("p", salt_key=b"k" * 32, namespace="fp8"))


def test_a_key_that_is_none_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        mirror(salt_key_file=tmp_path / "none")


def test_replays_are_wanted_where_there_is_somebody_to_ask() -> None:
    assert mirror().wanted is None
    assert mirror(kv_replay="tcp://127.0.0.1:1").wanted is not None


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"kv_replay": "127.0.0.1:5557"}, "expected tcp://host:port"),
        ({"kv_events": "tcp://nobody"}, "expected tcp://host:port"),
        ({"kv_events": "tcp://nobody:5557x"}, "expected tcp://host:port"),
        ({"kv_events": "ipc://"}, "expected tcp://host:port"),
        ({"dp_rank": -1}, "greater than or equal to 0"),
        ({"dp_rank": 1, "kv_events": "ipc:///run/kv"}, "count ports up"),
        ({"dp_rank": 1, "kv_replay": "ipc:///run/kv"}, "count ports up"),
    ],
)
def test_what_can_not_be_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settings(**wrong)
