"""What a fleet is made of: who is there, how real engines are started, what files say."""

import json
import random
import stat
from pathlib import Path
from typing import Any

import pytest

from epp.errors import LocalError
from epp.framework import Role
from epp.sim.fleets import vllm
from epp.sim.fleets.narrate import expected_parts
from epp.sim.fleets.parts import FleetSettings, Parts
from epp.sim.fleets.ports import auto_ports
from epp.sim.fleets.roster import Member, roster
from epp.sim.promises import pulls

DATA = Path(__file__).parents[1] / "data" / "vllm-0.32.0"


def parts(tmp_path: Path, **settings: Any) -> Parts:
    count = sum(settings.get(name, 0) for name in ("engines", "prefill", "decode"))
    ports = auto_ports(count, random.Random(1))
    return Parts(FleetSettings(ports=ports, **settings), tmp_path)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """As much of vLLM's environment as is looked at."""
    config = tmp_path / "venv" / "share" / "tiny" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32}')
    program = tmp_path / "venv" / "bin" / "vllm"
    program.parent.mkdir()
    program.touch()
    return tmp_path / "venv"


def test_engines_have_no_role_or_all_of_them_have_one() -> None:
    assert roster(2, 0, 0) == (Member("engine-0"), Member("engine-1"))
    split = roster(0, 1, 2)
    assert [member.name for member in split] == ["prefill-0", "decode-0", "decode-1"]
    assert [member.role for member in split] == [Role.PREFILL, Role.DECODE, Role.DECODE]
    assert [member.sidecar for member in (*split, Member("engine-7"))] == [
        "sidecar-prefill-0",
        "sidecar-decode-0",
        "sidecar-decode-1",
        "sidecar-7",
    ]


@pytest.mark.parametrize(
    ("numbers", "says"),
    [((2, 1, 1), "leave it out"), ((0, 1, 0), "belong together"), ((0, 0, 3), "belong together")],
)
def test_mixtures_are_refused(numbers: tuple[int, int, int], says: str) -> None:
    with pytest.raises(LocalError, match=says):
        roster(*numbers)


def test_the_endpoints_file_names_roles_and_the_key_is_nobody_elses(tmp_path: Path) -> None:
    made = parts(tmp_path, prefill=1, decode=1)
    made.write_files()
    first = made.leg_key_file.read_text()
    made.write_files()
    entries = json.loads(made.endpoints_file.read_text())["endpoints"]
    assert [entry["labels"]["llm-d.ai/role"] for entry in entries] == ["prefill", "decode"]
    assert stat.S_IMODE(made.leg_key_file.stat().st_mode) == 0o600
    assert len(first.strip()) == 64
    assert made.leg_key_file.read_text() != first


def test_only_engines_that_answer_stand_behind_the_gateway(tmp_path: Path) -> None:
    made = parts(tmp_path, prefill=1, decode=2)
    made.envoy()
    text = (tmp_path / "envoy.json").read_text()
    prefill, *decode = made.settings.ports.sidecars
    assert all(str(port) in text for port in decode)
    assert f'"port_value": {prefill}' not in text


def test_sidecars_of_a_split_fleet_know_key_and_members(tmp_path: Path) -> None:
    command = parts(tmp_path, prefill=1, decode=1).sidecar(1).command
    assert command[command.index("--leg-key-file") + 1] == str(tmp_path / "leg.key")
    assert command[command.index("--endpoints-file") + 1] == str(tmp_path / "endpoints.json")
    assert "--kv-events-bind" not in command
    assert "--leg-key-file" not in parts(tmp_path, engines=1).sidecar(0).command


def test_real_engines_start_after_our_own_parts_and_connect_to_their_sidecars(
    tmp_path: Path, venv: Path
) -> None:
    made = parts(tmp_path, prefill=1, decode=1, kind="vllm", vllm_venv=venv)
    ours, engines = made.waves()
    assert [part.name for part in engines] == ["prefill-0", "decode-0"]
    assert len(ours) + len(engines) == expected_parts(made.settings)
    command = made.sidecar(0).command
    assert "--kv-events-bind" in command
    assert command[command.index("--kv-lease") + 1] == "120"
    prefill, decode = engines
    programs = [str(venv / "bin" / name) for name in ("python", "vllm")]
    assert list(prefill.command[:4]) == [*programs, "serve", str(venv / "share" / "tiny")]
    for part, role, port in zip(
        engines, ("kv_producer", "kv_consumer"), made.settings.ports.side_channels, strict=True
    ):
        given = json.loads(part.command[part.command.index("--kv-transfer-config") + 1])
        assert given["kv_role"] == role
        assert given["kv_connector_extra_config"] == {"kv_lease_duration": 120}
        assert "engine_id" not in given
        assert part.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(port)
        assert part.ready_s == 600
    assert decode.env["UCX_NET_DEVICES"] == "lo"
    assert vllm.find(venv).block_bytes() == 32_768  # as recorded: 43 blocks are 1,409,024 bytes


def test_a_real_engine_without_a_role_hands_nothing_over(tmp_path: Path, venv: Path) -> None:
    made = parts(tmp_path, engines=1, kind="vllm", vllm_venv=venv)
    assert "--kv-transfer-config" not in made.engine(0).command


def test_without_vllm_the_message_says_what_to_run(tmp_path: Path, venv: Path) -> None:
    made = parts(tmp_path, engines=1, kind="vllm", vllm_venv=tmp_path / "none")
    with pytest.raises(LocalError, match="make setup-vllm"):
        made.waves()
    (venv / "share" / "tiny" / "config.json").unlink()  # interrupted before the model
    with pytest.raises(LocalError, match="not complete"):
        vllm.find(venv)


def test_counters_are_read_from_pages_of_real_engines() -> None:
    decode = pulls.parse((DATA / "metrics_D_after_failures_0.32.0.txt").read_text())
    assert decode.transfers > 0
    assert decode.pulled_bytes % 32_768 == 0
    assert decode.pulled_bytes > 0
    assert decode.failed > 0
    prefill = pulls.parse((DATA / "metrics_P_after_failures_0.32.0.txt").read_text())
    assert prefill.expired > 0
    assert prefill.late > 0
    alone = pulls.parse((DATA / "metrics_agg_0.32.0.txt").read_text())
    assert (alone.transfers, alone.pulled_bytes, alone.expired) == (0, 0, 0)
