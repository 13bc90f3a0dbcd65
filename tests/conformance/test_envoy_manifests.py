"""The Envoy configurations that we ship, each held to the rules that field faults taught."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from epp import protocol
from epp.request.transport.grpc import TransportLimits
from epp.sim.fleets.binaries import find_envoy
from tests.conformance.shipped import KUBERNETES, MANIFESTS, SHIPPED, Shipped

EVERY = (*SHIPPED, KUBERNETES)
each_file = pytest.mark.parametrize("shipped", EVERY, ids=str)


def test_every_file_is_held_to_the_rules() -> None:
    assert {each.file for each in EVERY} == set(MANIFESTS.glob("*.json"))


@each_file
def test_the_shipped_configuration_is_the_printed_one(shipped: Shipped) -> None:
    command = [sys.executable, "-m", "epp.cli", "local", "gateway-config", *shipped.flags]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    fix = f"epp local gateway-config {' '.join(shipped.flags)} > {shipped.file}"
    assert shipped.file.read_text() == printed, f"write it anew: {fix}"


@each_file
def test_envoy_takes_it(shipped: Shipped, tmp_path: Path) -> None:
    envoy = find_envoy(tmp_path)
    command = [str(envoy), "--mode", "validate", "--config-path", str(shipped.file)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@each_file
def test_routing_headers_of_clients_are_removed_before_any_filter(shipped: Shipped) -> None:
    (early,) = shipped.manager["early_header_mutation_extensions"]
    removed = {one["remove"] for one in early["typed_config"]["mutations"]}
    assert removed >= set(protocol.ROUTING_HEADERS)
    assert set(shipped.host["request_headers_to_remove"]) >= set(protocol.GATEWAY_HEADERS)


@each_file
def test_the_destination_is_never_read_from_a_header(shipped: Shipped) -> None:
    pool = json.dumps(shipped.cluster("pool"))
    assert "header" not in pool
    assert protocol.DESTINATION in pool


@each_file
def test_who_served_is_asked_wherever_envoy_can_say_it(shipped: Shipped) -> None:
    pool = json.dumps(shipped.cluster("pool"))
    assert (protocol.DESTINATION_SERVED in pool) == (shipped.shape != "original-dst")
    (only,) = shipped.ext_procs
    namespaces = only["metadata_options"]
    assert namespaces["receiving_namespaces"]["untyped"] == [protocol.LB_NAMESPACE]
    assert set(namespaces["forwarding_namespaces"]["untyped"]) == {
        protocol.LB_NAMESPACE,
        protocol.SUBSET_NAMESPACE,
    }


@each_file
def test_the_picker_is_health_checked_often_and_never_used_in_a_panic(shipped: Shipped) -> None:
    picker = shipped.cluster("picker")
    (check,) = picker["health_checks"]
    assert check["grpc_health_check"]["service_name"] == protocol.EXT_PROC_SERVICE
    for name in ("interval", "no_traffic_interval", "unhealthy_interval", "timeout"):
        assert 0 < float(check[name].rstrip("s")) <= 2, name
    assert picker["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}


@each_file
def test_it_fails_closed_and_says_503(shipped: Shipped) -> None:
    (only,) = shipped.ext_procs
    assert only["failure_mode_allow"] is False
    assert only["status_on_error"] == {"code": "ServiceUnavailable"}


@each_file
def test_circuit_breakers_are_far_above_the_streams_of_a_day(shipped: Shipped) -> None:
    for name in ("pool", "picker"):
        (threshold,) = shipped.cluster(name)["circuit_breakers"]["thresholds"]
        for limit in ("max_connections", "max_pending_requests", "max_requests"):
            assert threshold[limit] >= 40_000, (name, limit)


@each_file
def test_every_wait_has_its_bound_and_answers_may_be_long(shipped: Shipped) -> None:
    manager = shipped.manager
    assert manager["request_headers_timeout"] == "30s"
    assert 300 <= float(manager["stream_idle_timeout"].rstrip("s")) <= 3600
    (only,) = shipped.ext_procs
    assert float(only["message_timeout"].rstrip("s")) >= 10
    for route in shipped.host["routes"]:
        if "route" in route:
            assert float(route["route"]["timeout"].rstrip("s")) >= 3600
    for name in ("pool", "picker"):
        assert shipped.cluster(name)["connect_timeout"] == "1s"


@each_file
def test_paths_are_resolved_before_they_are_compared(shipped: Shipped) -> None:
    manager = shipped.manager
    assert manager["normalize_path"] is True
    assert manager["merge_slashes"] is True
    assert manager["path_with_escaped_slashes_action"] == "REJECT_REQUEST"
    *passing, last = shipped.host["routes"]
    assert all("safe_regex" in route["match"] for route in passing)
    assert last["direct_response"]["status"] == 404
    assert last["typed_per_filter_config"]["ext_proc"]["disabled"] is True


@each_file
def test_a_request_without_a_route_asks_no_picker(shipped: Shipped) -> None:
    (filter_,) = [one for one in shipped.manager["http_filters"] if one["name"] == "ext_proc"]
    assert filter_["disabled"] is True
    assert "disabled" not in shipped.host["typed_per_filter_config"]["ext_proc"]


def test_a_buffered_body_may_be_larger_than_the_picker_takes() -> None:
    (shipped,) = [each for each in SHIPPED if each.request_body == "BUFFERED"]
    for route in shipped.host["routes"][:-1]:
        assert route["request_body_buffer_limit"] > TransportLimits().max_request_bytes
