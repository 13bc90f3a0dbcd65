"""The engines' own tokens of a prompt: rendered where one renders, else by `/tokenize`."""

from collections.abc import Callable, Mapping

from epp.request.apis import openai
from epp.request.apis.prompt import Fields, Parsed, TextPrompt
from epp.request.offload import Offload

from . import rendering
from .asking import Asking, Tokenizer
from .cache import TokenCache, digest_of
from .engine import TOKENIZE, Answer
from .tokenised import Tokenised

_SPENT = frozenset({"late", "busy"})
"""Why who renders gave nothing, where there is no time to ask another way."""
_Found = tuple[Tokenised | None, Fields, str]
"""What was found, what was asked for it, and why it was not."""


class Engines:
    """Owned by `Tokens`. Belongs to one event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        renderers: Mapping[str, Tokenizer],
        *,
        media: bool,
        least_bytes: int,
        exact: Callable[[Parsed, Answer, str], Tokenised],
        offload: Offload,
        clock: Callable[[], float],
        cache: TokenCache,
        asking: Callable[[Tokenizer], Asking],
    ) -> None:
        """`renderers` by API. `media`: whether they are asked for images, too. `least_bytes` of a
        text may make a block. `exact`: what is to be known of an answer, which came how."""
        self._asking = None if tokenizer is None else asking(tokenizer)
        self._rendering = {api: asking(whom) for api, whom in renderers.items()}
        self._media = media
        self._least_bytes = least_bytes
        self._exact = exact
        self._offload = offload
        self._clock = clock
        self._cache = cache

    def __len__(self) -> int:
        """Questions that wait for an answer."""
        return sum(map(len, self._rendering.values())) + len(self._asking or ())

    async def ask(self, parsed: Parsed, prompt: TextPrompt, body: bytes, wait_s: float) -> _Found:
        """Tokens of a prompt, after at most about `wait_s`. Raises offload.BusyError."""
        until = self._clock() + wait_s
        rendered = await self._rendered(parsed, prompt, body, wait_s)
        if rendered[0] is not None or rendered[2] in _SPENT:
            return rendered
        return await self._tokenized(parsed, prompt, until - self._clock())

    async def ids(self, model: str, fields: Fields) -> bytes | None:
        """What an engine makes of the fields of `/tokenize`, beside everything else; None without
        an answer."""
        found: bytes | None = None
        render = self._rendering.get(openai.CHAT)
        if render is not None and fields[0][0] == "messages":
            found = await render.ids(model, fields)
        if found is None and self._asking is not None:
            found = await self._asking.ids(model, fields)
        return found

    async def _rendered(
        self, parsed: Parsed, prompt: TextPrompt, body: bytes, wait_s: float
    ) -> _Found:
        asking = self._rendering.get(parsed.api)
        unasked = prompt.media_tokens > 0 and not self._media
        if asking is None or unasked or not 0 < len(body) <= rendering.MAX_BODY_BYTES:
            return None, (), "not rendered"
        if not asking.open(parsed.model):
            return None, (), "not rendered"
        fields = await self._offload.run(len(body), lambda: rendering.question(parsed.api, body))
        if fields is None:
            return None, (), "not rendered"
        path = rendering.PATHS[parsed.api]
        return await self._found(asking, parsed, fields, (path, "rendered"), wait_s)

    async def _tokenized(self, parsed: Parsed, prompt: TextPrompt, wait_s: float) -> _Found:
        fields = prompt.tokenize
        if fields is None:
            return None, (), "not tokenizable"
        if self._asking is None:
            return None, (), "no tokenizer"
        if fields[0][0] == "prompt" and len(prompt.text) < self._least_bytes:
            return None, (), "too short"
        return await self._found(self._asking, parsed, fields, (TOKENIZE, "engine"), wait_s)

    async def _found(
        self, asking: Asking, parsed: Parsed, fields: Fields, way: tuple[str, str], wait_s: float
    ) -> _Found:
        path, how = way
        digest = digest_of(parsed, fields, path)
        found, why = self._cache.again(digest), ""
        if found is None:
            found, why = await asking.ask(
                digest,
                parsed.model,
                fields,
                lambda answer: self._exact(parsed, answer, how),
                wait_s,
            )
        return found, fields, why
