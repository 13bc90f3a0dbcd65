"""The Envoy configurations that we ship are what `epp local gateway-config` prints."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epp import protocol

MANIFESTS = Path(__file__).parents[2] / "manifests" / "envoy"
SHAPES = ("standalone", "full-duplex")


def manager(shape: str) -> Any:
    listener = json.loads((MANIFESTS / f"{shape}.json").read_text())["static_resources"]
    return listener["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


def ext_procs(shape: str) -> list[Any]:
    return [one["typed_config"] for one in manager(shape)["http_filters"] if "ext_proc" in str(one)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shipped_configuration_is_the_printed_one(shape: str) -> None:
    command = [sys.executable, "-m", "epp.cli", "local", "gateway-config", "--envoy", shape]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    fix = f"epp local gateway-config --envoy {shape} > manifests/envoy/{shape}.json"
    assert (MANIFESTS / f"{shape}.json").read_text() == printed, f"write it anew: {fix}"


@pytest.mark.parametrize("shape", SHAPES)
def test_a06_one_body_streaming_filter_and_no_mode_override(shape: str) -> None:
    """Protected by `_filters` in epp/sim/gateway/envoy.py."""
    (only,) = ext_procs(shape)
    assert not only.get("allow_mode_override", False)


def test_a07_full_duplex_bodies_come_with_trailers() -> None:
    """Protected by the processing modes in epp/sim/gateway/envoy.py; Envoy refuses SKIP here."""
    (full,) = ext_procs("full-duplex")
    mode = full["processing_mode"]
    assert mode["request_trailer_mode"] == mode["response_trailer_mode"] == "SEND"


@pytest.mark.parametrize("shape", SHAPES)
def test_routing_headers_of_clients_are_removed_before_any_filter(shape: str) -> None:
    (early,) = manager(shape)["early_header_mutation_extensions"]
    removed = {one["remove"] for one in early["typed_config"]["mutations"]}
    assert removed >= set(protocol.ROUTING_HEADERS)
