"""A page that leads through something: its files and commands, in the order they stand in."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_BLOCK = re.compile(
    r"^<!-- (?P<kind>tested|says|file)(?:: (?P<name>\S+))? -->\n+```\w*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a reader does or sees."""

    kind: Literal["file", "command", "says"]
    text: str
    """A file's content, a command's line, or a line of the last command's output."""
    name: str = ""
    """Of the file."""
    stays: bool = False
    """The command runs on while the reader goes on: `… &`."""


def steps(page: Path) -> Iterator[Step]:
    for block in _BLOCK.finditer(page.read_text()):
        text = block["text"]
        match block["kind"]:
            case "file":
                yield Step("file", text, block["name"])
            case "says":
                yield from (Step("says", line.strip()) for line in text.splitlines())
            case _:
                yield from map(_command, text.replace("\\\n", " ").splitlines())


def _command(line: str) -> Step:
    kept = line.removesuffix("&").rstrip()
    return Step("command", kept, stays=kept != line)
