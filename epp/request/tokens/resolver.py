"""From a prompt to block keys: the engine's own tokens where they can be had in time.

Token ids are exact as given. Text is asked of the engine's `/tokenize`; the answer is cached by
content, equal questions share one call, and the call goes on after a decision stopped waiting, so
that the next request finds it. Where that fails bytes stand in: their keys live in another domain,
so they meet our own predictions only and never a decision that counts on tokens.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import structlog
import xxhash

from epp.request.apis.prompt import MAX_TEXT_BYTES, Parsed, Prompt, TextPrompt, TokenPrompt
from epp.request.offload import BusyError, Offload
from epp.state import blocks

from .breakers import Breakers, Permit
from .cache import TokenCache
from .engine import Fields, TokenizerError, TokenizerRefusedError, ids
from .tokenised import Tokenised

MAX_KEYS = 2048
"""Block keys of one prompt; what is longer is compared by its beginning only."""

log = structlog.get_logger(__name__)


class Tokenizer(Protocol):
    """An engine's answer to `/tokenize`; see EngineTokenizer."""

    async def __call__(self, model: str, fields: Fields, /) -> bytes: ...


Spawn = Callable[[Coroutine[Any, Any, "Tokenised | None"]], "asyncio.Task[Tokenised | None]"]


class Tokens:
    """Owned by the director. `spawn` is the application's TaskGroup."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        spawn: Spawn,
        offload: Offload,
        clock: Callable[[], float],
        block_tokens: int = blocks.OWN_BLOCK_TOKENS,
        cache_bytes: int = 64 * 1024 * 1024,
        max_calls: int = 16,
        call_limit_s: float = 2.0,
    ) -> None:
        self._tokenizer = tokenizer
        self._spawn = spawn
        self._offload = offload
        self._clock = clock
        self._block_tokens = block_tokens
        self._max_calls = max_calls
        self._call_limit_s = call_limit_s
        self._calls: dict[bytes, asyncio.Task[Tokenised | None]] = {}
        self._breakers = Breakers()
        self.cache = TokenCache(cache_bytes)
        self.counts: Counter[str] = Counter()
        """Prompts by `how` their tokens were found; a bounded set of words."""

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def calls(self) -> int:
        """Questions to engines that wait for an answer."""
        return len(self._calls)

    @property
    def cache_bytes(self) -> int:
        return self.cache.bytes

    async def resolve(self, parsed: Parsed, prompt: Prompt, *, wait_s: float) -> Tokenised:
        """Size and keys of a prompt, after at most about `wait_s`. Raises offload.BusyError."""
        if isinstance(prompt, TokenPrompt):
            found = await self._offload.run(
                len(prompt.ids), lambda: self._exact(parsed, prompt.ids, prompt.other_tokens)
            )
        else:
            found = await self._text(parsed, prompt, wait_s)
        self.counts[found.how] += 1
        return found

    def size(self, prompt: Prompt) -> int:
        """Tokens of a prompt without its keys, estimated for text."""
        if isinstance(prompt, TokenPrompt):
            return len(prompt.ids) // 4 + prompt.other_tokens
        text = len(prompt.text) + prompt.other_bytes
        return -(-text // blocks.ESTIMATE_BYTES_PER_TOKEN) + prompt.media_tokens

    async def _text(self, parsed: Parsed, prompt: TextPrompt, wait_s: float) -> Tokenised:
        other = -(-prompt.other_bytes // blocks.ESTIMATE_BYTES_PER_TOKEN)
        why = self._unanswerable(prompt)
        if why is None and prompt.tokenize is not None:
            digest = _digest(parsed, prompt.tokenize)
            cached = self.cache.get(digest)
            if cached is not None:
                return replace(cached, tokens=cached.tokens + other, how="cached")
            found, why = await self._ask(digest, parsed, prompt.tokenize, wait_s)
            if found is not None:
                return replace(found, tokens=found.tokens + other)
        return await self._offload.run(
            len(prompt.text), lambda: self._estimate(parsed, prompt, why or "")
        )

    def _unanswerable(self, prompt: TextPrompt) -> str | None:
        """Why no engine is asked about this prompt, or None."""
        if self._tokenizer is None:
            return "no tokenizer"
        if len(prompt.text) > MAX_TEXT_BYTES:
            return "too long"
        if prompt.tokenize is None:
            return "not tokenizable"
        if prompt.tokenize[0][0] == "prompt" and len(prompt.text) < self._block_tokens:
            return "too short"
        return None

    async def _ask(
        self, digest: bytes, parsed: Parsed, fields: Fields, wait_s: float
    ) -> tuple[Tokenised | None, str]:
        """The engine's tokens, or None and why not."""
        call = self._calls.get(digest)
        if call is None:
            if len(self._calls) >= self._max_calls:
                return None, "busy"
            permit = self._breakers.of(parsed.model).permit(self._clock())
            if permit is Permit.NO:
                return None, "tokenizer off"
            call = self._calls[digest] = self._spawn(self._call(digest, parsed, fields))
            if permit is Permit.PROBE:
                return None, "tokenizer off"
        elif self._breakers.of(parsed.model).open:
            return None, "tokenizer off"
        await asyncio.wait({call}, timeout=wait_s)
        if not call.done():
            return None, "late"
        found = None if call.cancelled() else call.result()
        return found, "failed"

    async def _call(self, digest: bytes, parsed: Parsed, fields: Fields) -> Tokenised | None:
        """One question. Never raises; a failure is counted and moves the model's breaker."""
        assert self._tokenizer is not None
        breaker = self._breakers.of(parsed.model)
        alive = False
        try:
            async with asyncio.timeout(self._call_limit_s):
                answer = await self._tokenizer(parsed.model, fields)
                found = await self._offload.run(
                    len(answer), lambda: self._exact(parsed, ids(answer), 0)
                )
            found = replace(found, how="engine")
            self.cache.put(digest, found)
            alive = True
        except TokenizerRefusedError:
            alive = True
        except (TokenizerError, TimeoutError, BusyError) as error:
            self.counts["call failed"] += 1
            log.debug("tokenizer gave no answer", error=str(error), kind=type(error).__name__)
        except Exception:
            self.counts["call failed"] += 1
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

    def _exact(self, parsed: Parsed, packed: bytes, other_tokens: int) -> Tokenised:
        seed = blocks.seed_of(parsed.model, salt=parsed.cache_salt)
        head = packed[: 4 * self._block_tokens * MAX_KEYS]
        keys = blocks.token_keys(head, seed, self._block_tokens)
        return Tokenised(len(packed) // 4 + other_tokens, True, keys, "given")

    def _estimate(self, parsed: Parsed, prompt: TextPrompt, why: str) -> Tokenised:
        seed = blocks.seed_of(parsed.model, salt=parsed.cache_salt)
        block_bytes = blocks.ESTIMATE_BYTES_PER_TOKEN * self._block_tokens
        keys = blocks.byte_keys(prompt.text[: block_bytes * MAX_KEYS], seed, self._block_tokens)
        return Tokenised(self.size(prompt), False, keys, why)


def _digest(parsed: Parsed, fields: Fields) -> bytes:
    """Name of a question by its content; no two contents run into each other."""
    state = xxhash.xxh3_128()
    pieces = [parsed.model.encode(), parsed.cache_salt.encode()]
    for name, raw in fields:
        pieces += [name.encode(), raw]
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "little"))
        state.update(piece)
    return state.digest()
