"""A gateway's end of the ext_proc port, on the ordinary gRPC client."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from epp import protocol
from epp._pb import extproc_pb2 as pb
from tests.fakes import extproc_messages as envoy


class Call:
    """One ext_proc stream."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, *messages: bytes) -> None:
        for message in messages:
            await self._call.write(message)

    async def reply(self) -> pb.ProcessingResponse | None:
        """The next reply; None when the stream has ended well."""
        data = await self._call.read()
        return None if data is aio.EOF else pb.ProcessingResponse.FromString(data)

    async def replies(self, count: int) -> list[pb.ProcessingResponse]:
        found = [await self.reply() for _ in range(count)]
        assert None not in found, "the stream ended early"
        return [reply for reply in found if reply is not None]

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def code(self) -> grpc.StatusCode:
        code: grpc.StatusCode = await self._call.code()
        return code

    def cancel(self) -> None:
        self._call.cancel()


@asynccontextmanager
async def channel(
    port: int, *, root: bytes | None = None, options: Sequence[tuple[str, object]] = ()
) -> AsyncIterator[aio.Channel]:
    """A connection of its own; with `root`, over TLS and verified against it."""
    target = f"localhost:{port}"
    opts = (("grpc.use_local_subchannel_pool", 1), *options)
    if root is None:
        made = aio.insecure_channel(target, options=opts)
    else:
        made = aio.secure_channel(target, grpc.ssl_channel_credentials(root), options=opts)
    async with made:
        yield made


def call(on: aio.Channel) -> Call:
    """Open a stream."""
    return Call(on.stream_stream(protocol.EXT_PROC_METHOD)())


async def destination(stream: Call) -> str | None:
    """Where a request without a body goes, on a stream of its own; None where it gets 503."""
    await stream.send(envoy.GET)
    (reply,) = await stream.replies(1)
    stream.cancel()
    if reply.WhichOneof("response") == "immediate_response":
        assert reply.immediate_response.status.code == 503
        return None
    mutation = reply.request_headers.response.header_mutation
    return envoy.set_in(mutation)[protocol.DESTINATION]
