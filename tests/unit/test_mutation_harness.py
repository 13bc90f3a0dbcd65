"""What counts as a change that tests should notice, and that it is noticed when they do."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import mutants

ROOT = Path(__file__).parents[2]
TOY = "def allowed(count: int) -> bool:\n    return count < 3 and count >= 0\n"
TEST = """
import sys
sys.path.insert(0, {folder!r})
from toy import allowed

def test_three_are_too_many() -> None:
    assert allowed(2)
    assert not allowed(3)
"""
TRY = """
import sys
from pathlib import Path
from tests.mutation.mutants import mutants
from tests.mutation.trial import prepare, trials, usual_s
folder = Path(sys.argv[1])
tests = [str(folder / "test_toy.py")]
prepare()
assert usual_s(tests) is not None
found = mutants((folder / "toy.py").read_text(), "toy.py")
for trial in trials([("toy", each, tests) for each in found], parallel=2, limit_s=60):
    print(trial.killed, trial.mutant)
"""


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a = b == 1", ["b == 1  ->  b != 1", "1  ->  2"]),
        ("if a and not b:\n    c()", ["if a and (not b):  ->  if not (a and (not b)):"]),
        ("x = a | b", ["a | b  ->  a & b"]),
        ("T = TypeVar('T')", []),
        ("X = A | B", []),
        ("n += 1", ["n += 1  ->  n -= 1", "n += 1  ->  n = 1", "1  ->  2"]),
        ("s = 'word'", ["'word'  ->  'word?'"]),
        ("s = 'a sentence'", []),
        ("def f(a: int = 1) -> 'B':\n    'says what'", ["1  ->  2"]),
        ("self.x = y", ["self.x = y  ->  pass"]),
        ("go(True)", ["go(True)  ->  pass", "True  ->  False"]),
        ("def f():\n    return g()", ["return g()  ->  return None"]),
        ("x: int = field(default=0, init=False)", ["0  ->  1"]),
    ],
)
def test_every_change_has_a_behaviour_of_its_own(source: str, changes: list[str]) -> None:
    found = [str(mutant).partition(": ")[2] for mutant in mutants(source, "x.py")]
    assert [change for change in changes if change not in found] == []
    assert len(found) == len(changes) or "and" in source


def test_lines_are_those_of_the_source() -> None:
    assert [mutant.line for mutant in mutants("\n\na = 1\nb = 2\n", "x.py")] == [3, 4]


def test_a_change_that_tests_notice_is_killed_and_others_survive(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "test_toy.py").write_text(TEST.format(folder=str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(" ", 1)[::-1] for line in done.stdout.splitlines())
    assert said["2: count < 3  ->  count <= 3"] == "True"
    assert said["2: 3  ->  4"] == "True"
    assert said["2: count >= 0  ->  count > 0"] == "False"
