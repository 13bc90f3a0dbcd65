"""From a prompt to block keys, by the best way that is believed and in time.

Token ids are exact as given. Text is tokenized here where the model's files are at hand, else asked
of an engine's `/tokenize`; either is cached by content. Where neither serves bytes stand in: their
keys live in another domain, so they meet our own predictions only and never a decision that counts
on tokens. Whether the exact ways give what engines compute is looked at all the time (`proving`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import xxhash

from epp.framework import EndpointId
from epp.request.apis.prompt import MAX_TEXT_BYTES, Parsed, Prompt, TextPrompt, TokenPrompt
from epp.request.offload import Offload
from epp.state import blocks

from .asking import Asking, Spawn, Tokenizer
from .cache import TokenCache
from .comparing import Local
from .engine import Fields
from .prefixes import Prefixes
from .proving import Locals, Proving
from .standing import Step
from .tokenised import Tokenised, UnrenderableError
from .watch import Shows, Watch

MAX_KEYS = 2048
"""Block keys of one prompt; what is longer is compared by its beginning only."""
LOCAL_WEIGHT = 2
"""Rendering and tokenizing a text takes as long as reading so many times its bytes."""


def _unseen(_: EndpointId, __: Sequence[int], ___: float) -> bool | None:
    """No events are to be believed."""
    return None


class Tokens:
    """Owned by the director. `spawn` is the application's TaskGroup."""

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        spawn: Spawn,
        offload: Offload,
        clock: Callable[[], float],
        local: Locals | None = None,
        prefixes: Prefixes | None = None,
        shows: Shows = _unseen,
        naming: blocks.Naming = blocks.PLAIN,
        block_tokens: int = blocks.OWN_BLOCK_TOKENS,
        cache_bytes: int = 64 * 1024 * 1024,
        max_calls: int = 16,
        call_limit_s: float = 2.0,
    ) -> None:
        """`local`: who makes tokens here, and the `prefixes` that they share. `shows`: whether
        engines computed them, see `watch`. `naming`: what all of a pool agree on."""
        self._naming = naming
        self._prefixes = prefixes
        self._offload = offload
        self._block_tokens = block_tokens
        self.cache = TokenCache(cache_bytes)
        self.counts: Counter[str] = Counter()
        """Prompts by `how` their tokens were found; a bounded set of words."""
        self._asking: Asking | None = None
        if tokenizer is not None:
            self._asking = Asking(
                tokenizer,
                spawn=spawn,
                offload=offload,
                clock=clock,
                cache=self.cache,
                counts=self.counts,
                max_calls=max_calls,
                call_limit_s=call_limit_s,
            )
        self._proving = Proving(
            local=local, asking=self._asking, shows=shows, spawn=spawn, clock=clock
        )

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def calls(self) -> int:
        """Questions to engines that wait for an answer."""
        return 0 if self._asking is None else len(self._asking)

    @property
    def cache_bytes(self) -> int:
        return self.cache.bytes

    @property
    def prefix_bytes(self) -> int:
        """Memory of what is known of beginnings."""
        return 0 if self._prefixes is None else self._prefixes.bytes

    @property
    def text_bytes(self) -> dict[str, int]:
        """Text of prompts whose tokens were made here: what was new, and what was known."""
        if self._prefixes is None:
            return {}
        return {"new": self._prefixes.encoded_bytes, "known": self._prefixes.reused_bytes}

    @property
    def watch(self) -> Watch:
        """An observer of decisions, to be told of first tokens and of time."""
        return self._proving.watch

    @property
    def missed(self) -> int:
        """Prompts whose blocks did not show up where they went."""
        return self._proving.missed

    @property
    def stepped_down(self) -> dict[str, int]:
        """Models whose tokens were found wrong, by the way that is taken for them now."""
        return {step.name.lower(): count for step, count in self._proving.below().items()}

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
        found, why = await self._exactly(parsed, prompt, wait_s)
        if found is None:
            return await self._offload.run(
                len(prompt.text), lambda: self._estimate(parsed, prompt, why)
            )
        other = -(-prompt.other_bytes // blocks.ESTIMATE_BYTES_PER_TOKEN)
        return replace(found, tokens=found.tokens + other)

    async def _exactly(
        self, parsed: Parsed, prompt: TextPrompt, wait_s: float
    ) -> tuple[Tokenised | None, str]:
        """The tokens of a text, or None and why there are none."""
        step = self._proving.step(parsed.model)
        if step is Step.ESTIMATE:
            return None, "no tokenizer" if self._proving.best is step else "tokens differ"
        fields = prompt.tokenize
        if len(prompt.text) > MAX_TEXT_BYTES:
            return None, "too long"
        if fields is None:
            return None, "not tokenizable"
        digest = _digest(parsed, fields, step)
        found, why = self.cache.get(digest), ""
        how = found.how if found is not None else ""
        if found is not None:
            found = replace(found, how="cached")
        else:
            if step is Step.LOCAL:
                found = await self._here(digest, parsed, fields)
            if found is None:
                found, why = await self._asked(digest, parsed, prompt, fields, wait_s)
            how = found.how if found is not None else ""
        if found is not None:
            made = Step.LOCAL if how == "local" else Step.ENGINE
            self.watch.found(parsed.model, made, found.keys, fields)
        return found, why

    async def _here(self, digest: bytes, parsed: Parsed, fields: Fields) -> Tokenised | None:
        """Made from the model's files, where they suffice."""
        local = self._proving.local(parsed.model)
        if local is None:
            return None
        size = LOCAL_WEIGHT * sum(len(raw) for _, raw in fields)
        try:
            found = await self._offload.run(size, lambda: self._local(local, parsed, fields))
        except UnrenderableError:
            return None
        self.cache.put(digest, found)
        return found

    async def _asked(
        self, digest: bytes, parsed: Parsed, prompt: TextPrompt, fields: Fields, wait_s: float
    ) -> tuple[Tokenised | None, str]:
        """The engine's, or None and why not."""
        if self._asking is None:
            return None, "no tokenizer"
        if fields[0][0] == "prompt" and len(prompt.text) < self._block_tokens:
            return None, "too short"
        return await self._asking.ask(
            digest,
            parsed.model,
            fields,
            lambda packed: replace(self._exact(parsed, packed, 0), how="engine"),
            wait_s,
        )

    def _local(self, local: Local, parsed: Parsed, fields: Fields) -> Tokenised:
        seed = self._seed(parsed)
        tokens, keys = local.keys(fields, seed)
        return Tokenised(tokens, True, keys, "local")

    def _seed(self, parsed: Parsed) -> int:
        """What tells the block keys of a model, and of a salt, from all others."""
        return blocks.seed_of(parsed.model, salt=parsed.cache_salt, naming=self._naming)

    def _exact(self, parsed: Parsed, packed: bytes, other_tokens: int) -> Tokenised:
        seed = self._seed(parsed)
        head = packed[: 4 * self._block_tokens * MAX_KEYS]
        keys = blocks.token_keys(head, seed, self._block_tokens)
        return Tokenised(len(packed) // 4 + other_tokens, True, keys, "given")

    def _estimate(self, parsed: Parsed, prompt: TextPrompt, why: str) -> Tokenised:
        seed = self._seed(parsed)
        block_bytes = blocks.ESTIMATE_BYTES_PER_TOKEN * self._block_tokens
        keys = blocks.byte_keys(prompt.text[: block_bytes * MAX_KEYS], seed, self._block_tokens)
        return Tokenised(self.size(prompt), False, keys, why)


def _digest(parsed: Parsed, fields: Fields, step: Step) -> bytes:
    """Name of a question by its content; no two contents run into each other."""
    state = xxhash.xxh3_128()
    pieces = [step.name.encode(), parsed.model.encode(), parsed.cache_salt.encode()]
    for name, raw in fields:
        pieces += [name.encode(), raw]
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "little"))
        state.update(piece)
    return state.digest()
