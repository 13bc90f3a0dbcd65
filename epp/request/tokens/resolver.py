"""From a prompt to block keys, by the best way that is believed and in time.

Token ids are exact as given. Text is tokenized here where the model's files are at hand, else an
engine is asked: to render the request if it does that, else by `/tokenize`. All of it is cached by
content. Where nothing serves bytes stand in: their keys live in another domain, so they meet our
own predictions only and never a decision that counts on tokens. Images and the like are exact where
an engine said their names and places, else such a prompt is estimated. Whether the exact ways give
what engines compute is looked at all the time (`proving`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from epp.framework import EndpointId
from epp.request.apis.prompt import MAX_TEXT_BYTES, Fields, Parsed, Prompt, TextPrompt, TokenPrompt
from epp.request.offload import INLINE_BYTES, Offload
from epp.state import blocks

from .asking import Asking, Spawn, Tokenizer
from .cache import TokenCache, digest_of
from .comparing import Local
from .engine import Answer
from .engines import Engines
from .prefixes import Prefixes
from .proving import Locals, Proving
from .standing import Step
from .tokenised import Tokenised, UnrenderableError
from .watch import Life, Shows, Watch

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
        renderers: Mapping[str, Tokenizer] | None = None,
        media: bool = False,
        spawn: Spawn,
        offload: Offload,
        clock: Callable[[], float],
        local: Locals | None = None,
        prefixes: Prefixes | None = None,
        shows: Shows = _unseen,
        life: Life = lambda _: None,
        naming: blocks.Naming = blocks.PLAIN,
        block_tokens: int = blocks.OWN_BLOCK_TOKENS,
        cache_bytes: int = 64 * 1024 * 1024,
        max_calls: int = 16,
        call_limit_s: float = 2.0,
    ) -> None:
        """`renderers`: who renders requests, by API; `media`: whether also those with images, which
        costs whom is asked much work. `max_calls`: at once, of each kind.
        `local`: who makes tokens here, and the `prefixes` that they share. `shows` and `life`:
        whether engines computed them, see `watch`. `naming`: what all of a pool agree on."""
        self._naming = naming
        self._prefixes = prefixes
        self._offload = offload
        self._block_tokens = block_tokens
        self.cache = TokenCache(cache_bytes)
        self.counts: Counter[str] = Counter()
        """Prompts by `how` their tokens were found; a bounded set of words."""
        self._engines = Engines(
            tokenizer,
            renderers or {},
            media=media,
            least_bytes=block_tokens,
            exact=self._exact,
            offload=offload,
            clock=clock,
            cache=self.cache,
            asking=lambda whom: Asking(
                whom,
                spawn=spawn,
                offload=offload,
                clock=clock,
                cache=self.cache,
                counts=self.counts,
                max_calls=max_calls,
                call_limit_s=call_limit_s,
            ),
        )
        self._proving = Proving(
            local=local,
            ids=None if tokenizer is None else self._engines.ids,
            shows=shows,
            life=life,
            spawn=spawn,
            clock=clock,
        )

    @property
    def block_tokens(self) -> int:
        return self._block_tokens

    @property
    def calls(self) -> int:
        """Questions to engines that wait for an answer."""
        return len(self._engines)

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

    async def resolve(
        self, parsed: Parsed, prompt: Prompt, *, wait_s: float, body: bytes = b""
    ) -> Tokenised:
        """Size and keys of a prompt, after at most about `wait_s`. Raises offload.BusyError.

        `body`: the request's, for whom is asked to render it; empty where it cannot be read.
        """
        if isinstance(prompt, TokenPrompt):
            answer = Answer(prompt.ids, prompt.media)
            found = await self._offload.run(
                len(prompt.ids), lambda: self._exact(parsed, answer, "given")
            )
            found = _with(found, prompt.other_tokens)
        else:
            step = self._proving.step(parsed.model)
            if why := self._unasked(step, prompt):
                found = await self._estimated(parsed, prompt, why)
            else:
                found = await self._text(step, parsed, prompt, wait_s, body)
        self.counts[found.how] += 1
        return found

    def size(self, prompt: Prompt) -> int:
        """Tokens of a prompt without its keys, estimated for text."""
        if isinstance(prompt, TokenPrompt):
            return len(prompt.ids) // 4 + prompt.other_tokens
        text = len(prompt.text) + prompt.other_bytes
        return -(-text // blocks.ESTIMATE_BYTES_PER_TOKEN) + prompt.media_tokens

    def _unasked(self, step: Step, prompt: TextPrompt) -> str:
        """Why nobody is asked for the tokens of a text; empty: somebody is."""
        if step is Step.ESTIMATE:
            return "no tokenizer" if self._proving.best is step else "tokens differ"
        return "too long" if len(prompt.text) > MAX_TEXT_BYTES else ""

    async def _text(
        self, step: Step, parsed: Parsed, prompt: TextPrompt, wait_s: float, body: bytes
    ) -> Tokenised:
        found, why = await self._exactly(step, parsed, prompt, wait_s, body)
        if found is None:
            return await self._estimated(parsed, prompt, why)
        return _with(found, -(-prompt.other_bytes // blocks.ESTIMATE_BYTES_PER_TOKEN))

    async def _exactly(
        self, step: Step, parsed: Parsed, prompt: TextPrompt, wait_s: float, body: bytes
    ) -> tuple[Tokenised | None, str]:
        """The tokens of a text, or None and why there are none."""
        if step is Step.LOCAL and (fields := prompt.tokenize) is not None:
            found = await self._here(parsed, fields)
            if found is not None:
                return found, ""
        found, asked, why = await self._engines.ask(parsed, prompt, body, wait_s)
        if found is not None:
            self.watch.found(parsed.model, Step.ENGINE, found.keys, asked)
        return found, why

    async def _here(self, parsed: Parsed, fields: Fields) -> Tokenised | None:
        """Made from the model's files, where they suffice."""
        digest = digest_of(parsed, fields, "local")
        found = self.cache.again(digest)
        if found is None:
            local = self._proving.local(parsed.model)
            if local is None:
                return None
            size = LOCAL_WEIGHT * sum(len(raw) for _, raw in fields)
            try:
                found = await self._offload.run(size, lambda: self._local(local, parsed, fields))
            except UnrenderableError:
                return None
            self.cache.put(digest, found)
        self.watch.found(parsed.model, Step.LOCAL, found.keys, fields)
        return found

    def _local(self, local: Local, parsed: Parsed, fields: Fields) -> Tokenised:
        seed = self._seed(parsed)
        tokens, keys = local.keys(fields, seed)
        return Tokenised(tokens, True, keys, "local")

    def _seed(self, parsed: Parsed) -> int:
        """What tells the block keys of a model, and of a salt, from all others."""
        return blocks.seed_of(parsed.model, salt=parsed.cache_salt, naming=self._naming)

    def _exact(self, parsed: Parsed, answer: Answer, how: str) -> Tokenised:
        seed = self._seed(parsed)
        head = answer.ids[: 4 * self._block_tokens * MAX_KEYS]
        keys = blocks.token_keys(head, seed, self._block_tokens, answer.media)
        return Tokenised(len(answer.ids) // 4, True, keys, how)

    async def _estimated(self, parsed: Parsed, prompt: TextPrompt, why: str) -> Tokenised:
        size = len(prompt.text)
        if size <= INLINE_BYTES:
            return self._estimate(parsed, prompt, why)
        return await self._offload.run(size, lambda: self._estimate(parsed, prompt, why))

    def _estimate(self, parsed: Parsed, prompt: TextPrompt, why: str) -> Tokenised:
        seed = self._seed(parsed)
        block_bytes = blocks.ESTIMATE_BYTES_PER_TOKEN * self._block_tokens
        keys = blocks.byte_keys(prompt.text[: block_bytes * MAX_KEYS], seed, self._block_tokens)
        return Tokenised(self.size(prompt), False, keys, why)


def _with(found: Tokenised, other_tokens: int) -> Tokenised:
    """With the tokens of the other prompts of the same request."""
    return replace(found, tokens=found.tokens + other_tokens) if other_tokens else found
