"""Streams that are in cold storage, or hold large record sets, through a read proxy."""

from typing import Any

import pytest
from tests.support.proxies.read_world import EARLIEST, STREAM, World, at, on_proxy, settings

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NoSuchStream
from quire.rpc.serving.results import dlsn_of
from quire.rpc.serving.settings import MESSAGE_BYTES_MAX
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot

ROOT = "memory:archive"


async def move(world: World) -> None:
    """All but the last segment become cold."""
    context = world.writers.context
    await archive_stream(context, STREAM, ROOT)
    assert await drop_hot(context, STREAM, DropPolicy())


@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
@pytest.mark.parametrize("format", [pb.ENTRIES, pb.RECORDS], ids=["entries", "records"])
def test_a_large_set_that_was_compressed_fits_into_messages(is_cold: bool, format: Any) -> None:
    """As single records its members are much more than a message may have."""
    members = [b"%d" % number + b"x" * 500_000 for number in range(40)]

    async def check(world: World) -> None:
        for payloads in (members, [b"last"]):
            async with world.writer() as writer:
                await writer.append_set(payloads, compression="lz4")
        if is_cold:
            await move(world)
        client = world.read(format=format)
        await world.until(lambda: client.error is not None or len(client.records) == 41)
        assert client.error is None
        assert client.payloads == [*members, b"last"]
        client.check_order()
        assert max(event.ByteSize() for event in client.events) < MESSAGE_BYTES_MAX
        start, fetched = EARLIEST, list[bytes]()
        while len(fetched) < 41 and format == pb.RECORDS:
            answer = await world.fetch(start, format=format, max_wait_ms=1000)
            assert answer.ByteSize() < MESSAGE_BYTES_MAX
            fetched += [record.payload for record in answer.event.records]
            start = at(*dlsn_of(answer.next))
        assert not fetched or fetched == [*members, b"last"]

    on_proxy(check, seeds=1)


def test_a_lane_in_cold_segments_does_not_go_on_in_those_of_another_stream() -> None:
    async def write(world: World, mark: bytes) -> None:
        for _ in range(5):
            async with world.writer() as writer:
                await writer.append_many([mark + bytes(4000)] * 10)
        await move(world)

    async def check(world: World) -> None:
        await write(world, b"old")
        client = world.read()
        client.may_go.clear()
        while not client.records:  # One message at a time.
            client.may_go.set()
            client.may_go.clear()
            await world.pass_time(0.1)
        await world.writers.delete_stream("s")
        await world.writers.create_stream("s")
        await write(world, b"new")
        client.may_go.set()
        await world.until(lambda: client.error is not None or len(client.records) >= 50)
        assert {payload[:3] for payload in client.payloads} == {b"old"}
        assert isinstance(client.error, NoSuchStream)

    on_proxy(check, settings=settings(lane_read_bytes=1000, frame_bytes=2000, cache_bytes_max=64 << 10), seeds=2)
