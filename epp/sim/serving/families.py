"""Families of Prometheus metrics and their text form."""

from collections.abc import Iterable
from dataclasses import dataclass

Labels = dict[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its series."""

    name: str
    kind: str
    text: str
    samples: tuple[Sample, ...]
    suffixes: tuple[str, ...] = ()
    """What follows the name in each sample; nothing when empty."""


def gauge(name: str, text: str, labels: Labels, value: float) -> Family:
    return Family(name, "gauge", text, ((labels, value),))


def counter(name: str, text: str, labels: Labels, value: float) -> Family:
    return Family(name, "counter", text, ((labels, value),))


def totals(name: str, text: str, labels: Labels, *, count: float, total: float) -> Family:
    """A histogram of which only the count and the sum are known."""
    samples = (({**labels, "le": "+Inf"}, count), (labels, count), (labels, total))
    return Family(name, "histogram", text, samples, ("_bucket", "_count", "_sum"))


def written(families: Iterable[Family]) -> str:
    """The text of a metrics page."""
    return "".join(_lines(families))


def _lines(families: Iterable[Family]) -> Iterable[str]:
    for family in families:
        yield f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
        suffixes = family.suffixes or ("",) * len(family.samples)
        for suffix, (labels, value) in zip(suffixes, family.samples, strict=True):
            pairs = ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
            series = f"{family.name}{suffix}"
            yield f"{series}{{{pairs}}} {value!r}\n" if pairs else f"{series} {value!r}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
