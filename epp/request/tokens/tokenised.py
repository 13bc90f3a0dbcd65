"""What is known of a prompt once its tokens were looked for."""

from dataclasses import dataclass

from epp.errors import EppError


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Size and block keys of a prompt."""

    tokens: int
    exact: bool
    keys: tuple[int, ...]
    how: str
    """Where the tokens come from or why they are estimated: a stable word."""


class UnrenderableError(EppError):
    """This prompt is not for us to tokenize: the engine is asked instead."""

    reason = "unrenderable"
