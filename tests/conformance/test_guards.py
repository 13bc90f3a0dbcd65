"""Every fault test of the covered groups has its guard, and `make test-guards` can tell."""

from pathlib import Path

import pytest

from tests.guards import entries
from tests.guards.entries import Guard
from tests.guards.proof import Tree, Verdict

ROOT = Path(__file__).parents[2]

PRODUCT = "def allowed(count: int) -> bool:\n    return count < 3\n"
TEST = """
from product import allowed

def test_A01_four_are_too_many() -> None:
    assert not allowed(4)

def test_A02_says_nothing() -> None:
    pass
"""


def test_the_list_is_whole_and_each_entry_can_be_applied() -> None:
    assert entries.faults_of(ROOT, entries.read(ROOT)) == []


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Tree:
    source = tmp_path / "source"
    (source / "tests" / "faults").mkdir(parents=True)
    (source / "product.py").write_text(PRODUCT)
    (source / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (source / "tests" / "faults" / "test_x.py").write_text(TEST)
    return Tree(source, tmp_path / "copy")


def _guard(test: str = "test_A01_four_are_too_many", replace: str = "True") -> Guard:
    return Guard(f"tests/faults/test_x.py::{test}", Path("product.py"), "count < 3", replace)


@pytest.mark.parametrize(
    ("guard", "verdict"),
    [
        (_guard(), Verdict.GUARDS),
        (_guard("test_A02_says_nothing"), Verdict.SLEEPS),
        (_guard(replace="nobody_knows_this"), Verdict.BREAKS),
        (_guard("test_A03_is_not_there"), Verdict.BREAKS),
        (_guard(replace="__import__('time').sleep(60)"), Verdict.GUARDS),
    ],
    ids=["guards", "sleeps", "broken", "missing", "hangs"],
)
def test_a_guard_is_one_only_if_its_test_fails_without_it(
    tree: Tree, guard: Guard, verdict: Verdict
) -> None:
    assert tree.disable(guard, usual_s=0.1).verdict is verdict
    assert (tree.root / guard.file).read_text() == PRODUCT


def test_tests_that_fail_with_their_protection_have_no_usual_time(tree: Tree) -> None:
    (tree.root / "product.py").write_text(PRODUCT.replace("< 3", "< 5"))
    usual, output = tree.usual(["tests/faults/test_x.py"])
    assert list(usual) == ["tests/faults/test_x.py::test_A02_says_nothing"]
    assert "test_A01" in output


def test_what_is_wrong_with_a_list_is_told_entry_by_entry(tree: Tree) -> None:
    listed = entries.GuardList(
        ("A",),
        (
            _guard(replace="count < 3"),
            _guard(replace="count <"),
            Guard("tests/faults/test_x.py::test_A09_x", Path("gone.py"), "a", "b"),
        ),
    )
    assert entries.faults_of(tree.root, listed) == [
        "tests/faults/test_x.py::test_A02_says_nothing has no guard",
        "tests/faults/test_x.py::test_A09_x does not exist",
        "test_A01_four_are_too_many: `replace` changes nothing",
        "test_A01_four_are_too_many: with `replace` product.py is no Python any more",
        "test_A09_x: there is no gone.py",
    ]
