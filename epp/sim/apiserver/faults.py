"""What goes wrong at an API server, as tests order it."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from .failures import Failure

_REASONS = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests", 500: "InternalError"}


@dataclass(slots=True)
class Faults:
    """Set its fields at any time. Verbs are those of RBAC; `*` stands for every verb or kind."""

    codes: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By verb and plural: answer with this code. `del` ends it."""
    delays_s: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    retry_after_s: int = 1
    """Said with 429."""
    asked: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Requests so far, by verb and plural."""
    truncate: int = 0
    """So many next events are cut in the middle, and their connections with them."""
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._open.set()

    @property
    def frozen(self) -> bool:
        return not self._open.is_set()

    def freeze(self) -> None:
        """Connections stay, and nothing comes through them any more."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    async def stand(self) -> None:
        """As long as nothing comes through."""
        await self._open.wait()

    async def before(self, verb: str, plural: str) -> None:
        """Count a request, and hold or fail it. Raises Failure."""
        self.asked[verb, plural] += 1
        await self.stand()
        for key in ((verb, plural), ("*", plural), (verb, "*"), ("*", "*")):
            await asyncio.sleep(self.delays_s.get(key, 0.0))
            code = self.codes.get(key)
            if code is not None:
                raise _failure(code, verb, plural)


def _failure(code: int, verb: str, plural: str) -> Failure:
    said = {
        401: "Unauthorized",
        403: f'{plural} is forbidden: User "system:serviceaccount:test:epp" cannot {verb} resource '
        f'"{plural}"',
        410: "The provided continue parameter is too old",
        429: "too many requests, please try again later",
    }
    reason = "Expired" if code == 410 else _REASONS.get(code, "InternalError")
    return Failure(code, reason, said.get(code, "an error on the server"))
