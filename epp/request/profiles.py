"""The live switch between modes."""

from enum import StrEnum


class Mode(StrEnum):
    """What the operator lets the picker do; `load-only` and `random` are break-glass, `shadow` is
    for trying it out."""

    NORMAL = "normal"
    LOAD_ONLY = "load-only"
    RANDOM = "random"
    SHADOW = "shadow"


class ModeSwitch:
    """The mode in force. Read once per decision, changed by the admin port at any time."""

    def __init__(self, mode: str = Mode.NORMAL) -> None:
        self._mode = Mode(mode)

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(Mode)

    def switch(self, mode: str) -> None:
        """Raises ValueError for a word that is not a mode; the old one stays."""
        self._mode = Mode(mode)
