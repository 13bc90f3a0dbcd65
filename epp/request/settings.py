"""What an operator sets for decisions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PickSettings:
    """Limits of one decision, and how far the gateway is believed."""

    deadline_s: float = 0.2
    """After this, choose with what is at hand."""
    tokens_s: float = 0.1
    """Longest wait for an engine's tokens; at most the deadline."""
    destinations: int = 1
    """Endpoints in the answer. Gateways that route by ORIGINAL_DST take one only."""
    default_output_tokens: int = 256
    """Length charged for an answer whose request sets no limit."""
    max_output_tokens: int = 4096
    """Most that is charged for one answer; limits are rarely reached."""
    subset_filter: bool = True
    """Keep to the endpoints that the gateway names. False: whatever it names, all may serve."""
    emit_scores: bool = False
    """Tell the gateway every candidate's score."""
    conformance: bool = False
    """Let headers of the request choose the endpoint; see `conformance`."""

    def __post_init__(self) -> None:
        if not 0.0 < self.tokens_s <= self.deadline_s:
            raise ValueError("tokens_s must be above 0 and at most deadline_s")
        if self.destinations < 1:
            raise ValueError("destinations must be at least 1")
