"""The official library `grpcio` at the other end: its clients call our server, and our client calls its server.

This is what makes our own HTTP/2 gRPC, and not something that only understands itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NotOwner, ProxyFailed, ProxyOutcomeUnknown, QuireError
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_server import GrpcServer, bind_grpc
from quire.rpc.serving.methods import READ, SEAL, SERVICES, WRITE, WRITE_ONCE, Method
from quire.rpc.serving.results import error_of
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Caller, Channel
from quire.runtime import real_runtime
from tests.support.waiting import eventually

WHO = (("x-client-id", "official"), ("x-attempt", "2"), ("x-tried", "a:1,b:2"))
REFUSAL = NotOwner("b has it", proxy=pb.Owner(host="b", port=4181), owner_live=True)


class Proxy:
    """Handlers for the tests, and what they saw."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.yielded = self.closed = 0

    async def once(self, request: Any, caller: Caller) -> pb.WriteOnceResponse:
        self.callers.append(caller)
        if request.batch.stream == "elsewhere":
            raise REFUSAL
        if request.batch.stream == "never":
            await asyncio.Event().wait()
        return pb.WriteOnceResponse(txid_first=sum(map(len, request.batch.records)))

    async def read(self, request: Any, caller: Caller) -> AsyncIterator[bytes]:
        try:
            while not request.max_frame_bytes or self.yielded < request.max_frame_bytes:
                self.yielded += 1
                yield pb.ReadEvent(entries=[pb.Entry(entry_id=self.yielded, data=bytes(2000))]).SerializeToString()
        finally:
            self.closed += 1

    async def write(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
        async for request in requests:
            yield pb.WriteResponse(pong=pb.Pong(number=request.ping.number))


@asynccontextmanager
async def ours(
    settings: ServingSettings | None = None, **options: int
) -> AsyncIterator[tuple[Proxy, GrpcServer, grpc.aio.Channel]]:
    """Our server, and an official channel to it."""
    proxy = Proxy()
    server = await bind_grpc(real_runtime(), "127.0.0.1", 0, settings=settings)
    await server.start({WRITE_ONCE: proxy.once, READ: proxy.read, WRITE: proxy.write})
    arguments = [(f"grpc.{name.replace('__', '.')}", value) for name, value in options.items()]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.address[1]}", options=arguments) as channel:
            yield proxy, server, channel
    finally:
        await server.aclose()


def stub(channel: grpc.aio.Channel, method: Method) -> Any:
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    return kinds[method.client_streams, method.server_streams](
        method.path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=method.response_type.FromString,
    )


def once(stream: str, *records: bytes) -> pb.WriteOnceRequest:
    return pb.WriteOnceRequest(batch=pb.Batch(stream=stream, records=records))


async def test_its_client_gets_answers_of_every_size() -> None:
    async with ours() as (proxy, _, channel):
        for size in (0, 100, 70_000, 3_000_000):
            assert (await stub(channel, WRITE_ONCE)(once("s", bytes(size)), metadata=WHO)).txid_first == size
        assert (proxy.callers[0].client_id, proxy.callers[0].attempt) == ("official", 2)
        assert proxy.callers[0].tried == ("a:1", "b:2")


async def test_its_client_gets_our_errors() -> None:
    async with ours() as (_, server, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(channel, WRITE_ONCE)(once("elsewhere"), metadata=WHO)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert refused.value.details() == "b has it"
        result = pb.Result.FromString(dict(refused.value.trailing_metadata() or ())["quire-result-bin"])
        assert isinstance(error_of(result), NotOwner)
        assert result.applied == pb.NO
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub(channel, SEAL)(pb.StreamRequest(), metadata=WHO)
        assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as nameless:
            await stub(channel, WRITE_ONCE)(once("s"))
        assert nameless.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await stub(channel, WRITE_ONCE)(once("never"), metadata=WHO, timeout=0.2)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server.counts() == {"connections": 1, "calls": 1, "unknown_method": 1, "no_client_id": 1}


async def test_its_client_finds_our_errors_where_it_looks_for_details() -> None:
    """As programs of other languages read them, with nothing of ours but the descriptions of messages."""
    async with ours() as (_, _, channel):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(channel, WRITE_ONCE)(once("elsewhere"), metadata=WHO)
        status = rpc_status.from_call(refused.value)
        assert status is not None
        assert (status.code, status.message) == (grpc.StatusCode.FAILED_PRECONDITION.value[0], "b has it")
        (detail,), result = status.details, pb.Result()
        assert detail.Unpack(result)
        assert (result.code, result.applied, result.owner.port) == (pb.NOT_OWNER, pb.NO, 4181)


async def test_its_reader_gets_everything_and_holds_the_handler_while_it_waits() -> None:
    """Method: a window of fixed size, since it would otherwise grow to what the loopback interface can do."""
    async with ours(http2__bdp_probe=0, http2__lookahead_bytes=100_000) as (proxy, _, channel):
        call = stub(channel, READ)(pb.ReadRequest(max_frame_bytes=3_000), metadata=WHO)
        events = aiter(call)
        first = await anext(events)
        for _ in range(20):
            await stub(channel, WRITE_ONCE)(once("s", bytes(1000)), metadata=WHO)
        assert proxy.yielded < 3_000
        rest = [event.entries[0].entry_id async for event in events]
        assert [first.entries[0].entry_id, *rest] == list(range(1, 3_001))
        assert await call.code() is grpc.StatusCode.OK


async def test_its_reader_that_goes_away_closes_the_handler() -> None:
    async def is_closed() -> bool:
        return proxy.closed == 1

    async with ours() as (proxy, _, channel):
        call = stub(channel, READ)(pb.ReadRequest(), metadata=WHO)
        await call.read()
        call.cancel()
        await eventually(is_closed)


async def test_it_sends_and_receives_at_once() -> None:
    async with ours() as (_, _, channel):
        call = stub(channel, WRITE)(metadata=WHO)

        async def send() -> None:
            for number in range(1_000):
                await call.write(pb.WriteRequest(ping=pb.Ping(number=number)))
            await call.done_writing()

        sending = asyncio.create_task(send())
        assert [answer.pong.number async for answer in call] == list(range(1_000))
        await sending


async def test_compressed_requests_are_refused_as_its_rules_say() -> None:
    async with ours() as (_, server, channel):
        with pytest.raises(grpc.aio.AioRpcError):
            await stub(channel, WRITE_ONCE)(once("s", bytes(10_000)), metadata=WHO, compression=grpc.Compression.Gzip)
        assert server.counts()["compressed_message"] == 1


async def test_its_client_does_not_notice_that_connections_are_renewed() -> None:
    settings = ServingSettings(connection_age_s=0.2, connection_age_grace_s=5)
    async with ours(settings) as (_, _, channel):
        ends_s = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < ends_s:
            assert (await stub(channel, WRITE_ONCE)(once("s", b"x"), metadata=WHO)).txid_first == 1


async def test_both_keep_a_silent_connection_alive() -> None:
    """Method: both ask often, and a second passes without a call's word."""
    settings = ServingSettings(CallSettings(keep_alive_s=0.05, keep_alive_timeout_s=10.0))
    async with ours(settings, keepalive_time_ms=50, keepalive_timeout_ms=10_000) as (_, _, channel):
        call = stub(channel, WRITE)(metadata=WHO)
        await call.write(pb.WriteRequest(ping=pb.Ping(number=1)))
        await call.read()
        waiting = asyncio.create_task(call.read())
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert not done
        await call.write(pb.WriteRequest(ping=pb.Ping(number=2)))
        assert (await waiting).pong.number == 2


async def test_health_is_told_to_checks_and_to_those_who_watch() -> None:
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    async with ours() as (_, server, channel):
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="quire.v1.Writer"))
        assert (await watch.read()).status == not_serving
        server.set_serving(True)
        assert (await watch.read()).status == serving
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == serving
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health.Check(health_pb2.HealthCheckRequest(service="somebody.Else"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        server.set_serving(False)
        assert (await watch.read()).status == not_serving


async def test_reflection_describes_the_api() -> None:
    def ask(port: int) -> tuple[list[str], dict[str, list[str]]]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol("quire.v1.Writer")
            with pytest.raises(KeyError):
                database.FindFileByName("nothing.proto")
            return list(database.get_services()), {
                service.name: [method.name for method in service.method] for service in file.service
            }

    async with ours() as (_, server, _):
        services, methods = await asyncio.to_thread(ask, server.address[1])
    assert {*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME} <= set(services)
    assert methods["Reader"][:2] == ["Read", "ReadSession"]


# --- Our client, its server


@asynccontextmanager
async def theirs(handlers: dict[Method, Any]) -> AsyncIterator[Channel]:
    """Its server, and our channel to it."""
    server = grpc.aio.server()
    for method, handler in handlers.items():
        kinds = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }
        made = kinds[method.client_streams, method.server_streams](
            handler,
            request_deserializer=method.request_type.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(method.service, {method.name: made}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    transport = GrpcTransport(real_runtime(), "ours")
    try:
        yield transport.channel(f"127.0.0.1:{port}")
    finally:
        await transport.aclose()
        await server.stop(None)


async def test_our_client_calls_its_server() -> None:
    async def once_there(request: Any, context: Any) -> pb.WriteOnceResponse:
        assert dict(context.invocation_metadata())["x-client-id"] == "ours"
        return pb.WriteOnceResponse(txid_first=len(request.batch.records[0]))

    async def read_there(request: Any, context: Any) -> AsyncIterator[pb.ReadEvent]:
        for number in range(500):
            yield pb.ReadEvent(entries=[pb.Entry(entry_id=number, data=bytes(5000))])

    async def write_there(requests: Any, context: Any) -> AsyncIterator[pb.WriteResponse]:
        async for request in requests:
            yield pb.WriteResponse(pong=pb.Pong(number=request.ping.number))

    async with theirs({WRITE_ONCE: once_there, READ: read_there, WRITE: write_there}) as channel:
        for size in (0, 100, 3_000_000):
            assert (await channel.call(WRITE_ONCE, once("s", bytes(size)), timeout_s=10)).txid_first == size
        async with channel.stream(READ, pb.ReadRequest()) as events:
            assert [event.entries[0].entry_id async for event in events] == list(range(500))
        async with channel.duplex(WRITE) as call:
            for number in range(100):
                await call.send(pb.WriteRequest(ping=pb.Ping(number=number)))
            await call.done_sending()
            assert [answer.pong.number async for answer in call] == list(range(100))


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, InvalidArgument),
        (grpc.StatusCode.INTERNAL, ProxyFailed),
        (grpc.StatusCode.UNAVAILABLE, ProxyOutcomeUnknown),
        (grpc.StatusCode.CANCELLED, ProxyOutcomeUnknown),
    ],
)
async def test_a_status_without_a_result_never_claims_that_nothing_happened(
    status: grpc.StatusCode, error: type[QuireError]
) -> None:
    """Except that a call which the server does not know cannot have done anything."""

    async def fail(request: Any, context: Any) -> None:
        await context.abort(status, "no: 100 % ü")

    async with theirs({WRITE_ONCE: fail}) as channel:
        with pytest.raises(error, match="no: 100 % ü"):
            await channel.call(WRITE_ONCE, once("s"), timeout_s=5)
