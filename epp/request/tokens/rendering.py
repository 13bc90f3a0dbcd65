"""Ask an engine, or a server that only renders, what it makes of a whole request. Pure.

vLLM answers for chats, messages and responses at the API's path and `/render`: the ids of the
prompt as it would compute it, with images and the like by name and place. It takes the request
itself, so whatever shapes the prompt is in it: rules of its own for a model, an API's way into a
chat, media. What shapes none is left out, so that equal prompts are one question.
"""

from collections.abc import Mapping

import msgspec

from epp.request.apis import messages, openai, responses
from epp.request.apis.prompt import Fields

PATHS: Mapping[str, str] = {
    openai.CHAT: "/v1/chat/completions/render",
    messages.API: "/v1/messages/render",
    responses.API: "/v1/responses/render",
}
"""By the name of the API. Of completions `/tokenize` says the same."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""Of larger requests nobody is asked; images as data are most of what is large."""

_SHAPELESS = frozenset(
    {
        *("model", "cache_salt", "stream", "stream_options", "n", "stop", "stop_token_ids", "seed"),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"),
        *("temperature", "top_p", "top_k", "min_p", "logit_bias", "logprobs", "top_logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"),
        *("ignore_eos", "bad_words", "allowed_token_ids", "prompt_logprobs", "stop_sequences"),
        *("user", "safety_identifier", "prompt_cache_key", "metadata", "store", "service_tier"),
        *("priority", "request_id", "return_token_ids", "return_tokens_as_token_ids"),
        *("kv_transfer_params", "ec_transfer_params", "mm_payload", "vllm_xargs", "background"),
    }
)
"""Members that say how to answer and for whom."""
_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
"""They shape a prompt that is cut to fit."""
_CUTS = frozenset({"truncate_prompt_tokens", "truncation"})
_ONLY_NAMES = ("mm_payload", b'"none"')
"""Of media their names and places are wanted, and not their numbers."""
_ADDED: Mapping[str, Fields] = {
    openai.CHAT: (_ONLY_NAMES,),
    messages.API: (("max_tokens", b"1"), _ONLY_NAMES),
    responses.API: (_ONLY_NAMES,),
}
"""What is asked beside that; a message without a limit is refused."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def question(api: str, body: bytes) -> Fields | None:
    """Members of a body that shape its prompt, in a fixed order; None where it is no object."""
    try:
        members = _members.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    left_out = _SHAPELESS - _LIMITS if members.keys() & _CUTS else _SHAPELESS
    kept = {name: bytes(members[name]) for name in sorted(members) if name not in left_out}
    added = (one for one in _ADDED[api] if one[0] not in kept)
    return (*kept.items(), *added)
