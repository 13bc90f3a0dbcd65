"""docs/operations.md: links lead somewhere; ports, headers, times, flags and samples are true."""

import re
from pathlib import Path

import pytest

from epp import protocol
from epp.commands.serve import serve_flags
from epp.config.pools_file import parse_pools
from epp.config.serve import ServeSettings, serve_settings
from epp.doctor.examine import checks
from epp.sim.gateway.envoy import EnvoySettings
from sidecar.settings import SidecarSettings
from tests.manifests.broken import NOW

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text()
_ANCHOR = re.compile(r"[^\w\- ]")


def _section(title: str) -> str:
    """Up to the next title of the same height."""
    begun = PAGE.partition(f"\n## {title}\n")[2]
    assert begun, title
    return begun.partition("\n## ")[0]


def _anchors(page: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {_ANCHOR.sub("", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)\s]+)\)", PAGE))))
def test_a_link_leads_somewhere(link: str) -> None:
    file, _, anchor = link.partition("#")
    place = DOCS / file if file else DOCS / "operations.md"
    assert place.exists()
    if anchor:
        assert anchor in _anchors(place.read_text())


def test_each_section_is_in_the_contents() -> None:
    contents = PAGE.partition("\n## ")[0]
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert re.findall(r"\[([^\]]+)\]\(#", contents) == titles


def test_the_sample_of_several_pools_can_be_used() -> None:
    sample = _section("Several pools in one picker").partition("```yaml\n")[2].partition("```")[0]
    llama, qwen = parse_pools(sample.encode(), "sample", serve_settings({}))
    assert llama.hosts == ("llama.example.com",)
    assert qwen.settings.endpoint_target_ports == ("8000",)
    assert llama.settings.state_port != qwen.settings.state_port


def test_every_header_that_steers_or_is_believed_is_listed() -> None:
    listed = set(re.findall(r"`([a-z][\w-]+)`", _section("Headers")))
    for name in (*protocol.ROUTING_HEADERS, *protocol.GATEWAY_HEADERS, *protocol.TIMEOUT_MS):
        assert name in listed, name
    assert {protocol.REQUEST_ID, protocol.POOL_METADATA} <= listed


def test_every_port_is_listed() -> None:
    listed = _section("What runs, and its ports")
    serve, sidecar = ServeSettings.model_fields, SidecarSettings.model_fields
    ports = [serve[name].default for name in serve if name.endswith("_port")]
    ports += [sidecar[name].default for name in sidecar if name.endswith("_port")]
    ports.append(sidecar["port"].default)
    for port in filter(None, ports):
        assert re.search(rf"\b{port}\b", listed), port


@pytest.mark.parametrize(
    ("flag", "seconds"),
    re.findall(r"`--([a-z-]+)` ([\d.]+) ?(?:s|ms)\b", _section("Timeouts")),
)
def test_a_time_is_the_default(flag: str, seconds: str) -> None:
    named = flag.replace("-", "_")
    fields = {**ServeSettings.model_fields, **SidecarSettings.model_fields}
    field = next(fields[name] for name in (f"{named}_s", named) if name in fields)
    assert float(seconds) in {float(field.default), 1000 * float(field.default)}


def test_times_without_a_flag_are_the_defaults_too() -> None:
    told = _section("Timeouts")
    fields = SidecarSettings.model_fields
    assert f"| {fields['connect_timeout_s'].default:g} s |" in told
    idle, upload = fields["idle_timeout_s"].default, fields["upload_idle_s"].default
    assert f"| {idle:g} s; {upload:g} s |" in told
    assert f"| {EnvoySettings.__dataclass_fields__['idle_timeout_s'].default:g} s |" in told


def test_every_flag_that_is_named_exists() -> None:
    import typer

    from epp.cli import app

    group = typer.main.get_command(app)
    known = {f"--{no}{name}" for name in serve_flags() for no in ("", "no-")} | {"--help"}
    waiting = [group]
    while waiting:
        one = waiting.pop()
        waiting += getattr(one, "commands", {}).values()
        known |= {word for each in one.params for word in (*each.opts, *each.secondary_opts)}
    of_engines = {"--kv-transfer-config", "--ec-transfer-config", "--kv-events-config", "--model"}
    of_engines |= {"--enable-scale-out", "--enable-metrics", "--enable-force-include-usage"}
    for flag in sorted(set(re.findall(r"`?(--[a-z][a-z0-9-]+)", PAGE))):
        families = any(each.startswith(flag) for each in known) and flag.endswith("-")
        assert flag in known | of_engines or families, flag


def test_every_check_of_the_doctor_is_explained() -> None:
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \|", _section("Install"), re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
    assert checks(NOW).keys() <= told
