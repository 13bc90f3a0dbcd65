"""Images, audio and video of a request: where they stand, and what an encoder is asked. Pure.

An encoder gets a request of the client's own API with one item as its only content. What an engine
makes of an item depends on the item and on a few members besides; those go along, nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from epp.bodies.sharing import NULL, Api
from epp.bodies.spans import Body, NotAnObjectError
from sidecar.transfer.redaction import MEDIA_NAME

MAX_ITEMS = 64
"""Items that encoders are asked for, the first ones; whoever computes the prompt does the rest."""

_KEPT = (
    "model",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "chat_template",
    "chat_template_kwargs",
    "cache_salt",
    "priority",
)
"""Members that an encoder's request has from the client's."""
_TYPES: Mapping[Api, frozenset[str]] = {
    Api.CHAT: frozenset({"image_url", "audio_url", "video_url", "input_audio"}),
    Api.MESSAGES: frozenset({"image"}),
    Api.RESPONSES: frozenset({"input_image", "input_audio", "input_video"}),
}
_WHERE: Mapping[Api, str] = {
    Api.CHAT: "messages",
    Api.MESSAGES: "messages",
    Api.RESPONSES: "input",
}
"""The member that holds a conversation."""
_ONE_TOKEN: Mapping[Api, bytes] = {
    Api.CHAT: b'"max_tokens":1,"max_completion_tokens":1',
    Api.MESSAGES: b'"max_tokens":1',
    Api.RESPONSES: b'"max_output_tokens":1,"store":false',
}


class _Turn(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(NULL)


class _Part(msgspec.Struct):
    type: str = ""
    content: msgspec.Raw = msgspec.Raw(NULL)
    """What a tool answered, in the messages API."""


_turns = msgspec.json.Decoder(list[_Turn])
_parts = msgspec.json.Decoder(list[msgspec.Raw])
_part = msgspec.json.Decoder(_Part)
_told = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def items(body: Body, api: Api) -> tuple[bytes, ...]:
    """The JSON of each different item as it stands in the body, in their order."""
    where = _WHERE.get(api)
    text = None if where is None else body.value(where)
    if text is None:
        return ()
    try:
        turns = _turns.decode(text)
    except _BROKEN:
        return ()  # a text, or a shape that the engine may judge
    found = dict.fromkeys(item for turn in turns for item in _in(bytes(turn.content), api))
    return tuple(found)[:MAX_ITEMS]


def _in(content: bytes, api: Api) -> Iterator[bytes]:
    if not content.startswith(b"["):
        return
    try:
        for raw in _parts.decode(content):
            part = _part.decode(raw)
            if part.type in _TYPES[api]:
                yield bytes(raw)
            elif api is Api.MESSAGES and part.type == "tool_result":
                yield from _in(bytes(part.content), api)
    except _BROKEN:
        return


def leg(body: Body, api: Api, item: bytes) -> bytes:
    """The request that makes an engine encode this item, and generate next to nothing."""
    kept = [(name, value) for name in _KEPT if (value := body.value(name)) is not None]
    members = [b'"%b":%b' % (name.encode(), value) for name, value in kept]
    turn = b'"%b":[{"role":"user","content":[%b]}]' % (_WHERE[api].encode(), item)
    return b"{%b}" % b",".join((*members, turn, _ONE_TOKEN[api], b'"stream":false'))


def told(answer: bytes) -> Mapping[str, bytes]:
    """Where an encoder says that its embeddings are to be had: by item's hash. Empty where it says
    nothing, as engines with a storage in common do."""
    try:
        value = Body.read(answer).value(MEDIA_NAME)
        if value is None or value == NULL:
            return {}
        return {name: bytes(raw) for name, raw in _told.decode(value).items()}
    except (NotAnObjectError, *_BROKEN):
        return {}


class _Peer(msgspec.Struct):
    peer_host: str = ""


def host_of(params: bytes) -> str:
    """The machine that embeddings are to be had from; empty where none is named."""
    try:
        return msgspec.json.decode(params, type=_Peer).peer_host
    except _BROKEN:
        return ""


def with_told(body: Body, answers: Sequence[Mapping[str, bytes]]) -> bytes:
    """The client's body with all that encoders said; the same where they said nothing."""
    merged = {name: value for one in answers for name, value in one.items()}
    if not merged:
        return body.raw
    named = [b"%b:%b" % (msgspec.json.encode(name), value) for name, value in merged.items()]
    return body.edited(put={MEDIA_NAME: b"{%b}" % b",".join(named)})
