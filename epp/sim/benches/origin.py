"""An engine that computes nothing, for benchmarks of what stands in front of engines.

It answers a body that asks for a stream with `EVENTS` events, `gap_s` apart, every other one with a
short completion; one that asks for a prefill gets parameters of a handoff. What a sidecar asks an
engine is answered as well.
"""

import asyncio
import re
from typing import cast

import httptools

EVENTS = 300
EVENT = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":" word","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
_JSON = (
    b'{"id":"cmpl-1","object":"text_completion","model":"sim","choices":[{"index":0,"text":"'
    b' a few words of an answer","finish_reason":"length"}],"usage":{"prompt_tokens":1000,'
    b'"completion_tokens":8,"total_tokens":1008}'
)
_STREAM = re.compile(rb'"stream": ?true')
_PREFILL = re.compile(rb'"do_remote_decode": ?true')
_PARAMS = (
    b',"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
    b'"remote_block_ids":[1,2,3,4],"remote_engine_id":"e","remote_request_id":"r",'
    b'"remote_host":"127.0.0.1","remote_port":5600,"tp_size":1}'
)
_MODELS = b'{"object":"list","data":[{"id":"sim","object":"model","max_model_len":8192}]}'
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    """A whole answer of this body."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        kind,
        len(body),
        body,
    )


_PLAIN = answer(_JSON + b"}")
_PREFILLED = answer(_JSON + _PARAMS + b"}")
_ANSWERS = {
    b"/health": answer(b""),
    b"/metrics": answer(b"", b"text/plain"),
    b"/v1/models": answer(_MODELS),
}


class Origin(asyncio.Protocol):
    """One connection."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._target = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body, self._target = [], b""

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        found = _ANSWERS.get(self._target)
        if found is not None:
            self._transport.write(found)
        elif _STREAM.search(body):
            self._transport.write(_STREAM_HEAD)
            self._event(EVENTS)
        else:
            self._transport.write(_PREFILLED if _PREFILL.search(body) else _PLAIN)

    def _event(self, left: int) -> None:
        if self._transport.is_closing():
            return
        data = EVENT if left else DONE
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        if left:
            asyncio.get_running_loop().call_later(self._gap_s, self._event, left - 1)
        else:
            self._transport.write(b"0\r\n\r\n")


async def serve(port: int, gap_s: float, host: str = "127.0.0.1") -> None:
    """Answer on this port until cancelled. Raises OSError when it is taken."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Origin(gap_s), host, port, backlog=1024)
    async with server:
        await server.serve_forever()
