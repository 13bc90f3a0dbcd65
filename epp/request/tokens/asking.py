"""Questions to engines: few at once, equal ones shared, and none while nobody answers.

A question goes on after the decision that asked it stopped waiting, so that the next request finds
the answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog

from epp.request.apis.prompt import Fields
from epp.request.offload import BusyError, Offload

from .breakers import Breakers, Permit
from .cache import TokenCache
from .engine import (
    Answer,
    TokenizerAbsentError,
    TokenizerError,
    TokenizerRefusedError,
    answered,
)
from .tokenised import Tokenised

log = structlog.get_logger(__name__)


class Tokenizer(Protocol):
    """One endpoint of an engine that tells tokens; see EngineTokenizer."""

    async def __call__(self, model: str, fields: Fields, /) -> bytes: ...


Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
"""The application's TaskGroup."""


class Asking:
    """Of one endpoint. Owned by `Tokens`, whose cache and counts it fills."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        spawn: Spawn,
        offload: Offload,
        clock: Callable[[], float],
        cache: TokenCache,
        counts: Counter[str],
        max_calls: int,
        call_limit_s: float,
    ) -> None:
        self._tokenizer = tokenizer
        self._spawn = spawn
        self._offload = offload
        self._clock = clock
        self._cache = cache
        self._counts = counts
        self._max_calls = max_calls
        self._call_limit_s = call_limit_s
        self._calls: dict[bytes, asyncio.Task[Tokenised | None]] = {}
        self._breakers = Breakers()

    def __len__(self) -> int:
        """Questions that wait for an answer."""
        return len(self._calls)

    def open(self, model: str) -> bool:
        """Whether the engine is thought to answer for this model, or it is time to look again."""
        return self._breakers.of(model).may_ask(self._clock())

    async def ask(
        self,
        digest: bytes,
        model: str,
        fields: Fields,
        made: Callable[[Answer], Tokenised],
        wait_s: float,
    ) -> tuple[Tokenised | None, str]:
        """What is `made` of the engine's answer, or None and why not."""
        call = self._calls.get(digest)
        if call is None:
            if len(self._calls) >= self._max_calls:
                return None, "busy"
            permit = self._breakers.of(model).permit(self._clock())
            if permit is Permit.NO:
                return None, "tokenizer off"
            call = self._calls[digest] = self._spawn(self._call(digest, model, fields, made))
            if permit is Permit.PROBE:
                return None, "tokenizer off"
        elif self._breakers.of(model).open:
            return None, "tokenizer off"
        await asyncio.wait({call}, timeout=wait_s)
        if not call.done():
            return None, "late"
        found = None if call.cancelled() else call.result()
        return found, "failed"

    async def ids(self, model: str, fields: Fields) -> bytes | None:
        """The engine's packed ids, asked for once and beside everything else; None without any."""
        try:
            async with asyncio.timeout(self._call_limit_s):
                return answered(await self._tokenizer(model, fields)).ids
        except (TokenizerError, TokenizerRefusedError, TokenizerAbsentError, TimeoutError):
            return None

    async def _call(
        self, digest: bytes, model: str, fields: Fields, made: Callable[[Answer], Tokenised]
    ) -> Tokenised | None:
        """One question. Never raises; a failure is counted and moves the model's breaker."""
        breaker = self._breakers.of(model)
        alive = absent = False
        try:
            async with asyncio.timeout(self._call_limit_s):
                answer = await self._tokenizer(model, fields)
                found = await self._offload.run(len(answer), lambda: made(answered(answer)))
            self._cache.put(digest, found)
            alive = True
        except TokenizerRefusedError:
            alive = True
        except TokenizerAbsentError:
            absent = True
        except (TokenizerError, TimeoutError, BusyError) as error:
            self._counts["call failed"] += 1
            log.debug("tokenizer gave no answer", error=str(error), kind=type(error).__name__)
        except Exception:
            self._counts["call failed"] += 1
            log.exception("tokenizer call failed")
        else:
            return found
        finally:
            del self._calls[digest]
            if alive:
                breaker.succeeded()
            elif absent:
                breaker.absent(self._clock())
            else:
                breaker.failed(self._clock())
        return None
