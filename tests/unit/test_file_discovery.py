"""Members from a file that the configuration names, in the place of `--endpoints-file`."""

import asyncio
from pathlib import Path

import pytest

from epp.config.serve import serve_settings
from epp.errors import ConfigError, PluginError
from epp.framework import Discovery, registry
from epp.picker import Picker
from epp.request.plan import report
from epp.request.plan.live import build, unfollowed
from epp.request.plan.resolve import resolve
from tests.fakes.waiting import until

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
ONE = "endpoints: [{name: a, address: 10.0.0.1, port: '8000'}]"
TWO = (
    "endpoints: [{name: a, address: 10.0.0.1, port: '8000'}, {name: b, address: 10.0.0.2, port: 1}]"
)


def config(path: Path, more: str = "", *, named: bool = True) -> str:
    layer = "dataLayer: {discovery: {pluginRef: members}}\n" if named else ""
    entry = f"{{type: file-discovery, name: members, parameters: {{path: {path}{more}}}}}"
    return f"{HEAD}plugins: [{{type: queue-scorer}}, {entry}]\n{layer}"


def picker(text: str, **given: object) -> Picker:
    return Picker(serve_settings({"config_text": text, "tokenizer": "estimate", **given}))


def names(made: Picker) -> list[str]:
    return [member.address for member in made.pool.endpoints]


def test_the_members_are_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "members.yaml"
    file.write_text(TWO)
    made = picker(config(file))
    made.load_members()
    assert names(made) == ["10.0.0.1:8000", "10.0.0.2:1"]


async def test_the_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "members.yaml"
    file.write_text(ONE)
    made = picker(config(file))
    made.load_members()
    await made.members.run()  # and does not wait for any change
    assert names(made) == ["10.0.0.1:8000"]


async def test_the_file_is_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "members.yaml"
    file.write_text(ONE)
    made = picker(config(file, ", watchFile: true"))
    made.load_members()
    assert names(made) == ["10.0.0.1:8000"]
    file.write_text(TWO)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(made.members.run())
        await until(lambda: len(names(made)) == 2, within_s=10.0)
        following.cancel()


def test_a_pool_has_one_list_of_members(tmp_path: Path) -> None:
    made = picker(config(tmp_path / "m.yaml"), endpoints_file="e.yaml")
    with pytest.raises(ConfigError, match="leave --endpoints-file out"):
        made.load_members()
    made = picker(f"{HEAD}plugins: [{{type: queue-scorer}}]")
    with pytest.raises(ConfigError, match="nobody says which endpoints there are"):
        made.load_members()
    made = picker(config(tmp_path / "m.yaml"), kubeconfig="k.yaml")
    with pytest.raises(ConfigError, match="leave --kubeconfig and --endpoint-selector out"):
        made.load_members()


def test_a_file_that_is_not_there_or_wrong_stops_the_start_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "members.yaml"
    made = picker(config(file))
    with pytest.raises(ConfigError, match=r"members\.yaml cannot be read"):
        made.load_members()
    file.write_text("endpoints: [{name: a, address: host, port: 1}]")
    with pytest.raises(ConfigError, match=r"members\.yaml:1:\d+ .*names are not resolved"):
        made.load_members()


def test_an_entry_that_no_data_layer_names_is_not_run(tmp_path: Path) -> None:
    plan = resolve(config(tmp_path / "m.yaml", named=False).encode(), "f")
    assert plan.notes == ("f:3:33 nothing refers to 'members': it is not run",)
    assert "endpoints" not in plan.producers
    made = picker(config(tmp_path / "m.yaml", named=False), endpoints_file="e.yaml")
    with pytest.raises(ConfigError, match=r"e\.yaml cannot be read"):
        made.load_members()


def test_only_a_discovery_finds_endpoints() -> None:
    def refused(layer: str) -> str:
        plugins = "plugins: [{type: queue-scorer}, {type: metrics-data-source}]"
        with pytest.raises(ConfigError) as refusal:
            resolve(f"{HEAD}{plugins}\ndataLayer: {layer}".encode(), "f")
        return str(refusal.value)

    said = refused("{discovery: {pluginRef: metrics-data-source}}")
    assert said == "f:4:25 'metrics-data-source' finds no endpoints: use file-discovery"
    assert "f:4:25 `plugins` has no entry" in refused("{discovery: {pluginRef: file-discovery}}")


def test_what_will_run_says_where_the_members_come_from(tmp_path: Path) -> None:
    plan = resolve(config(tmp_path / "m.yaml").encode(), "f")
    (line,) = [line for line in report.text(plan).splitlines() if "endpoints:" in line]
    assert line.startswith("  endpoints: members (file-discovery)")
    assert line.endswith("-> every decision")
    assert plan.notes == ()


def test_another_file_holds_from_the_next_start(tmp_path: Path) -> None:
    before, after = (
        build(resolve(config(tmp_path / name).encode(), "f")) for name in ("one", "two")
    )
    assert unfollowed(before, after) == ("members",)


def test_a_path_is_absolute() -> None:
    found = registry.find("file-discovery")
    assert found is not None
    assert isinstance(found.build({"path": "/a"}), Discovery)
    with pytest.raises(PluginError, match="path must be the absolute path of a file, got 'a'"):
        found.build({"path": "a"})
    with pytest.raises(PluginError, match="needs path"):
        found.build({})
