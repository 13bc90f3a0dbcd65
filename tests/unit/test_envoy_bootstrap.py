"""What the standalone Envoy's bootstrap promises. That Envoy takes it: tests/integration."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from epp import protocol
from epp.errors import ConfigError
from epp.request.transport.grpc import TransportLimits
from epp.sim.gateway.envoy import EnvoySettings, command, render
from epp.sim.gateway.modes import Shape
from epp.sim.gateway.routes import API_PATHS, EVERY_PATH


def _rendered(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "listen_port": 8080,
        "admin_port": 9901,
        "ext_proc_port": 9002,
        "endpoints": ["127.0.0.1:8000", "[::1]:8001"],
    }
    config: dict[str, Any] = json.loads(render(EnvoySettings(**(values | changes))))
    return config


def _manager(config: dict[str, Any]) -> dict[str, Any]:
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    manager: dict[str, Any] = chain["filters"][0]["typed_config"]
    return manager


def _host(config: dict[str, Any]) -> dict[str, Any]:
    (host,) = _manager(config)["route_config"]["virtual_hosts"]
    found: dict[str, Any] = host
    return found


def _mode(config: dict[str, Any]) -> dict[str, str]:
    mode: dict[str, str] = _manager(config)["http_filters"][0]["typed_config"]["processing_mode"]
    return mode


FDS = "FULL_DUPLEX_STREAMED"


@pytest.mark.parametrize(
    ("shape", "trailers", "expected"),
    [
        ("standalone", "skip", (FDS, "SEND", "NONE", "SKIP")),
        ("standalone", "send", (FDS, "SEND", "NONE", "SEND")),
        ("full-duplex", "skip", (FDS, "SEND", FDS, "SEND")),
        ("original-dst", "skip", (FDS, "SEND", "NONE", "SKIP")),
        ("buffered", "skip", ("BUFFERED", "SKIP", "NONE", "SKIP")),
        ("headers-only", "skip", ("NONE", "SKIP", "NONE", "SKIP")),
        ("headers-only", "send", ("NONE", "SKIP", "NONE", "SEND")),
    ],
)
def test_each_shape_says_what_passes_the_picker(
    shape: Shape, trailers: str, expected: tuple[str, ...]
) -> None:
    mode = _mode(_rendered(shape=shape, response_trailers=trailers))
    assert mode["request_header_mode"] == mode["response_header_mode"] == "SEND"
    names = (
        "request_body_mode",
        "request_trailer_mode",
        "response_body_mode",
        "response_trailer_mode",
    )
    assert tuple(mode[name] for name in names) == expected


def test_there_is_one_ext_proc_filter_and_no_mode_override() -> None:
    filters = _manager(_rendered())["http_filters"]
    assert [each["name"] for each in filters] == ["ext_proc", "router"]
    assert "override" not in json.dumps(filters)


def test_without_a_picker_there_is_no_filter_and_no_cluster_for_it() -> None:
    config = _rendered(shape="none")
    assert [each["name"] for each in _manager(config)["http_filters"]] == ["router"]
    assert "ext_proc" not in json.dumps(config)
    (pool,) = config["static_resources"]["clusters"]
    assert "override_host" not in json.dumps(pool)


def test_every_routing_header_of_a_client_is_removed_early() -> None:
    (early,) = _manager(_rendered())["early_header_mutation_extensions"]
    removed = [each["remove"] for each in early["typed_config"]["mutations"]]
    assert removed == list(protocol.ROUTING_HEADERS)


def test_the_destination_is_never_read_from_a_header() -> None:
    pool = _rendered()["static_resources"]["clusters"][0]
    policy = pool["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"]
    (source,) = policy["override_host_sources"]
    assert set(source) == {"metadata"}


def test_the_admin_page_is_on_loopback_only() -> None:
    config = _rendered(listen_host="0.0.0.0")
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    listener = config["static_resources"]["listeners"][0]
    assert listener["address"]["socket_address"]["address"] == "0.0.0.0"


def test_endpoints_keep_their_family() -> None:
    pool = _rendered()["static_resources"]["clusters"][0]
    endpoints = pool["load_assignment"]["endpoints"][0]["lb_endpoints"]
    sockets = [each["endpoint"]["address"]["socket_address"] for each in endpoints]
    assert sockets == [
        {"address": "127.0.0.1", "port_value": 8000},
        {"address": "::1", "port_value": 8001},
    ]


@pytest.mark.parametrize("bad", ["10.0.0.1", ":80", "10.0.0.1:http", ""])
def test_an_endpoint_that_is_no_address_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="is not ip:port"):
        _rendered(endpoints=[bad])


def test_the_picker_is_health_checked_so_that_failing_open_can_work() -> None:
    picker = _rendered(tls=False)["static_resources"]["clusters"][1]
    (check,) = picker["health_checks"]
    assert check["grpc_health_check"]["service_name"] == protocol.EXT_PROC_SERVICE
    assert check["no_traffic_interval"] == check["interval"]
    assert picker["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
    assert "transport_socket" not in picker


def test_circuit_breakers_are_above_the_wall_of_1024() -> None:
    for cluster in _rendered()["static_resources"]["clusters"]:
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert threshold["max_requests"] >= 60_000
        assert threshold["max_retries"] > 3


def test_where_there_are_retries_no_trailers_of_a_request_reach_them() -> None:
    config = _rendered()
    assert _manager(config)["http_protocol_options"] == {"enable_trailers": False}
    declared, rest, _ = _host(config)["routes"]
    assert declared["match"]["headers"] == [{"name": "trailer", "present_match": True}]
    assert "retry_policy" not in declared["route"]
    assert "retry_policy" in rest["route"]
    for changes in ({"retries": False}, {"shape": "original-dst"}):
        manager = _manager(_rendered(**changes))
        assert manager["http_protocol_options"] == {"enable_trailers": True}
        assert "retry_policy" not in json.dumps(manager)


def test_paths_that_are_not_listed_get_404_and_no_picker() -> None:
    *passing, refused = _host(_rendered(api_paths=(*API_PATHS, "/a.b/c")))["routes"]
    for route in passing:
        regex = route["match"]["safe_regex"]["regex"]
        for path in (*API_PATHS, "/a.b/c", "/v1/completions/render", "/v1/models/"):
            assert re.fullmatch(regex, path), path
        for path in ("/metrics", "/v1/modelsx", "/v1", "/", "/axb/c", "/x/v1/models", "/V1/models"):
            assert not re.fullmatch(regex, path), path
    assert refused["match"] == {"prefix": "/"}
    assert refused["direct_response"]["status"] == 404
    error = json.loads(refused["direct_response"]["body"]["inline_string"])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert refused["typed_per_filter_config"]["ext_proc"]["disabled"] is True


def test_every_path_may_be_let_through() -> None:
    routes = _host(_rendered(api_paths=EVERY_PATH))["routes"]
    assert [route["match"]["prefix"] for route in routes] == ["/", "/"]
    assert "direct_response" not in json.dumps(routes)


@pytest.mark.parametrize("bad", ["", "/", "v1", "/v1/", "/a b", "/a?b", "/a#b", "//a"])
def test_an_api_path_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="is not like /v1/completions"):
        _rendered(api_paths=["/v1/models", bad])


def test_the_picker_is_asked_only_where_a_route_was_found() -> None:
    config = _rendered()
    assert _manager(config)["http_filters"][0]["disabled"] is True
    assert _host(config)["typed_per_filter_config"]["ext_proc"]["overrides"] == {}


def test_words_for_the_picker_do_not_go_on_to_the_engine() -> None:
    removed = _host(_rendered())["request_headers_to_remove"]
    assert set(removed) == set(protocol.GATEWAY_HEADERS)


def test_a_buffering_gateway_holds_what_the_picker_may_take() -> None:
    """More than it takes, so that it refuses in its own words; less than its largest message."""
    limits = TransportLimits()
    for changes in ({}, {"retries": False}):
        for route in _host(_rendered(shape="buffered", **changes))["routes"][:-1]:
            held = route["request_body_buffer_limit"]
            assert limits.max_request_bytes < held < limits.max_message_bytes - 2**16
    assert "request_body_buffer_limit" not in _host(_rendered())["routes"][0]


def test_a_pool_that_nobody_lists_takes_the_picker_at_its_metadata() -> None:
    pool = _rendered(shape="original-dst", endpoints=[])["static_resources"]["clusters"][0]
    assert pool["type"] == "ORIGINAL_DST"
    assert "load_assignment" not in pool
    assert pool["original_dst_lb_config"] == {
        "metadata_key": {"key": "envoy.lb", "path": [{"key": protocol.DESTINATION}]}
    }


@pytest.mark.parametrize(
    ("host", "kind"), [("10.0.0.1", "STATIC"), ("::1", "STATIC"), ("epp.ns.svc", "STRICT_DNS")]
)
def test_a_picker_may_have_a_name(host: str, kind: str) -> None:
    assert _rendered(ext_proc_host=host)["static_resources"]["clusters"][1]["type"] == kind


def test_the_log_goes_to_a_file_or_nowhere(tmp_path: Path) -> None:
    assert "access_log" not in _manager(_rendered())
    (log,) = _manager(_rendered(access_log=tmp_path / "a.log"))["access_log"]
    assert log["typed_config"]["path"] == str(tmp_path / "a.log")


def test_the_command_line_names_the_configuration_and_the_threads() -> None:
    argv = command(Path("envoy"), Path("e.json"), concurrency=2)
    assert argv[argv.index("--config-path") + 1] == "e.json"
    assert argv[argv.index("--concurrency") + 1] == "2"
