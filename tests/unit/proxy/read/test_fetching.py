"""`Fetch`: long polls that hold no entries."""

import asyncio

import pytest
from tests.support.proxies.read_world import EARLIEST, LATEST, STREAM, World, at, numbered, on_proxy, settings

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NoSuchStream, OverCapacity, PositionTruncated
from quire.rpc.serving.results import dlsn_of, result_of


def position(answer: pb.FetchResponse) -> pb.Position:
    return pb.Position(dlsn=answer.next)


def test_what_is_there_is_given_at_once() -> None:
    async def check(world: World) -> None:
        await world.write(20)
        answer = await world.fetch(EARLIEST, format=pb.RECORDS, max_wait_ms=30_000)
        assert [record.payload for record in answer.event.records] == numbered(20)
        assert answer.event.opened.resolved == at(1, 0).dlsn
        assert dlsn_of(answer.next) > dlsn_of(answer.event.records[-1].dlsn)

    on_proxy(check)


def test_all_records_come_once_in_small_pieces() -> None:
    async def check(world: World) -> None:
        async with world.writer() as writer:
            for first in range(0, 60, 6):
                await writer.append_many(numbered(6, first))
        for limits in ({"max_records": 4}, {"max_bytes": 50}, {"max_records": 7, "max_bytes": 300}):
            got, start = list[bytes](), EARLIEST
            while len(got) < 60:
                answer = await world.fetch(start, format=pb.RECORDS, max_wait_ms=1000, **limits)
                assert len(answer.event.records) <= limits.get("max_records", 1000)
                got += [record.payload for record in answer.event.records]
                start = position(answer)
            assert got == numbered(60)

    on_proxy(check)


def test_a_call_waits_for_what_comes_and_no_longer_than_it_said() -> None:
    async def check(world: World) -> None:
        began_s = world.now_s
        answer = await world.fetch(LATEST, max_wait_ms=2000)
        assert 2.0 <= world.now_s - began_s < 2.5
        assert not answer.event.entries
        assert answer.next == at(1, 0).dlsn
        waiting = asyncio.create_task(world.fetch(position(answer), max_wait_ms=20_000))
        await world.until(lambda: world.proxy._service.parked_fetches == 1)
        assert world.proxy._service.lanes.tail_pool.bytes == 0
        began_s = world.now_s
        await world.write(1)
        assert (await waiting).event.entries
        assert world.now_s - began_s < 2.0
        began_s = world.now_s
        await world.fetch(LATEST)
        assert world.now_s - began_s < 1.0, "who does not say how long does not wait"

    on_proxy(check)


def test_a_call_waits_for_as_much_as_it_wants() -> None:
    async def check(world: World) -> None:
        waiting = asyncio.create_task(world.fetch(EARLIEST, max_wait_ms=30_000, min_bytes=3000))
        async with world.writer() as writer:
            for _ in range(4):
                await writer.append(b"x" * 500)
                await world.pass_time(0.1)
                assert not waiting.done()
            for _ in range(3):
                await writer.append(b"x" * 500)
            answer = await waiting
        assert (
            sum(len(entry.data) for entry in answer.event.entries) >= 2900
        )  # Beside their data, entries have a few bytes.
        later = await world.fetch(position(answer), max_wait_ms=500, min_bytes=10**6)
        assert dlsn_of(later.next) >= dlsn_of(answer.next), "what is there when time is up is given"

    on_proxy(check)


def test_calls_that_wait_are_counted_and_limited() -> None:
    async def check(world: World) -> None:
        waiting = [asyncio.create_task(world.fetch(LATEST, max_wait_ms=10_000)) for _ in range(2)]
        await world.until(lambda: world.proxy._service.parked_fetches == 2)
        with pytest.raises(OverCapacity) as refused:
            await world.fetch(LATEST, max_wait_ms=10_000)
        assert refused.value.facts["retry_after_ms"]
        assert result_of(refused.value).code == pb.READ_OVERLOADED, "another proxy may have room"
        await asyncio.gather(*waiting)
        assert world.proxy._service.parked_fetches == 0

    on_proxy(check, settings=settings(parked_fetches_max=2), seeds=1)


def test_an_ended_stream_says_so() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        await world.writers.seal_stream(STREAM)
        answer = await world.fetch(EARLIEST, format=pb.RECORDS, max_wait_ms=5000)
        assert len(answer.event.records) == 3
        for _ in range(2):
            answer = await world.fetch(position(answer), format=pb.RECORDS, max_wait_ms=5000)
            assert answer.event.end_of_stream

    on_proxy(check)


def test_places_that_are_gone_and_streams_that_are_not_there() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        last = (await world.write(3, first=3))[0]
        await world.write(1, first=6)
        await world.writers.truncate_stream(STREAM, before=last)
        with pytest.raises(PositionTruncated):
            await world.fetch(at(1, 0))
        answer = await world.fetch(at(1, 0), truncated=pb.SKIP, max_wait_ms=5000)
        assert dlsn_of(answer.event.gap.to) == last
        with pytest.raises(NoSuchStream):
            await world.fetch(EARLIEST, stream="missing")

    on_proxy(check, seeds=1)


def test_a_call_that_waits_for_much_goes_on_when_its_place_is_not_kept_any_more() -> None:
    """Method: it waits for more bytes than are ever kept. What is at its place is dropped meanwhile; it is given that
    from another lane, long before its time is up."""

    async def check(world: World) -> None:
        began_s = world.now_s
        waiting = asyncio.create_task(world.fetch(EARLIEST, max_wait_ms=300_000, min_bytes=500_000, max_bytes=600_000))
        async with world.writer() as writer:
            for number in range(40):
                await writer.append(b"%d" % number + bytes(2000))
                await world.pass_time(0.05)
            answer = await waiting
        assert answer.event.entries
        assert world.now_s - began_s < 30

    on_proxy(check, settings=settings(cache_bytes_max=40_000))
