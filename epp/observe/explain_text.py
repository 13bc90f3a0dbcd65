"""One decision of `/debug/decisions` as text for people. Pure.

Whatever a client wrote in it is shown without what a terminal would act on.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_MARK = "->"
_STEPS = {
    "precise": "the engines' own KV events",
    "predicted": "what was sent where before",
    "load_only": "load alone",
    "any_ready": "anybody who is ready",
}


def text(entry: Mapping[str, Any], now: float) -> str:
    """Several lines, the last of them with its end. `now`: seconds of Unix time."""
    lines = [
        *_fields(entry, now),
        "",
        *_table(entry["table"], entry["weights"], entry["chosen"]),
        *(_loads(where, tiers) for where, tiers in entry["loaded"].items()),
        *_left_out(entry["excluded"], entry["left_out"]),
        "",
        *_prefill(entry["split"], entry["whole"], entry["prefill"]),
        *_encode(entry["encode"]),
    ]
    return "\n".join(lines) + "\n"


def moment(at: float) -> str:
    """A point in time, seconds of Unix time."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"


def printable(told: str) -> str:
    """Without control characters."""
    return "".join(char if char.isprintable() else "?" for char in told)


def _fields(entry: Mapping[str, Any], now: float) -> list[str]:
    step = _STEPS.get(entry["rung"], "")
    why = "" if entry["why"] == "ok" else f"; no better: {entry['why']}"
    fields = {
        "decision": entry["request_id"],
        "x-request-id": entry["x_request_id"] or "-",
        "made": _when(entry["at"], now) + f", in {entry['took_ms']:g} ms",
        "asked": f"{entry['path']} ({entry['api']}), {_model(entry)}",
        "prompt": _prompt(entry),
        **_limits(entry),
        "goes to": ", ".join(_name(one) for one in entry["chosen"]),
        "step": f"{entry['rung']}: {step}{why}",
        "because": "; ".join(entry["reasons"]),
        "by": f"configuration {entry['plan'] or '-'}, handler {entry['handler'] or '-'}, "
        f"profile {entry['profile']}",
    }
    return [f"{name:<13} {printable(value)}" for name, value in fields.items()]


def _when(at: float, now: float) -> str:
    return f"{moment(at)}, {max(0.0, now - at):.0f} s ago"


def _model(entry: Mapping[str, Any]) -> str:
    model, target = entry["model"], entry["target_model"]
    if not model:
        return "no model named"
    return f"model {model}" if model == target else f"model {model}, called {target}"


def _prompt(entry: Mapping[str, Any]) -> str:
    exact = "counted by an engine" if entry["exact"] else "estimated"
    media = f", {entry['media_tokens']} of them for media" if entry["media_tokens"] else ""
    return (
        f"{entry['prompt_tokens']} tokens ({exact}){media}, {entry['blocks']} blocks compared, "
        f"answer up to {entry['output_tokens']}"
    )


def _limits(entry: Mapping[str, Any]) -> dict[str, str]:
    """When somebody stops waiting; nothing, where nobody said so."""
    parts = [f"{name.replace('_', ' ')} {ms:g} ms" for name, ms in entry["within_ms"].items()]
    if entry["attempt"] > 1:
        parts.append(f"attempt {entry['attempt']} of the gateway")
    return {"within": ", ".join(parts)} if parts else {}


def _name(one: Mapping[str, str]) -> str:
    return f"{one['address']} ({one['endpoint']})"


def _table(
    rows: Sequence[Mapping[str, Any]],
    weights: Mapping[str, float],
    chosen: Sequence[Mapping[str, str]],
) -> list[str]:
    if not rows:
        return ["nobody was rated"]
    taken = {one["endpoint"] for one in chosen}
    raters = (f"{name} x{weights[name]:g}" for name in weights)
    cells = [["", "endpoint", "match", "queue", "total", *raters]]
    for row in rows:
        scores, weighted = row["scores"], row["weighted"]
        cells.append(
            [
                _MARK if row["endpoint"] in taken else "",
                row["address"],
                _match(row["match"]),
                "?" if row["queue"] is None else str(row["queue"]),
                f"{row['total']:.4f}",
                *(f"{scores[name]:.4f} = {weighted[name]:.4f}" for name in weights),
            ]
        )
    return _aligned(cells)


def _match(held: Mapping[str, Any]) -> str:
    if not held["tokens"]:
        return "-"
    trust = "" if held["trust"] >= 1.0 else f" x{held['trust']:.2f}"
    return f"{held['tokens']} {held['source']}{trust}"


def _loads(endpoint: str, tiers: Mapping[str, int]) -> str:
    parts = ", ".join(f"{tokens} from {tier}" for tier, tokens in tiers.items())
    return printable(f"{endpoint} loads tokens of its match first: {parts}")


def _left_out(named: Sequence[Mapping[str, str]], counts: Mapping[str, int]) -> list[str]:
    """Counts of all, addresses of the first."""
    lines: list[str] = []
    for why, count in counts.items():
        those = [one["address"] for one in named if one["reason"] == why]
        more = f" and {count - len(those)} more" if count > len(those) else ""
        lines.append(printable(f"left out: {count} by {why}: {', '.join(those)}{more}"))
    return lines


def _prefill(split: str, whole: str, half: Mapping[str, Any]) -> list[str]:
    reason = f"{split} ({whole})" if split == "not-splittable" else split
    return _stage("prefill", reason, half, taken=1)


def _encode(half: Mapping[str, Any]) -> list[str]:
    """Nothing, where the configuration has no such stage."""
    taken = len(half["candidates"])
    return ["", *_stage("encode", half["why"], half, taken=taken)] if half["profile"] else []


def _stage(name: str, reason: str, half: Mapping[str, Any], *, taken: int) -> list[str]:
    """`taken`: how many of the candidates do it; the others stand in for them."""
    by = f"; decider {half['decider']}" if half["decider"] else ""
    lines = [printable(f"{name:<13} {reason}{by}")]
    if half["candidates"]:
        names = ", ".join(_name(one) for one in half["candidates"])
        lines.append(printable(f"{'computed at':<13} {names}; profile {half['profile']}"))
    if half["table"]:
        lines += ["", *_table(half["table"], half["weights"], half["candidates"][:taken])]
    return lines + _left_out(half["excluded"], half["left_out"])


def _aligned(cells: Iterable[Sequence[str]]) -> list[str]:
    rows = [[printable(cell) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]
