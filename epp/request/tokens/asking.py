"""Questions to engines: few at once, equal ones shared, and none while nobody answers.

A question goes on after the decision that asked it stopped waiting, so that the next request finds
the answer.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog

from epp.request.offload import BusyError, Offload

from .breakers import Breakers, Permit
from .cache import TokenCache
from .engine import Fields, TokenizerError, TokenizerRefusedError, ids
from .tokenised import Tokenised

log = structlog.get_logger(__name__)


class Tokenizer(Protocol):
    """An engine's answer to `/tokenize`; see EngineTokenizer."""

    async def __call__(self, model: str, fields: Fields, /) -> bytes: ...


Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
"""The application's TaskGroup."""


class Asking:
    """Owned by `Tokens`, whose cache and counts it fills."""

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

    async def ask(
        self,
        digest: bytes,
        model: str,
        fields: Fields,
        made: Callable[[bytes], Tokenised],
        wait_s: float,
    ) -> tuple[Tokenised | None, str]:
        """What is `made` of the engine's packed ids, or None and why not."""
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
                return ids(await self._tokenizer(model, fields))
        except (TokenizerError, TokenizerRefusedError, TimeoutError):
            return None

    async def _call(
        self, digest: bytes, model: str, fields: Fields, made: Callable[[bytes], Tokenised]
    ) -> Tokenised | None:
        """One question. Never raises; a failure is counted and moves the model's breaker."""
        breaker = self._breakers.of(model)
        alive = False
        try:
            async with asyncio.timeout(self._call_limit_s):
                answer = await self._tokenizer(model, fields)
                found = await self._offload.run(len(answer), lambda: made(ids(answer)))
            self._cache.put(digest, found)
            alive = True
        except TokenizerRefusedError:
            alive = True
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
            else:
                breaker.failed(self._clock())
        return None
