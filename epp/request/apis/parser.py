"""What parsers of prompts in JSON share: read the members, then find the prompt in them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from . import reading
from .prompt import Parsed, Prompt
from .reading import Body, odd, read

SHAPELESS = (msgspec.MsgspecError, RecursionError, TypeError, UnicodeError, OverflowError)
"""What a parser may meet in a prompt of a shape that it does not know."""

_B = TypeVar("_B", bound=Body)


def _api(_: Body) -> str:
    return "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser(Generic[_B]):
    """Of one API: what it adds to those steps."""

    api: str
    decoder: "msgspec.json.Decoder[_B]"
    prompt: Callable[[_B], Prompt]
    """Raises one of SHAPELESS for what it does not know."""
    where: str
    """What holds the prompt, as the reason says where its shape is not known."""
    limit: Callable[[_B], int | None]
    """See `Parsed.output_tokens`."""
    salt: Callable[[_B], str] = reading.salt
    whole: Callable[[_B], str] = _api
    """See `Parsed.whole`."""

    def parsed(self, path: str, body: bytes, *, nameless: bool = False) -> Parsed:
        """Raises BadRequest. `nameless`: the API takes a body without a model."""
        request = read(self.decoder, body, nameless=nameless)
        if request is None:
            return odd(self.api, path, body, nameless=nameless)
        prompt: Prompt | None = None
        why = ""
        try:
            prompt = self.prompt(request)
        except SHAPELESS:
            why = f"{self.where} of unknown shape"
        return Parsed(
            api=self.api,
            path=path,
            model=request.model or "",
            cache_salt=self.salt(request),
            prompt=prompt,
            output_tokens=self.limit(request),
            unscored=why,
            whole=self.whole(request),
        )
