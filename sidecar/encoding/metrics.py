"""Metrics of encoding. No label carries anything that a client chose."""

from sidecar.declared import Declared

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class EncodeMetrics:
    """Part of one sidecar's metrics."""

    def __init__(self, declared: Declared) -> None:
        self.encodes = declared.counter(
            "encode", "Requests whose media a picker wanted encoded elsewhere: encoded, partly "
            "(some items were not, and are encoded with the prompt), failed (none was), passed or "
            "refused (the client got an error), client-gone, or why nobody was asked.", "outcome",
        )  # fmt: skip
        self.legs = declared.counter(
            "encode_legs", "Encode legs: encoded, or how they failed (unreachable, lost, garbled, "
            "status, timeout).", "outcome",
        )  # fmt: skip
        self.leg_seconds = declared.histogram(
            "encode_leg_seconds", "Encode legs that were answered, from sending to the answer's "
            "end; errors, too.", _SECONDS,
        )  # fmt: skip
        self.misaddressed = declared.counter(
            "encode_misaddressed", "Embeddings that an encoder on another machine said were to be "
            "had at loopback or no address; they are computed with the prompt.",
        )  # fmt: skip
