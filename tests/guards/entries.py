"""What `guards.toml` says, and what is wrong with it.

A guard names a fault test and the text in the product that protects against the fault. The test is
worth its name only if it fails once that text is replaced.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

LIST = Path("tests/faults/guards.toml")
FAULTS = Path("tests/faults")

_FAULT = re.compile(r"test_([A-Z]\d\d)_\w+")


@dataclass(frozen=True, slots=True)
class Guard:
    """One entry of the list."""

    test: str
    """Path and function, without the brackets of a parametrised test."""
    file: Path
    """The protecting file, relative to the root of the tree."""
    find: str
    """Text that occurs in it exactly once."""
    replace: str
    """What disables the protection."""

    @property
    def fault(self) -> str:
        """The id of the fault, `A04`; empty for a test that names none."""
        found = _FAULT.match(self.test.rpartition("::")[2])
        return found.group(1) if found else ""

    @property
    def name(self) -> str:
        return self.test.rpartition("::")[2]


@dataclass(frozen=True, slots=True)
class GuardList:
    """The whole file."""

    groups: tuple[str, ...]
    """Letters of the groups whose every test needs a guard."""
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class FaultTest:
    """A test that shows a fault by its id."""

    fault: str
    test: str
    """Path and function."""
    long: bool
    """Whether the everyday suite leaves it out."""


def read(root: Path) -> GuardList:
    """The list of the tree under `root`. Raises ValueError, naming the entry that is no guard."""
    text = (root / LIST).read_text()
    data = tomllib.loads(text)
    guards = []
    for number, entry in enumerate(data.get("guard", ()), 1):
        if set(entry) != {"test", "file", "find", "replace"}:
            raise ValueError(f"{LIST}, entry {number}: a guard has test, file, find and replace")
        guards.append(Guard(entry["test"], Path(entry["file"]), entry["find"], entry["replace"]))
    return GuardList(tuple(data["groups"]), tuple(guards))


def fault_tests(root: Path, folder: Path = FAULTS) -> list[FaultTest]:
    """Every fault test below `folder`, by path and place in its file."""
    return [
        found
        for path in sorted((root / folder).rglob("test_*.py"))
        for found in _tests_in(path.relative_to(root), path.read_text())
    ]


def _tests_in(path: Path, text: str) -> Iterator[FaultTest]:
    module = ast.parse(text)
    every = any(
        isinstance(node, ast.Assign)
        and "pytestmark" in ast.unparse(node.targets[0])
        and "mark.long" in ast.unparse(node.value)
        for node in module.body
    )
    for node in module.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        found = _FAULT.fullmatch(node.name)
        if found:
            long = "pytest.mark.long" in map(ast.unparse, node.decorator_list)
            yield FaultTest(found.group(1), f"{path}::{node.name}", every or long)


def faults_of(root: Path, listed: GuardList) -> list[str]:
    """What keeps the list from being whole and usable; empty when nothing does."""
    tests = fault_tests(root)
    known = {each.test for each in tests}
    guarded = {guard.test for guard in listed.guards}
    complaints = [
        f"{each.test} has no guard"
        for each in tests
        if each.fault[0] in listed.groups and each.test not in guarded
    ]
    complaints += [f"{test} does not exist" for test in sorted(guarded - known)]
    return [*complaints, *_unusable(root, listed.guards)]


def _unusable(root: Path, guards: Sequence[Guard]) -> Iterable[str]:
    for guard in guards:
        path = root / guard.file
        if not path.is_file():
            yield f"{guard.name}: there is no {guard.file}"
            continue
        count = path.read_text().count(guard.find)
        if count != 1:
            yield f"{guard.name}: `find` occurs {count} times in {guard.file}: {guard.find!r}"
        elif guard.find == guard.replace:
            yield f"{guard.name}: `replace` changes nothing"
        elif path.suffix == ".py" and not _compiles(mutated(path.read_text(), guard)):
            yield f"{guard.name}: with `replace` {guard.file} is no Python any more"


def mutated(text: str, guard: Guard) -> str:
    """The file's text with the protection disabled."""
    return text.replace(guard.find, guard.replace, 1)


def _compiles(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
