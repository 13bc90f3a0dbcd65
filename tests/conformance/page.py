"""Write docs/conformance.md: what is shown by which test, read from the tests themselves.

`make conformance-page` writes it; a test keeps it current. Nothing in it is written by hand but the
sentences between the tables, which are below.
"""

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.shipped import SHIPPED
from tests.guards import entries
from tests.guards.entries import FaultTest, Guard

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"
HERMETIC = ROOT / "tests" / "conformance" / "hermetic.toml"
DATA_PLANE = ROOT / "tests" / "conformance" / "data_plane.toml"

GROUPS = {
    "A": ("The ext_proc protocol and bodies", 32),
    "B": ("Scheduling and scoring", 0),
    "C": ("Prefix index and KV events", 0),
    "D": ("Prefill and decode apart, and the sidecar", 0),
    "E": ("Redis", 0),
    "F": ("Kubernetes", 0),
    "G": ("Load, overload and security", 17),
}
"""Letter of a group of faults: its title, and how many there are, 0 while it is not complete."""

HEAD = """# Conformance

What is shown by which test. This page is generated from the tests (`make conformance-page`), and a
test fails when it is out of date.

* A **fault** is something that went wrong in the field with gateways, pickers or engines, under a
  stable id. Each test of a fault is a sentence about what is right instead.
* A **guard** names the place in the product that protects against the fault. `make test-guards`
  disables each in turn on a copy of the tree, and the test must then fail.
* *(long)*: left out of the everyday suite, run by `make test-long`.
"""


def page() -> str:
    """The text of docs/conformance.md."""
    listed = entries.read(ROOT)
    parts = [HEAD, *_faults(entries.fault_tests(ROOT), listed.guards, listed.groups)]
    parts.append(_hermetic(tomllib.loads(HERMETIC.read_text())["case"]))
    parts.append(_data_plane(tomllib.loads(DATA_PLANE.read_text())))
    return "\n".join(parts)


def _faults(
    tests: Sequence[FaultTest], guards: Sequence[Guard], covered: Sequence[str]
) -> Iterator[str]:
    protected: defaultdict[str, list[Path]] = defaultdict(list)
    for guard in guards:
        protected[guard.test].append(guard.file)
    by_fault: defaultdict[str, list[FaultTest]] = defaultdict(list)
    for test in tests:
        by_fault[test.fault].append(test)
    for letter, (title, count) in GROUPS.items():
        ids = {f"{letter}{number:02}" for number in range(1, count + 1)}
        ids |= {fault for fault in by_fault if fault[0] == letter}
        if not ids:
            continue
        about = [f"## {letter}: {title}", ""]
        missing = sorted(ids - set(by_fault))
        if missing:
            about += [f"Not shown by a test of their own: {', '.join(missing)}.", ""]
        if letter not in covered:
            about += ["This group has no guards yet.", ""]
        rows = [
            (fault, _sentence(test), _places(protected[test.test]))
            for fault in sorted(by_fault)
            if fault[0] == letter
            for test in by_fault[fault]
        ]
        columns = ("id", "shown", "protected in") if letter in covered else ("id", "shown")
        yield "\n".join([*about, *_table(columns, rows), ""])


def _sentence(test: FaultTest) -> str:
    """What the test's name says, as a link to its file."""
    path, _, name = test.test.partition("::")
    words = name.removeprefix(f"test_{test.fault}_").replace("_", " ")
    return f"[{words}](../{path})" + (" *(long)*" if test.long else "")


def _places(files: Iterable[Path]) -> str:
    return ", ".join(f"`{file}`" for file in dict.fromkeys(files))


def _hermetic(cases: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for case in cases:
        differs = case.get("differs")
        said = f"{differs['reference']}; {differs['because']}" if differs else "nothing"
        rows.append((case["name"], said))
    same = sum("differs" not in case for case in cases)
    return "\n".join(
        [
            "## The reference picker's hermetic cases",
            "",
            "Played on our picker over a real ext_proc stream from "
            f"[a data file](../{HERMETIC.relative_to(ROOT)}), once with our default profile and "
            f"once with the profile that the reference plays them with. {same} of {len(cases)} go "
            "as there in every respect.",
            "",
            *_table(("case", "what the reference does besides or instead; why we do not"), rows),
            "",
        ]
    )


def _data_plane(listed: Mapping[str, Any]) -> str:
    """One row for each test of the suite, one column for each configuration."""
    names = [shipped.name for shipped in SHIPPED]
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for entry in listed["test"]:
        cannot = entry.get("cannot", {})
        held = [f"no ({len(notes) + 1})" if name in cannot else "yes" for name in names]
        notes += [f"{len(notes) + 1}. `{name}`: {why}." for name, why in cannot.items()]
        words = entry["function"].removeprefix("test_").replace("_", " ")
        rows.append((f"{entry['name']}: {words}", *held, entry.get("status", "")))
    only_status = ", ".join(entry["name"] for entry in listed["only_status"])
    return "\n".join(
        [
            "## The data plane, through a real Envoy",
            "",
            "The data-plane tests of the Gateway API Inference Extension's conformance suite, with "
            "the picker's `--conformance`, echo servers on 127.0.0.x and the Envoy configurations "
            f"of `manifests/envoy/`, from [a data file](../{DATA_PLANE.relative_to(ROOT)}).",
            "",
            *_table(("test", *names, "left to Kubernetes"), rows),
            "",
            *notes,
            "",
            "These of the suite look at conditions of Kubernetes objects alone and wait for the "
            f"picker's Kubernetes part: {only_status}.",
            "",
        ]
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *(row[: len(columns)] for row in rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines]


if __name__ == "__main__":
    PAGE.write_text(page())
