"""What is known of a prompt once its tokens were looked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Size and block keys of a prompt."""

    tokens: int
    exact: bool
    keys: tuple[int, ...]
    how: str
    """Where the tokens come from or why they are estimated: a stable word."""
