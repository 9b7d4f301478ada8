"""What callers and handlers see of calls that go well, and of errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    InvalidArgument,
    NotAuthenticated,
    NotOwner,
    PositionTruncated,
    ProxyFailed,
    ProxyOutcomeUnknown,
    QuireError,
)
from quire.rpc.serving.methods import GET_STREAM_METADATA, READ, SEAL, WRITE, WRITE_ONCE
from quire.rpc.serving.results import is_not_applied
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Caller
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.contract.serving.world import OnWorld, World


def once(*records: bytes, stream: str = "s") -> pb.WriteOnceRequest:
    return pb.WriteOnceRequest(batch=pb.Batch(stream=stream, records=records))


def ping(number: int) -> pb.WriteRequest:
    return pb.WriteRequest(ping=pb.Ping(number=number))


def pong(number: int) -> pb.WriteResponse:
    return pb.WriteResponse(pong=pb.Pong(number=number))


async def count_bytes(request: Any, caller: Caller) -> pb.WriteOnceResponse:
    return pb.WriteOnceResponse(txid_first=sum(map(len, request.batch.records)))


async def echo(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
    async for request in requests:
        yield pong(request.ping.number)


def test_a_handler_knows_who_calls(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        callers: list[Caller] = []

        async def handler(request: Any, caller: Caller) -> pb.StreamResponse:
            callers.append(caller)
            return pb.StreamResponse()

        server = await world.serve({SEAL: handler})
        channel = world.channel(server, client_id="writer of 100 % übermut")
        await channel.call(SEAL, pb.StreamRequest(stream="a"), timeout_s=5)
        await channel.call(SEAL, pb.StreamRequest(stream="a"), timeout_s=5, attempt=3, tried=["h1:1", "h2:2"])
        assert [(each.client_id, each.attempt, each.tried) for each in callers] == [
            ("writer of 100 % übermut", 1, ()),
            ("writer of 100 % übermut", 3, ("h1:1", "h2:2")),
        ]
        assert callers[0].peer
        assert channel.address == f"{server.address[0]}:{server.address[1]}"

    on_world(check)


def test_messages_of_any_size_arrive_whole(on_world: OnWorld) -> None:
    """Sizes around those of frames and windows, and far above."""

    async def check(world: World) -> None:
        async def read(request: Any, caller: Caller) -> AsyncIterator[bytes]:
            for size in sizes:
                yield pb.ReadEvent(entries=[pb.Entry(data=bytes(size))]).SerializeToString()

        sizes = [0, 1, 16_360, 16_384, 65_535, 300_000, 1_500_000]
        channel = world.channel(await world.serve({WRITE_ONCE: count_bytes, READ: read}))
        for size in sizes:
            answer = await channel.call(WRITE_ONCE, once(bytes(size)), timeout_s=20)
            assert answer.txid_first == size
        async with channel.stream(READ, pb.ReadRequest()) as events:
            assert [len(event.entries[0].data) async for event in events] == sizes

    on_world(check)


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        channel = world.channel(await world.serve({WRITE_ONCE: count_bytes}))
        with pytest.raises(InvalidArgument, match="too large"):
            await channel.call(WRITE_ONCE, once(bytes(9 << 20)), timeout_s=5)

    on_world(check)


def test_a_message_that_only_the_server_finds_too_large_costs_its_call_alone(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        server = await world.serve(
            {WRITE_ONCE: count_bytes, WRITE: echo}, settings=ServingSettings(CallSettings(message_bytes_max=100_000))
        )
        channel = world.channel(server)
        with pytest.raises(InvalidArgument, match="bytes"):
            await channel.call(WRITE_ONCE, once(bytes(2_000_000)), timeout_s=5)
        async with channel.duplex(WRITE) as call:
            with pytest.raises(ProxyOutcomeUnknown):
                await call.send(pb.WriteRequest(batch=pb.Batch(records=[bytes(2_000_000)])))
            with pytest.raises(InvalidArgument, match="bytes"):
                await anext(call)
        assert (await channel.call(WRITE_ONCE, once(b"abc"), timeout_s=5)).txid_first == 3
        assert server.counts()["message_too_large"] == 2

    on_world(check)


def test_a_response_that_is_too_large_is_a_failure_of_the_proxy(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        async def fetch(request: Any, caller: Caller) -> pb.StreamMetadata:
            return pb.StreamMetadata(data=bytes(9 << 20))

        channel = world.channel(await world.serve({GET_STREAM_METADATA: fetch}))
        with pytest.raises(ProxyFailed):
            await channel.call(GET_STREAM_METADATA, pb.StreamRequest(), timeout_s=5)

    on_world(check)


def test_responses_may_be_bytes(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        async def read(request: Any, caller: Caller) -> AsyncIterator[pb.ReadEvent | bytes]:
            yield pb.ReadEvent(entries=[pb.Entry(entry_id=1)])
            yield pb.ReadEvent(entries=[pb.Entry(entry_id=2)]).SerializeToString()

        channel = world.channel(await world.serve({READ: read}))
        async with channel.stream(READ, pb.ReadRequest()) as events:
            assert [event.entries[0].entry_id async for event in events] == [1, 2]

    on_world(check)


def test_both_sides_of_a_duplex_call_keep_their_order(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        channel = world.channel(await world.serve({WRITE: echo}))
        async with channel.duplex(WRITE) as call:

            async def send() -> None:
                for number in range(2_000):
                    await call.send(ping(number))
                await call.done_sending()

            sending = asyncio.create_task(send())
            assert [answer.pong.number async for answer in call] == list(range(2_000))
            await sending

    on_world(check)


def test_responses_go_on_after_the_last_request(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        async def late(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
            numbers = [request.ping.number async for request in requests]
            for number in numbers:
                yield pong(number)

        channel = world.channel(await world.serve({WRITE: late}))
        async with channel.duplex(WRITE) as call:
            for number in range(3):
                await call.send(ping(number))
            await call.done_sending()
            assert [answer.pong.number async for answer in call] == [0, 1, 2]

    on_world(check)


def test_a_handler_may_end_a_duplex_call_by_itself(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        async def one(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
            yield pong((await anext(requests)).ping.number)

        channel = world.channel(await world.serve({WRITE: one}))
        async with channel.duplex(WRITE) as call:
            await call.send(ping(7))
            assert [answer.pong.number async for answer in call] == [7]
            with pytest.raises(ProxyOutcomeUnknown):
                await call.send(ping(8))

    on_world(check)


@pytest.mark.parametrize(
    "error",
    [
        NotOwner("b has it", proxy=pb.Owner(host="b", port=4181), owner_live=True, epoch=7, retry_after_ms=20),
        PositionTruncated("gone", earliest=DLSN(Lssn(3), EntryId(0), SlotId(0))),
        InvalidArgument("ü: 100 % wrong\n" + "and long " * 1_000, hint="Write it right."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_handler_is_raised_at_the_caller(on_world: OnWorld, error: QuireError) -> None:
    async def check(world: World) -> None:
        async def unary(request: Any, caller: Caller) -> pb.WriteOnceResponse:
            raise error

        async def read(request: Any, caller: Caller) -> AsyncIterator[pb.ReadEvent]:
            yield pb.ReadEvent()
            raise error

        async def write(requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
            async for _ in requests:
                raise error
            yield pong(0)

        channel = world.channel(await world.serve({WRITE_ONCE: unary, READ: read, WRITE: write}))
        with pytest.raises(type(error)) as of_unary:
            await channel.call(WRITE_ONCE, once(), timeout_s=5)
        received = []
        with pytest.raises(type(error)) as of_stream:
            async with channel.stream(READ, pb.ReadRequest()) as events:
                received += [event async for event in events]
        async with channel.duplex(WRITE) as call:
            await call.send(ping(1))
            with pytest.raises(type(error)) as of_duplex:
                await anext(call)
        for raised in (of_unary.value, of_stream.value, of_duplex.value):
            assert str(error).startswith(str(raised))
            assert str(raised)[:15] == str(error)[:15]
            assert raised.hint == error.hint
            assert is_not_applied(raised)
            assert {name: raised.facts[name] for name in error.facts} == error.facts

    on_world(check)


def test_a_bug_of_a_handler_is_told_without_its_details(on_world: OnWorld, caplog: pytest.LogCaptureFixture) -> None:
    async def check(world: World) -> None:
        async def unary(request: Any, caller: Caller) -> pb.WriteOnceResponse:
            raise ValueError("secret of the house")

        async def read(request: Any, caller: Caller) -> AsyncIterator[pb.ReadEvent]:
            if caller.client_id:
                raise asyncio.CancelledError  # Not ours: nobody cancelled it.
            yield pb.ReadEvent()

        channel = world.channel(await world.serve({WRITE_ONCE: unary, READ: read}))
        with pytest.raises(ProxyFailed) as raised:
            await channel.call(WRITE_ONCE, once(), timeout_s=5)
        assert "secret" not in str(raised.value) + raised.value.hint
        assert not is_not_applied(raised.value)
        assert "call.failed" in caplog.text
        assert "secret of the house" in caplog.text
        with pytest.raises(ProxyFailed):
            async with channel.stream(READ, pb.ReadRequest()) as events:
                await anext(events)

    on_world(check)


def test_a_call_that_the_proxy_does_not_serve_is_the_callers_mistake(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        server = await world.serve({WRITE_ONCE: count_bytes})
        with pytest.raises(InvalidArgument):
            await world.channel(server).call(SEAL, pb.StreamRequest(), timeout_s=5)
        assert server.counts()["unknown_method"] == 1

    on_world(check)


def test_a_call_without_a_client_id_is_refused(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        server = await world.serve({WRITE_ONCE: count_bytes})
        with pytest.raises(NotAuthenticated):
            await world.channel(server, client_id="").call(WRITE_ONCE, once(b"x"), timeout_s=5)
        assert (await world.channel(server).call(WRITE_ONCE, once(b"x"), timeout_s=5)).txid_first == 1
        assert server.counts()["no_client_id"] == 1

    on_world(check)


def test_many_calls_share_a_connection(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        async def read(request: Any, caller: Caller) -> AsyncIterator[pb.ReadEvent]:
            for number in range(20):
                yield pb.ReadEvent(entries=[pb.Entry(entry_id=number, data=bytes(2_000))])

        async def read_all() -> int:
            async with channel.stream(READ, pb.ReadRequest()) as events:
                return len([event async for event in events])

        async def write(size: int) -> int:
            return int((await channel.call(WRITE_ONCE, once(bytes(size)), timeout_s=30)).txid_first)

        server = await world.serve({WRITE_ONCE: count_bytes, READ: read})
        channel = world.channel(server)
        results = await asyncio.gather(
            *(write(size) for size in range(0, 40_000, 200)), *(read_all() for _ in range(100))
        )
        assert results == [*range(0, 40_000, 200), *[20] * 100]
        assert server.counts() == {"connections": 1, "calls": 0}

    on_world(check)
