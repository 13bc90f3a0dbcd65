"""What a gateway may say about a request in headers. Pure.

None of it is worth a refusal: a value that cannot be used counts as not said, and its name goes
into `ignored` (faults B09, G06). The gateway has to set or remove these headers itself; what a
client can write here must not grow anything without bound (fault G07).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from epp import protocol

MAX_TEXT = 256
"""Characters of one value: twice what names in Kubernetes and model names take."""
DEFAULT_FAIRNESS_ID = "default-flow"


@dataclass(frozen=True, slots=True)
class Hints:
    """Values are printable ASCII of bounded length."""

    model: str = ""
    """The name under which the engine knows the model; empty: the client's own."""
    objective: str = ""
    """Nobody defines objectives yet, so that each has the default priority 0."""
    fairness_id: str = DEFAULT_FAIRNESS_ID
    ignored: tuple[str, ...] = ()
    """Stable words of the headers whose values could not be used."""
    session: str = ""
    """The client's, where a producer reads it."""
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    timeout_s: float | None = None
    """Time from this arrival until a gateway in front gives the request up. Envoy counts it down
    by itself from one attempt to the next, and takes it from clients that it does not trust. Here
    it only ever shortens what its own request is given."""


_NAMES = frozenset().union(
    protocol.MODEL_REWRITE,
    protocol.OBJECTIVE,
    protocol.FAIRNESS_ID,
    protocol.SLO_TTFT_MS,
    protocol.SLO_TPOT_MS,
    protocol.TIMEOUT_MS,
)
_TIMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("slo-ttft", protocol.SLO_TTFT_MS),
    ("slo-tpot", protocol.SLO_TPOT_MS),
    ("timeout", protocol.TIMEOUT_MS),
)
_SILENCE = Hints()


def read(headers: Mapping[str, str]) -> Hints:
    """Of two names of one header the first counts, also where its value cannot be used."""
    if _NAMES.isdisjoint(headers):
        return _SILENCE
    ignored: list[str] = []
    texts: list[str] = []
    for word, names in (
        ("model-rewrite", protocol.MODEL_REWRITE),
        ("objective", protocol.OBJECTIVE),
        ("fairness-id", protocol.FAIRNESS_ID),
    ):
        raw = _first(headers, names) or ""
        usable = _is_name(raw)
        texts.append(raw.strip() if usable else "")
        if not usable:
            ignored.append(word)
    limits: list[float | None] = []
    for word, times in _TIMES:
        said = _first(headers, times)
        limits.append(None if said is None else _limit_s(said))
        if said is not None and limits[-1] is None:
            ignored.append(word)
    model, objective, fairness_id = texts
    return Hints(
        model,
        objective,
        fairness_id or DEFAULT_FAIRNESS_ID,
        tuple(ignored),
        slo_ttft_s=limits[0],
        slo_tpot_s=limits[1],
        timeout_s=limits[2],
    )


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        if name in headers:
            return headers[name]
    return None


def _is_name(text: str) -> bool:
    """A comma joins what was said twice: nobody knows which of the two was meant."""
    return len(text) <= MAX_TEXT and text.isascii() and text.isprintable() and "," not in text


def _limit_s(text: str) -> float | None:
    """Seconds of a time in milliseconds: a finite number above 0, as programs other than Python
    write it. None for anything else."""
    if not text.isascii() or "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number / 1000.0 if isfinite(number) and number > 0.0 else None
