"""Claims about time stretch with `EPP_TIME_SCALE`: a noisy machine never fails a true one."""

import os

SCALE = float(os.environ.get("EPP_TIME_SCALE", "1"))


def scaled(seconds: float) -> float:
    """The limit that a claim of `seconds` has on this machine."""
    return seconds * SCALE
