"""`/debug/state` as text for people: a line for each endpoint, those in trouble first. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .explain_text import printable

HEADS = (
    "ENDPOINT", "READY", "STATE", "AGE", "LOAD", "WAIT", "RUN", "KV", "OURS", "OTHERS",
    "PREFILL/s", "STEP", "BLOCKS", "TRUST", "WRONG",
)  # fmt: skip
_LOST = ("feed-gap", "feed-reset", "feed-late", "record-old-life", "blocks-implausible")
"""Events of the state path that people look for."""


def text(page: Mapping[str, Any], *, most: int | None = None) -> str:
    """Several lines. `most`: endpoints that are shown, all without it."""
    members = sorted(page["endpoints"], key=_trouble)
    shown = members if most is None else members[:most]
    lines = [*_pool(page, members), "", *_table([HEADS, *map(_row, shown)])]
    if len(shown) < len(members):
        lines.append(f"and {len(members) - len(shown)} more")
    return "\n".join(lines) + "\n"


def _trouble(one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (one["ready"], not one["alarms"], one["rung"] == "precise", one["endpoint"])


def _pool(page: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    ready = sum(one["ready"] for one in members)
    precise = sum(one["rung"] == "precise" for one in members)
    yield (
        f"pool {printable(page['pool'])}   mode {page['mode']}   {ready} of {len(members)} ready   "
        f"{precise} precise"
    )
    parts = [f"{page['index_blocks']:,} blocks known"]
    parts += [f"{number:,} {what}" for what, number in page["sizes"].items()]
    if page["store_connected"] is not None:
        parts.append("store connected" if page["store_connected"] else "STORE AWAY")
    if page["log_lag_s"]:
        parts.append(f"LOG READ {page['log_lag_s']:.1f}s LATE")
    if page["replicas"] is not None:
        parts.append(f"{page['replicas']} other replicas")
    if page["scraped"]:
        parts.append(f"{page['scraped']} scraped")
    yield "   ".join(parts)
    lost = [f"{what} {page['events'][what]:,}" for what in _LOST if page["events"].get(what)]
    lost += [f"no room for {what} {number:,}" for what, number in page["limited"].items() if number]
    if lost:
        yield "   ".join(lost)
    if page["alarms"]:
        yield "wrong: " + ", ".join(f"{alarm} ({n})" for alarm, n in page["alarms"].items())


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    load = one["load"]
    usage = load["kv_usage"]
    return (
        printable(one["endpoint"].partition("|")[2].replace("|", ":")),
        "yes" if one["ready"] else "NO",
        one["rung"] if one["events"] or one["rung"] == "precise" else "no events",
        _seconds(one["record_age_s"]),
        _seconds(load["age_s"]),
        _whole(load["waiting"]),
        _whole(load["running"]),
        "-" if usage is None else f"{usage:.0%}",
        _whole(one["reserved_here"]),
        _whole(one["reserved_elsewhere"]),
        f"{one['prefill_tokens_per_s']:,.0f}",
        f"{1000 * one['decode_s_per_token']:.1f}ms",
        f"{one['blocks']:,}",
        f"{one['trust']:.2f}",
        ",".join(one["alarms"]),
    )


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if column in (0, 1, 2, len(HEADS) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest]).rstrip()


def _seconds(age: float | None) -> str:
    """An age; more than a minute is just old."""
    return "-" if age is None else f"{age:.1f}s" if age < 60 else ">1m"


def _whole(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"
