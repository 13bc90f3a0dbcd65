"""grpc.health.v1 over a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc import aio
from grpc_health.v1 import health_pb2

from epp import protocol
from epp.errors import EppError
from epp.observe.health import MAX_WATCHERS, Health, serve_health
from tests.timing import scaled

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def _check(port: int, service: str) -> int | grpc.StatusCode:
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        try:
            return int(health_pb2.HealthCheckResponse.FromString(await check(request)).status)
        except aio.AioRpcError as error:
            return error.code()


class Watch:
    """One watcher's end."""

    def __init__(self, channel: aio.Channel, service: str) -> None:
        request = health_pb2.HealthCheckRequest(service=service).SerializeToString()
        self.call = channel.unary_stream("/grpc.health.v1.Health/Watch")(request)

    async def next(self) -> int | None:
        """The next status; None when the stream has ended well."""
        async with asyncio.timeout(scaled(5)):
            data = await self.call.read()
        if data is aio.EOF:
            return None
        return int(health_pb2.HealthCheckResponse.FromString(data).status)


@asynccontextmanager
async def _served(health: Health) -> AsyncIterator[aio.Channel]:
    async with (
        serve_health(health, host="127.0.0.1", port=0) as port,
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


async def test_liveness_is_always_serving_and_the_rest_follows_readiness() -> None:
    health = Health()
    async with serve_health(health, host="127.0.0.1", port=0) as port:
        for ready in (False, True, False):
            health.ready = ready
            for service in protocol.HEALTH_SERVICES:
                expected = SERVING if ready or service == "liveness" else NOT_SERVING
                assert await _check(port, service) == expected
            assert await _check(port, "nonsense") is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_is_told_the_status_and_each_change_of_it() -> None:
    health = Health()
    async with _served(health) as channel:
        watch = Watch(channel, "readiness")
        assert await watch.next() == NOT_SERVING
        health.ready = True
        assert await watch.next() == SERVING
        health.ready = True
        health.ready = False
        assert await watch.next() == NOT_SERVING


async def test_a_watcher_of_an_unknown_service_is_told_so_and_stays() -> None:
    health = Health()
    async with _served(health) as channel:
        watch = Watch(channel, "nonsense")
        assert await watch.next() == UNKNOWN
        assert not watch.call.done()


async def test_watchers_hear_of_the_end_and_are_sent_away() -> None:
    health = Health(ready=True)
    async with _served(health) as channel:
        ready, alive = Watch(channel, ""), Watch(channel, "liveness")
        assert [await ready.next(), await alive.next()] == [SERVING, SERVING]
        health.leave()
        assert [await ready.next(), await ready.next()] == [NOT_SERVING, None]
        assert await alive.next() is None
        late = Watch(channel, "")
        assert [await late.next(), await late.next()] == [NOT_SERVING, None]


async def test_watchers_are_bounded_and_one_that_leaves_makes_room() -> None:
    health = Health(ready=True)
    async with _served(health) as channel:
        watches = [Watch(channel, "") for _ in range(MAX_WATCHERS)]
        for watch in watches:
            assert await watch.next() == SERVING
        assert await Watch(channel, "").call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watches[0].call.cancel()
        async with asyncio.timeout(scaled(5)):
            while await (again := Watch(channel, "")).call.read() is aio.EOF:
                assert await again.call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_list_names_every_service() -> None:
    async with _served(Health()) as channel:
        data = await channel.unary_unary("/grpc.health.v1.Health/List")(b"")
    listed = _list_response().FromString(data)
    assert set(listed.statuses) == set(protocol.HEALTH_SERVICES)
    assert listed.statuses["liveness"].status == SERVING
    assert listed.statuses["readiness"].status == NOT_SERVING


def _list_response() -> type:
    """HealthListResponse, which the installed messages may lack, made from its definition."""
    field = descriptor_pb2.FieldDescriptorProto
    entry = descriptor_pb2.DescriptorProto(
        name="StatusesEntry",
        field=[
            field(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL),
            field(
                name="value",
                number=2,
                type=field.TYPE_MESSAGE,
                label=field.LABEL_OPTIONAL,
                type_name=".grpc.health.v1.HealthCheckResponse",
            ),
        ],
        options=descriptor_pb2.MessageOptions(map_entry=True),
    )
    response = descriptor_pb2.DescriptorProto(
        name="Listed",
        field=[
            field(
                name="statuses",
                number=1,
                type=field.TYPE_MESSAGE,
                label=field.LABEL_REPEATED,
                type_name=".health_list.Listed.StatusesEntry",
            )
        ],
        nested_type=[entry],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name="health_list.proto",
            package="health_list",
            syntax="proto3",
            dependency=[health_pb2.DESCRIPTOR.name],
            message_type=[response],
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("health_list.Listed"))


async def test_a_health_port_in_use_is_said_plainly() -> None:
    async with serve_health(Health(), host="127.0.0.1", port=0) as port:
        with pytest.raises(EppError, match="cannot listen"):
            async with serve_health(Health(), host="127.0.0.1", port=port):
                pass


async def test_health_is_served_over_ipv6_too() -> None:
    async with serve_health(Health(ready=True), host="::1", port=0) as port:
        assert port > 0
