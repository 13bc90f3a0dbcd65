"""The Go picker's command lines: each flag means the same here, or is refused by a sentence.

`SAME` and `REFUSED` are its whole list of flags. A row names what a command line makes of our
settings, or the words of the refusal.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from epp import cli
from epp.commands.flags_page import page
from epp.commands.go_flags import ELSEWHERE, own_arguments
from epp.commands.serve import serve as serve_command
from epp.commands.serve import serve_flags
from epp.config.serve import ServeSettings, serve_settings
from epp.errors import ConfigError
from epp.framework import EndpointId
from epp.picker import Picker
from epp.request.transport import ciphers
from epp.state.endpoints import Member
from epp.state.metrics_page import EngineMetrics
from epp.state.reports import LoadReport

DOCS = Path(__file__).parents[2] / "docs" / "flags.md"
Serve = Callable[..., ServeSettings]
Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in serve_flags().values():
        if flag.env:
            monkeypatch.delenv(flag.env, raising=False)
    monkeypatch.setenv(ciphers.VARIABLE, "")  # put back after the test


def _command() -> Any:
    """`epp serve` beside another command, built once: that takes longer than a whole test."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command("serve", context_settings=cli.HELP)(serve_command)
    app.command("version")(cli.version)
    return typer.main.get_command(app)


COMMAND = _command()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """The settings that a command line makes."""

    def serve(*arguments: str, file: str | None = "e.yaml") -> ServeSettings:
        built: list[ServeSettings] = []
        monkeypatch.setattr("epp.app.run", built.append)
        words = own_arguments(["serve", *(["--endpoints-file", file] if file else []), *arguments])
        COMMAND.main(words, standalone_mode=False)
        (settings,) = built
        return settings

    return serve


@pytest.fixture
def refused(serve: Serve) -> Refused:
    """What a command line is refused with."""

    def refused(*arguments: str, file: str | None = "e.yaml") -> str:
        with pytest.raises(ConfigError) as error:
            serve(*arguments, file=file)
        return str(error.value)

    return refused


SAME: list[tuple[str, str, object]] = [
    ("--grpc-port=19002", "grpc_port", 19002),
    ("--grpc-health-port=19003", "grpc_health_port", 19003),
    ("--metrics-port=19090", "metrics_port", 19090),
    ("--pool-group=inference.networking.x-k8s.io", "pool_group", "inference.networking.x-k8s.io"),
    ("--pool-name=p", "pool_name", "p"),
    ("--pool-namespace=ns", "pool_namespace", "ns"),
    ("--disable-endpoint-subset-filter", "disable_endpoint_subset_filter", True),
    ("--emit-endpoint-scores", "emit_endpoint_scores", True),
    ("--refresh-metrics-interval=100ms", "refresh_metrics_interval_s", 0.1),
    ("--refresh-metrics-interval=10ms", "refresh_metrics_interval_s", 0.05),
    ("--metrics-staleness-threshold=5s", "metrics_staleness_threshold_s", 5.0),
    ("--cert-path=/certs", "cert_path", Path("/certs")),
    ("--enable-cert-reload=true", "enable_cert_reload", True),
    ("--secure-serving=false", "secure_serving", False),
    ("--tls-min-version=VersionTLS13", "tls_min_version", "VersionTLS13"),
    (
        "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256",
        "tls_cipher_suites",
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
    ),
    ("--health-checking", "grpc_port", 9002),
    ("--enable-grpc-stream-metrics", "enable_grpc_stream_metrics", True),
    ("--grpc-max-recv-msg-size=10MiB", "grpc_max_recv_msg_size", 10 * 2**20),
    ("--grpc-max-recv-msg-size=0", "grpc_max_recv_msg_size", None),
    ("--grpc-max-send-msg-size=25MB", "grpc_max_send_msg_size", 25_000_000),
    ("--drain-timeout=1m30s", "drain_timeout_s", 90.0),
    ("-v=3", "log_level", "info"),
    ("-v=4", "log_level", "debug"),
    ("-v5", "log_level", "debug"),
    ("--v=9", "log_level", "debug"),
    ("--zap-log-level=error", "log_level", "error"),
    ("--zap-log-level=panic", "log_level", "error"),
    ("--zap-log-level=5", "log_level", "debug"),
    ("--zap-encoder=json", "log_format", "json"),
    ("--zap-encoder=console", "log_format", "text"),
    ("--zap-devel", "log_format", "text"),
    ("--zap-devel=false", "log_format", "json"),
    ("--zap-stacktrace-level=error", "log_level", "info"),
    ("--zap-time-encoding=rfc3339", "log_format", "json"),
    ("--refresh-prometheus-metrics-interval=5s", "metrics_port", 9090),
    ("--config-file=/x.yaml", "config_file", Path("/x.yaml")),
    ("--config-text={kind: x}", "config_text", "{kind: x}"),
    ("--config-text=", "config_text", None),
    ("--allow-experimental-plugins", "allow_experimental_plugins", True),
    ("--allow-experimental-plugins=false", "allow_experimental_plugins", False),
    ("--ha-enable-leader-election=false", "store", "memory"),
    ("--metrics-endpoint-auth=false", "metrics_port", 9090),
    ("--enable-pprof=false", "admin_port", 9091),
    ("--tracing=false", "log_level", "info"),
]

CLUSTER: list[tuple[str, str, object]] = [
    ("--endpoint-selector=app=vllm,tier=a", "endpoint_selector", "app=vllm,tier=a"),
    ("--endpoint-target-ports=8000,8001", "endpoint_target_ports", ("8000", "8001")),
    ("--kubeconfig=/x", "kubeconfig", Path("/x")),
]
"""Of pools in Kubernetes, which have no endpoints file."""

REFUSED: list[tuple[str, str]] = [
    ("--ha-enable-leader-election", "--store redis"),
    ("--metrics-endpoint-auth", "--metrics-endpoint-auth=false"),
    ("--metrics-client-ca-file=/ca", "no TLS"),
    ("--metrics-cert-dir=/certs", "no TLS"),
    ("--enable-pprof=true", "--enable-pprof=false"),
    ("--tracing=True", "--tracing=false"),
    ("--total-queued-requests-metric=x", "engineConfigs"),
    ("--total-running-requests-metric=x", "engineConfigs"),
    ("--kv-cache-usage-percentage-metric=x", "engineConfigs"),
    ("--lora-info-metric=x", "engineConfigs"),
    ("--cache-info-metric=x", "engineConfigs"),
    ("--tls-min-version=VersionTLS11", "VersionTLS12"),
]

# Beyond the list: values that mean nothing, each refused by the flag's name.
NONSENSE: list[tuple[str, str]] = [
    ("--grpc-port=x", "--grpc-port"),
    ("--secure-serving=maybe", "--secure-serving: expected true or false"),
    ("--tracing=maybe", "--tracing: expected true or false"),
    ("--drain-timeout=soon", "--drain-timeout: expected a duration"),
    ("--drain-timeout=3 parsecs", "--drain-timeout: expected a duration"),
    ("--drain-timeout=inf", "--drain-timeout"),
    ("--refresh-prometheus-metrics-interval=x", "--refresh-prometheus-metrics-interval"),
    ("--refresh-metrics-interval=3s", "--metrics-staleness-threshold must be longer"),
    ("--grpc-max-recv-msg-size=big", "--grpc-max-recv-msg-size: expected a size"),
    ("--grpc-max-recv-msg-size=0.3", "--grpc-max-recv-msg-size: expected a size"),
    ("--grpc-max-recv-msg-size=3GiB", "--grpc-max-recv-msg-size"),
    ("--tls-min-version=1.3", "--tls-min-version"),
    ("--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA", "TLS_RSA_WITH_RC4_128_SHA"),
    ("--zap-encoder=xml", "--zap-encoder: expected json or console"),
    ("-v=high", "--v: expected a number"),
    ("-v", "--v needs a value"),
]


@pytest.mark.parametrize(("argument", "field", "value"), SAME)
def test_a_flag_of_the_go_picker_means_the_same(
    serve: Serve, argument: str, field: str, value: object
) -> None:
    assert getattr(serve(argument), field) == value


@pytest.mark.parametrize(("argument", "says"), REFUSED + NONSENSE)
def test_what_we_do_not_have_is_refused_with_what_to_use_instead(
    refused: Refused, argument: str, says: str
) -> None:
    assert says in refused(argument)


@pytest.mark.parametrize(("argument", "field", "value"), CLUSTER)
def test_a_flag_about_the_cluster_means_the_same(
    serve: Serve, refused: Refused, argument: str, field: str, value: object
) -> None:
    every = [argument for argument, *_ in CLUSTER]
    assert getattr(serve(*every, file=None), field) == value
    assert "--endpoints-file" in refused(*every)


@pytest.mark.parametrize("alone", ["--endpoint-selector=app=x", "--endpoint-target-ports=8000"])
def test_a_selector_needs_ports(refused: Refused, alone: str) -> None:
    assert "need each other" in refused(alone, file=None)


def test_both_tables_are_complete() -> None:
    """Every flag of the Go picker and of the plain reference picker stands in one of them."""
    arguments = {argument for argument, *_ in [*SAME, *CLUSTER, *REFUSED]} - {"-v5"}
    names = {argument.lstrip("-").partition("=")[0] for argument in arguments}
    assert set(ELSEWHERE) <= names
    assert names - set(ELSEWHERE) <= set(serve_flags())
    assert len(names) == 44


@pytest.mark.parametrize(
    "arguments",
    [
        ["--grpc-port", "1", "--secure-serving=false", "--drain-timeout", "50ms"],
        ["-grpc-port", "1", "-secure-serving=0", "-drain-timeout=0.05"],
        ["--grpc-port=1", "--no-secure-serving", "--drain-timeout=50000us"],
    ],
)
def test_dashes_and_switches_may_be_spelt_as_in_go(serve: Serve, arguments: list[str]) -> None:
    settings = serve(*arguments)
    assert (settings.grpc_port, settings.secure_serving) == (1, False)
    assert settings.drain_timeout_s == pytest.approx(0.05)


def test_the_command_line_of_the_conformance_suite_starts(serve: Serve) -> None:
    settings = serve(
        *("--pool-name", "X", "--pool-namespace", "inference-conformance-app-backend"),
        *("--zap-encoder", "json", "--grpc-port", "9002", "--grpc-health-port", "9003"),
    )
    assert settings.pool_name == "X"
    assert settings.pool_namespace == "inference-conformance-app-backend"
    assert settings.log_format == "json"


def test_the_command_line_of_the_reference_chart_starts(serve: Serve) -> None:
    settings = serve(
        *("--pool-name", "X", "--pool-namespace", "ns", "--cert-path", ""),
        *("--pool-group", "inference.networking.k8s.io", "--zap-encoder", "json"),
        *(
            "--grpc-health-port",
            "9003",
            "--v=4",
            "--tracing=false",
            "--metrics-endpoint-auth=false",
        ),
    )
    assert settings.cert_path is None
    assert settings.log_level == "debug"


def test_our_own_flags_beat_the_go_picker_s_and_its_zap_flags_beat_its_verbosity(
    serve: Serve,
) -> None:
    assert serve("--log-level", "warning", "-v", "5").log_level == "warning"
    assert serve("--zap-log-level", "error", "-v", "5").log_level == "error"
    assert serve("--zap-encoder=json", "--zap-devel").log_format == "json"


def test_a_value_may_look_like_a_flag(serve: Serve) -> None:
    assert serve("--cert-path", "-v").cert_path == Path("-v")


WORDS = [f"{dash}{name}" for name in (*serve_flags(), *ELSEWHERE) for dash in ("-", "--")]


@given(st.lists(st.sampled_from(WORDS) | st.sampled_from(["--", "-", "-v", "-v4"]) | st.text()))
def test_any_arguments_become_ours_or_are_refused(words: list[str]) -> None:
    try:
        ours = own_arguments(["serve", *words])
    except ConfigError:
        return
    assert ours[0] == "serve"
    assert len(ours) <= 1 + len(words)


def test_names_may_stand_in_one_flag_or_in_several(serve: Serve) -> None:
    assert serve("--known-models", "a, b", "--known-models=c").known_models == ("a", "b", "c")


def test_tls_is_chosen_before_grpc_is_loaded(serve: Serve) -> None:
    serve("--tls-min-version=VersionTLS13")
    assert os.environ[ciphers.VARIABLE] == ciphers.NONE


def test_the_environment_says_namespace_and_replica_where_no_flag_does(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESPACE", "from-env")
    monkeypatch.setenv("POD_NAME", "epp-0")
    settings = serve("--pool-namespace=")
    assert (settings.pool_namespace, settings.pod_name) == ("from-env", "epp-0")
    assert serve("--pool-namespace", "flag").pool_namespace == "flag"


def test_intervals_reach_the_scraper_and_the_load_book() -> None:
    values = {"refresh_metrics_interval_s": "50ms", "metrics_staleness_threshold_s": "7s"}
    picker = Picker(serve_settings({"endpoints_file": "e.yaml", **values}))
    assert picker.scraper.settings.interval_s == 0.05
    engine = EndpointId(picker.pool_id, "a", 8000)
    picker.pool.replace([Member(id=engine, address="10.0.0.1:8000", has_sidecar=False)], 0.0)
    picker.pool.scraped(engine, EngineMetrics(report=LoadReport(waiting=3)), 0.0)
    assert [e.load.waiting for e in picker.pool.ready(6.9)] == [3]
    assert [e.load.waiting for e in picker.pool.ready(7.1)] == [None]


def test_the_page_of_flags_is_current() -> None:
    assert DOCS.read_text() == page(), "write flags_page.page() to docs/flags.md"
