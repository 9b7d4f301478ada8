"""Clients that do everything wrong, on real sockets: each is refused and counted, and others do not notice.

Every test ends with a good client's calls, which have been going on all the time.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quire.codec import http2
from quire.codec.pb import quire_v1_pb2 as pb
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.grpc_headers import request_headers
from quire.rpc.serving.grpc_server import GrpcServer, bind_grpc
from quire.rpc.serving.methods import READ, SEAL, WRITE
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Caller
from quire.runtime import real_runtime
from tests.support.raw_http2 import RawClient, raw_client
from tests.support.waiting import eventually

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(200)
SMALL = ServingSettings(
    CallSettings(connect_timeout_s=0.5, message_bytes_max=1 << 20),
    calls_per_connection_max=20,
    incoming_bytes_max=5 << 20,
    first_message_timeout_s=0.5,
    connections_max=50,
)


async def seal(request: Any, caller: Caller) -> pb.StreamResponse:
    return pb.StreamResponse()


async def read(request: Any, caller: Caller) -> AsyncIterator[bytes]:
    while True:
        yield pb.ReadEvent(entries=[pb.Entry(data=bytes(1000))]).SerializeToString()


async def write(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
    async for request in requests:
        yield pb.WriteResponse(pong=pb.Pong(number=request.ping.number))


@asynccontextmanager
async def served(settings: ServingSettings = SMALL) -> AsyncIterator[GrpcServer]:
    """A server with a good client, which talks to it all the time and expects every answer soon."""
    runtime = real_runtime()
    server = await bind_grpc(runtime, "127.0.0.1", 0, settings=settings)
    await server.start({SEAL: seal, READ: read, WRITE: write})
    transport = GrpcTransport(runtime, "good client")
    channel = transport.channel(f"127.0.0.1:{server.address[1]}")
    calls = 0

    async def be_good() -> None:
        nonlocal calls
        async with channel.duplex(WRITE) as duplex:
            while True:
                await duplex.send(pb.WriteRequest(ping=pb.Ping(number=calls)))
                assert (await anext(duplex)).pong.number == calls
                await channel.call(SEAL, pb.StreamRequest(), timeout_s=10)
                calls += 1
                await asyncio.sleep(0)

    async def some_more(than: int) -> bool:
        return calls > than + 5 or good.done()

    good = asyncio.create_task(be_good())
    try:
        yield server
        before = calls
        await eventually(lambda: some_more(before), what="the good client goes on")
        assert not good.done() or good.result()
    finally:
        good.cancel()
        await asyncio.wait([good])
        await transport.aclose()
        await server.aclose()


async def counted(server: GrpcServer, cause: str, times: int = 1) -> None:
    async def is_counted() -> bool:
        return server.counts().get(cause, 0) >= times

    await eventually(is_counted, what=f"{cause} is counted: {server.counts()}")
    assert server.counts()[cause] == times


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", TLS_HELLO, os.urandom(2000), b"\x00" * 100, b"PRI * HTTP/2.0\r\n\r\nXX"],
    ids=["HTTP/1", "TLS", "noise", "zeros", "almost"],
)
async def test_another_protocol_is_turned_away(said: bytes) -> None:
    async with served() as server, raw_client(server.address) as client:
        client.send(said)
        answer = await client.until_closed()
        await counted(server, "other_protocol")
        assert (b"gRPC" in answer) == said.startswith(b"GET")


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with served() as server, raw_client(server.address) as client:
        await client.until_closed()
        await counted(server, "silent_connection")


async def test_a_connection_that_stops_within_its_first_word_is_closed() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.send(http2.PREFACE[:10])
        await client.until_closed()
        await counted(server, "silent_connection")


async def test_more_connections_than_allowed_are_closed_at_once() -> None:
    async with served() as server:
        clients = [await asyncio.open_connection(*server.address) for _ in range(60)]

        async def all_over() -> bool:
            return server.counts().get("too_many_connections", 0) >= 60 - (50 - 1)

        await eventually(all_over)
        for _, writer in clients:
            writer.transport.abort()


def frame_of_odd_size(client: RawClient) -> None:
    client.send(http2.frame(http2.PING, 0, 0, b"short"))


def frame_too_large(client: RawClient) -> None:
    client.send((http2.FRAME_BYTES_TAKEN + 1).to_bytes(3, "big"), bytes(6), bytes(100))


def headers_that_mean_nothing(client: RawClient) -> None:
    client.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff" * 50))


def endless_headers(client: RawClient) -> None:
    client.send(http2.frame(http2.HEADERS, 0, 1, bytes(16_000)))
    for _ in range(10):
        client.send(http2.frame(http2.CONTINUATION, 0, 1, bytes(16_000)))


def empty_continuations(client: RawClient) -> None:
    client.send(http2.frame(http2.HEADERS, 0, 1), http2.frame(http2.CONTINUATION, 0, 1) * 20_000)


def empty_data(client: RawClient) -> None:
    number = client.open(WRITE)
    client.send(http2.frame(http2.DATA, 0, number) * 20_000)


def data_of_no_call(client: RawClient) -> None:
    client.send(http2.frame(http2.DATA, 0, 7, b"hello"))


def even_number(client: RawClient) -> None:
    client.send(http2.frame(http2.HEADERS, http2.END_HEADERS, 2, b""))


def number_twice(client: RawClient) -> None:
    number = client.open(SEAL)
    client.message(number, b"", end=True)
    client._next_id = number
    client.open(SEAL)
    client.open(SEAL)


def more_than_the_window(client: RawClient) -> None:
    """Whole messages, so that no memory has to be asked for, to a handler that takes the first one only."""
    number = client.open(READ)
    client.message(number, b"")
    for _ in range(40):
        client.message(number, bytes(16_000))


def window_overflow(client: RawClient) -> None:
    client.send(http2.number_frame(http2.WINDOW_UPDATE, 0, http2.WINDOW_BYTES_MAX))


def push(client: RawClient) -> None:
    client.send(http2.frame(http2.PUSH_PROMISE, 0, 1, bytes(8)))


@pytest.mark.parametrize(
    "misbehave",
    [
        frame_of_odd_size,
        frame_too_large,
        headers_that_mean_nothing,
        endless_headers,
        empty_continuations,
        empty_data,
        data_of_no_call,
        even_number,
        number_twice,
        more_than_the_window,
        window_overflow,
        push,
    ],
)
async def test_broken_rules_end_the_connection(misbehave: Callable[[RawClient], None]) -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        await client.until(http2.SETTINGS)
        misbehave(client)
        await client.until_closed()
        await counted(server, "broken_rules")


async def test_a_client_that_asks_and_never_reads_is_cut_off() -> None:
    """Method: PINGs, each of which has an answer, until nothing more goes through; not a byte is read."""
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        pings = http2.frame(http2.PING, 0, 0, bytes(8)) * 4_000

        async def flood() -> None:
            while True:
                client.send(pings)
                await client.writer.drain()

        with pytest.raises((ConnectionError, TimeoutError)):
            async with asyncio.timeout(20):
                await flood()
        await counted(server, "broken_rules")


async def test_a_reader_that_never_reads_costs_its_window_only() -> None:
    """Its socket is full, then the window is; meanwhile it keeps a call open, and that is all."""
    async with served() as server, raw_client(server.address) as client:
        client.send(http2.PREFACE, http2.settings_frame([(http2.INITIAL_WINDOW_SIZE, http2.WINDOW_BYTES_MAX)]))
        client.send(http2.number_frame(http2.WINDOW_UPDATE, 0, 1 << 30))
        for _ in range(10):
            client.message(client.open(READ), b"", end=True)

        async def all_open() -> bool:
            return server.counts()["calls"] >= 10

        await eventually(all_open)
        assert server.counts().get("broken_rules", 0) == 0


async def test_messages_that_are_too_large_are_refused_before_they_are_there() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        number = client.open(SEAL)
        client.send(http2.frame(http2.DATA, 0, number, http2.message_prefix(1 << 31)))
        await client.until(http2.HEADERS, number)
        await counted(server, "message_too_large")


async def test_large_messages_that_never_end_do_not_take_all_memory() -> None:
    """Method: calls that announce the largest message, send a part of it, and stay. One connection may have two."""
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        for _ in range(5):
            number = client.open(SEAL)
            client.send(http2.frame(http2.DATA, 0, number, http2.message_prefix(1 << 20) + bytes(1000)))
        await client.until(http2.HEADERS, number)
        await counted(server, "too_many_bytes", 3)


async def test_a_compressed_message_is_refused() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        number = client.open(SEAL)
        client.send(http2.frame(http2.DATA, http2.END_STREAM, number, b"\x01\x00\x00\x00\x01x"))
        await client.until(http2.HEADERS, number)
        await counted(server, "compressed_message")


async def test_a_message_of_another_type_is_refused() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        number = client.open(SEAL)
        client.message(number, b"\xff\xff\xff", end=True)
        await client.until(http2.HEADERS, number)
        await counted(server, "broken_message")


@pytest.mark.parametrize("method", [SEAL, READ, WRITE])
async def test_a_call_that_sends_nothing_is_ended(method: Any) -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        number = client.open(method)
        await client.until(http2.HEADERS, number)
        await counted(server, "no_first_message")


async def test_endless_open_calls_are_refused() -> None:
    """Method: twice as many as a connection may have, all silent but alive."""
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        numbers = [client.open(WRITE) for _ in range(40)]
        for number in numbers:
            client.message(number, b"")
        _, _, _, code = await client.until(http2.RST_STREAM, numbers[20])
        assert http2.number_of(code) == http2.REFUSED_STREAM
        await counted(server, "too_many_calls", 20)


async def test_calls_that_are_opened_only_to_be_given_up_end_the_connection() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        for _ in range(2_000):
            number = client.open(WRITE)
            client.send(http2.number_frame(http2.RST_STREAM, number, http2.CANCEL))
        await client.until_closed()
        await counted(server, "too_many_resets")


async def test_a_call_without_a_client_id_is_refused() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        number = client.open(SEAL, client_id="")
        _, flags, _, _ = await client.until(http2.HEADERS, number)
        assert flags & http2.END_STREAM
        await counted(server, "no_client_id")


async def test_what_is_not_grpc_is_refused() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        block = http2.headers_block([(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")])
        client.send(http2.headers_frames(1, block, end_stream=True))
        frame = await client.until(http2.HEADERS, 1)
        assert http2.plain_headers(frame[3]) == {":status": "405"}
        await counted(server, "not_grpc")


async def test_an_unknown_call_is_refused() -> None:
    async with served() as server, raw_client(server.address) as client:
        client.hello()
        block = request_headers("/x.Y/Z", address="x", client_id="c", attempt=1, tried=(), timeout_s=None)
        client.send(http2.headers_frames(1, block, end_stream=True))
        await client.until(http2.HEADERS, 1)
        await counted(server, "unknown_method")
