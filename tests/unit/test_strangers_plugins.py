"""Plugins of other people's distributions: found where they were installed, and nowhere else."""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from epp.errors import PluginError
from epp.framework import registry


def _installed(site: Path, files: list[str], value: str) -> Distribution:
    """A distribution as pip leaves it, with one scorer. Its files say nothing else."""
    about = site / "stranger-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[epp.scorers]\nodd = {value}\n")
    for name in files:
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("class Odd:\n    pass\n")
    record = [*files, "stranger-1.dist-info/RECORD"]
    (about / "RECORD").write_text("".join(f"{name},,\n" for name in record))
    (found,) = distributions(path=[str(site)])
    return found


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "modules", {name: sys.modules[name] for name in before})
    return tmp_path


@pytest.mark.parametrize(
    ("files", "value"),
    [
        (["stranger_one.py"], "stranger_one:Odd"),
        (["stranger_two/__init__.py"], "stranger_two:Odd"),
        (["stranger_three/__init__.py", "stranger_three/odd.py"], "stranger_three.odd:Odd"),
    ],
)
def test_a_module_and_a_package_of_its_own_load(site: Path, files: list[str], value: str) -> None:
    (entry,) = _installed(site, files, value).entry_points
    assert registry._load(entry).__name__ == "Odd"


def test_what_is_installed_in_place_loads_from_where_it_stands(site: Path) -> None:
    elsewhere = site / "stranger_four.py"
    elsewhere.write_text("class Odd:\n    pass\n")
    (entry,) = _installed(site, ["__editable__.stranger-1.pth"], "stranger_four:Odd").entry_points
    assert registry._load(entry).__name__ == "Odd"


def test_a_package_that_another_distribution_put_there_is_refused(site: Path) -> None:
    (site / "stranger_five.py").write_text("class Odd:\n    pass\n")
    (entry,) = _installed(site, ["stranger.py"], "stranger_five:Odd").entry_points
    with pytest.raises(PluginError, match="'stranger_five' of another distribution"):
        registry._load(entry)


def test_one_that_fails_when_it_is_imported_is_refused_by_its_name(site: Path) -> None:
    (site / "stranger_six.py").write_text("import stranger_seven\n")
    (entry,) = _installed(site, ["stranger.py"], "stranger_six:Odd").entry_points
    with pytest.raises(PluginError, match="'odd' cannot be loaded: No module named"):
        registry._load(entry)
