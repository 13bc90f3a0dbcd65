"""How old records may be that a reader finds waiting for it. Pure.

They say what was true when they were written. Who stood still, or was slow, finds some of long ago,
and must not believe them as if they were of this moment: what followed on them may never come.
"""

PROMPT_S = 1.0
"""Records that waited no longer for us count as new: a read takes its time."""
LOOK_S = 0.5
"""Longest wait for records before who takes them looks at the clock."""
LONG_AGO_S = 3600.0
"""Age of what snapshots are followed by: nobody knows it."""


class Abreast:
    """When a reader had last nothing unread, where records come by themselves.

    It looks more often than `PROMPT_S`. By that it sees that it stood still: then what came
    meanwhile may be only about to be read, though nothing is there yet.
    """

    def __init__(self, now: float) -> None:
        self._at = self._looked_at = now

    def looked(self, now: float, *, found: bool) -> float:
        """How old in seconds what it `found` may be, at most; 0 where that is not worth a word."""
        waited = now - self._at
        stood_still = now - self._looked_at > PROMPT_S
        self._looked_at = now
        if found or not stood_still:
            self._at = now
        return 0.0 if waited <= PROMPT_S else min(waited, LONG_AGO_S)
