"""Every package that an install can bring has its version in constraints.txt."""

import re
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

LINES = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
PYTHONS = ("3.11.0", "3.11.2", "3.11.3", "3.12.0", "3.13.0", "3.14.0")
"""Where what libraries ask for changes; 3.11.2 is Debian 12's."""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


PINNED = {_plain(line.split("==")[0]): line.split("==")[1] for line in LINES if "==" in line}


@pytest.mark.parametrize("python", PYTHONS)
def test_what_pinned_packages_need_on_this_python_is_pinned_too(python: str) -> None:
    place = {
        "extra": "",
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
    }
    unpinned = set()
    for found in distributions():
        if PINNED.get(_plain(found.metadata["Name"])) != found.version:
            continue
        for text in found.requires or ():
            needed = Requirement(text)
            needs = needed.marker is None or needed.marker.evaluate(place)
            if needs and _plain(needed.name) not in PINNED:
                unpinned.add(f"{needed.name}, for {found.metadata['Name']}")
    assert unpinned == set()
