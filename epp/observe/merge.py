"""Several metrics pages as one: every series gets a label that tells whose it is. Pure.

The pages are those of workers, which are replicas, or of pools. What can be added up (requests,
decisions) is added up by whoever asks, as over pods, and what cannot (the age of a report) stays as
it is.
"""

from collections.abc import Mapping


def merged(label: str, pages: Mapping[str, str]) -> str:
    """Texts in Prometheus' format, by the value of `label` that each gets; nothing for "". Each
    family appears once, with its help."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for value, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                _, word, family, *_ = line.split(" ", 3)
                head = heads.setdefault(family, [])
                if not any(known.startswith(f"# {word} ") for known in head):
                    head.append(line)
            elif line:
                told = _labelled(line, f'{label}="{value}"') if value else line
                samples.setdefault(family, []).append(told)
    lines = [line for family in heads for line in [*heads[family], *samples.get(family, ())]]
    return "\n".join(lines) + "\n"


def _labelled(line: str, label: str) -> str:
    """A sample with one label more; it goes first, so that no value of others is looked into."""
    name, brace, rest = line.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, number = line.partition(" ")
    return f"{name}{{{label}}} {number}"
