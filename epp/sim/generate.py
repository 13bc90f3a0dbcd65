"""vLLM's tokens in, tokens out on a simulated engine: what is read, how it is answered. Pure.

The body is what `/render` answers to requests of the other APIs.
"""

from dataclasses import replace

import msgspec

from epp.bodies.sharing import Api
from epp.sim.answers import Answer, Choice
from epp.sim.api import (
    DEFAULT_COMPLETION_TOKENS,
    Ask,
    Sampling,
    TokenId,
    Wire,
    ask_of,
    bad_request,
    decoded,
)
from epp.sim.media import Features, features_of
from epp.sim.openai import DONE
from epp.sim.settings import EngineSettings


class GenerateBody(Wire, frozen=True, kw_only=True):
    token_ids: list[TokenId]
    sampling_params: Sampling | None = None
    features: Features | None = None


def parse(body: bytes, settings: EngineSettings) -> Ask:
    """Read a body of `/inference/v1/generate`. Raises ApiError."""
    wire = decoded(body, GenerateBody)
    if not wire.token_ids:
        raise bad_request("token_ids must not be empty", "token_ids")
    sampling = wire.sampling_params or Sampling()
    if sampling.max_tokens is None:
        sampling = msgspec.structs.replace(sampling, max_tokens=DEFAULT_COMPLETION_TOKENS)
    ask = ask_of(Api.GENERATE, wire, settings, (wire.token_ids,), sampling)
    if wire.features is None:
        return ask
    try:
        items = wire.features.items
    except (ValueError, KeyError) as error:
        raise bad_request("mm_hashes and mm_placeholders must go together", "features") from error
    return replace(ask, namespace=replace(ask.namespace, media=items))


def rendered(ask: Ask) -> bytes:
    """The request as a body that `parse` reads: as the engine would compute it."""
    limit = {} if ask.ends_by_itself else {"max_tokens": ask.limits[0]}
    body = {
        "model": ask.model,
        "token_ids": ask.prompts[0],
        "features": features_of(ask.namespace.media),
        "sampling_params": {"n": ask.choices, **limit},
        "cache_salt": ask.namespace.salt or None,
        "stream": ask.stream,
    }
    return msgspec.json.encode(body)


class Generated(Answer):
    """Token ids alone. It tells no usage."""

    __slots__ = ()
    prefix = "generate-tokens-"

    def whole(self) -> bytes:
        choices = [self._choice(one, one.tokens) for one in self.choices]
        return self._body(choices, prompt_logprobs=None, **self.handed_over)

    def opening(self, choice: Choice) -> bytes:
        return b""

    def piece(self, choice: Choice) -> bytes:
        return b"data: " + self._body([self._choice(choice, choice.tokens[-1:])]) + b"\n\n"

    def closing(self) -> bytes:
        return DONE

    def failing(self, error: bytes) -> bytes:
        return b"data: " + error + b"\n\n" + DONE

    def _body(self, choices: list[dict[str, object]], **more: object) -> bytes:
        return msgspec.json.encode({"request_id": self.id, "choices": choices, **more})

    def _choice(self, choice: Choice, tokens: list[int]) -> dict[str, object]:
        told = {"index": choice.index, "logprobs": None}
        return {**told, "finish_reason": choice.finish_reason, "token_ids": tokens}
