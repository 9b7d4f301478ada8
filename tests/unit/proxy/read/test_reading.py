"""What a request of `Read` may ask for: where to begin, what to do about gaps, how much, how fast, and alone."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.support.proxies.read_world import (
    CALLER,
    EARLIEST,
    LATEST,
    STREAM,
    Client,
    World,
    at,
    numbered,
    on_proxy,
    settings,
)

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    InvalidArgument,
    LockLost,
    NoSuchStream,
    OverCapacity,
    PositionInFuture,
    PositionTruncated,
    StreamOwned,
)
from quire.rpc.serving.results import dlsn_message, dlsn_of, result_of
from quire.types import DLSN, EntryId, Lssn, SlotId


def _has_come_to(client: Client, payload: bytes) -> bool:
    return client.payloads[-1:] == [payload]


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


# --- Where to begin


def test_a_reader_begins_at_a_place_behind_it_at_a_txid_or_at_a_time() -> None:
    async def check(world: World) -> None:
        async with world.writer() as writer:
            places = [await writer.append(b"%d" % number, txid=1000 + number) for number in range(20)]
        for start, first in (
            (pb.Position(dlsn=dlsn_message(places[7])), 7),
            (pb.Position(behind=dlsn_message(places[7])), 8),
            (pb.Position(txid=1007), 7),
            (pb.Position(time_ms=1007), 7),
            (pb.Position(), 0),
        ):
            client = world.read(start, format=pb.RECORDS)
            await world.until(partial(_has_come_to, client, b"19"))
            assert client.payloads == numbered(20 - first, first), start
            answer = await world.proxy.resolve_position(
                pb.ResolvePositionRequest(stream=STREAM, position=start), CALLER
            )
            assert answer.dlsn == client.events[0].opened.resolved

    on_proxy(check, seeds=1)


def test_a_reader_in_the_middle_of_an_entry_gets_the_whole_of_it_or_just_the_rest() -> None:
    """As entries it is up to the client to leave out what it knows; as records nothing comes twice."""

    async def check(world: World) -> None:
        async with world.writer() as writer:
            places = await writer.append_many(numbered(10))
        assert {each.entry_id for each in places} == {places[0].entry_id}
        start = pb.Position(behind=dlsn_message(places[3]))
        entries, records = world.read(start), world.read(start, format=pb.RECORDS)
        await world.until(lambda: bool(entries.records and records.records))
        assert entries.payloads == numbered(10)
        assert records.payloads == numbered(6, first=4)

    on_proxy(check, seeds=1)


def test_a_reader_in_the_middle_of_what_is_shared_gets_its_part() -> None:
    async def check(world: World) -> None:
        places = await world.write(50)
        first = world.read()
        await world.until(lambda: len(first.records) == 50)
        later = [world.read(at(*places[number])) for number in (1, 25, 49)]
        await world.until(lambda: all(client.payloads[-1:] == [b"49"] for client in later))
        assert [client.payloads for client in later] == [numbered(50 - n, n) for n in (1, 25, 49)]
        assert world.proxy._service.metrics.lanes_started.value == 1

    on_proxy(check, seeds=2, settings=settings(passed_s=60.0))


def test_a_place_that_nothing_has_come_to_is_waited_for() -> None:
    """Row 19: another proxy may be ahead of this one. Only what can never be is refused."""

    async def check(world: World) -> None:
        async with world.writer() as writer:
            last = await writer.append(b"0")
            ahead, tail = world.read(at(last.lssn, last.entry_id + 7)), world.read(LATEST)
            await world.until(lambda: bool(ahead.events and tail.events))
            for number in range(1, 30):
                await writer.append(b"%d" % number)
            await world.until(lambda: tail.payloads[-1:] == [b"29"] and ahead.payloads[-1:] == [b"29"])
            assert ahead.records[0].dlsn >= place(last.lssn, last.entry_id + 7)
            assert ahead.payloads == tail.payloads[-len(ahead.payloads) :]
            streams = world.proxy._service.lanes.streams.values()
            assert [lane.is_tail for each in streams for lane in each.lanes if lane.is_open] == [True]
        far = world.read(at(5, 0))
        await world.until(lambda: far.error is not None)
        assert isinstance(far.error, PositionInFuture)
        behind_the_end = world.read(at(1, 1000))
        await world.until(lambda: behind_the_end.error is not None)
        assert isinstance(behind_the_end.error, PositionInFuture)

    on_proxy(check, seeds=3)


def test_the_first_delivery_waits_until_a_known_record_is_visible() -> None:
    async def check(world: World) -> None:
        await world.write(5)
        client = world.read(min_visible=at(2, 0).dlsn, idle_ping_ms=500)
        await world.until(lambda: len(client.events) > 3)
        assert client.records == []
        await world.write(5, first=5)
        await world.until(lambda: len(client.records) == 10)
        seen = world.read(min_visible=at(1, 0).dlsn)
        await world.until(lambda: len(seen.records) == 10)

    on_proxy(check)


def test_nothing_is_read_of_what_is_not_there() -> None:
    async def check(world: World) -> None:
        client = world.read(stream="missing")
        await world.until(lambda: client.error is not None)
        assert isinstance(client.error, NoSuchStream)
        odd = world.read(format=7)
        await world.until(lambda: odd.error is not None)
        assert isinstance(odd.error, InvalidArgument)

    on_proxy(check, seeds=1)


# --- What was truncated


async def truncated(world: World) -> list[DLSN]:
    """Two segments of 10; the first is hidden, and half of the second."""
    places = [*await world.write(10), *await world.write(10, first=10)]
    await world.write(1, first=20)
    await world.writers.truncate_stream(STREAM, before=places[15])
    return places


def test_a_place_that_was_truncated_is_refused_with_the_first_that_is_left() -> None:
    async def check(world: World) -> None:
        places = await truncated(world)
        client = world.read(at(*places[3]))
        await world.until(lambda: client.error is not None)
        assert isinstance(client.error, PositionTruncated)
        assert dlsn_of(result_of(client.error).dlsn) == places[15]

    on_proxy(check)


def test_whoever_agrees_is_told_of_the_gap_and_goes_on() -> None:
    async def check(world: World) -> None:
        places = await truncated(world)
        client = world.read(at(*places[3]), truncated=pb.SKIP)
        await world.until(lambda: len(client.records) == 6)
        assert client.payloads == numbered(6, first=15)
        assert client.gaps == [(places[3], places[15])]
        earliest = world.read()
        await world.until(lambda: len(earliest.records) == 6)
        assert earliest.gaps == []

    on_proxy(check)


def test_a_slow_reader_is_overtaken_by_truncation() -> None:
    async def check(world: World) -> None:
        await world.write(10)
        fails, skips = world.read(max_frame_bytes=1), world.read(max_frame_bytes=1, truncated=pb.SKIP)
        await world.until(lambda: len(fails.records) >= 2 and len(skips.records) >= 2)
        for client in (fails, skips):
            client.may_go.clear()
        taken = max(len(fails.records), len(skips.records))
        await world.write(10, first=10)
        last = (await world.write(10, first=20))[0]
        await world.writers.truncate_stream(STREAM, before=last)
        await world.writers.purge_stream(STREAM)
        await world.pass_time(2.0)
        for client in (fails, skips):
            client.may_go.set()
        await world.until(lambda: fails.error is not None and skips.payloads[-1:] == [b"29"])
        assert isinstance(fails.error, PositionTruncated)
        assert len(skips.gaps) == 1
        assert skips.gaps[0][1] == last
        assert len(fails.records) <= taken + 11

    on_proxy(check, settings=settings(passed_s=0.0, lane_read_bytes=1, cache_bytes_max=8 << 10), seeds=2)


# --- How much, and how fast


def test_messages_are_as_large_as_was_asked_for_or_have_one_entry() -> None:
    async def check(world: World) -> None:
        await world.write(50)
        small, large = world.read(max_frame_bytes=100), world.read()
        await world.until(lambda: len(small.records) == len(large.records) == 50)
        assert max(sum(len(entry.data) for entry in event.entries) for event in small.events) <= 100
        assert len(large.events) < len(small.events)
        assert small.payloads == large.payloads == numbered(50)

    on_proxy(check, seeds=1)


def test_a_reader_is_no_faster_than_it_asked_for() -> None:
    async def check(world: World) -> None:
        async with world.writer() as writer:
            for _ in range(20):
                await writer.append(b"x" * 1000)
        began_s = world.now_s
        client = world.read(max_bytes_per_s=2000, max_frame_bytes=1000)
        await world.until(lambda: len(client.records) == 20)
        assert 8.0 < world.now_s - began_s < 12.0

    on_proxy(check, seeds=1)


def test_all_readers_of_old_entries_together_are_no_faster_than_the_proxy_lets_them() -> None:
    async def check(world: World) -> None:
        async with world.writer() as writer:
            for _ in range(20):
                await writer.append(b"x" * 1000)
        began_s = world.now_s
        clients = [world.read(max_frame_bytes=1000) for _ in range(4)]
        await world.until(lambda: all(len(client.records) == 20 for client in clients))
        assert world.now_s - began_s > 5.0

    on_proxy(check, settings=settings(scan_bytes_per_s_max=10_000, tail_bytes_per_s_max=10_000), seeds=1)


def test_a_silent_stream_tells_the_position_now_and_then() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        client = world.read(idle_ping_ms=1000)
        await world.until(lambda: len(client.records) == 3)
        seen = len(client.events)
        await world.pass_time(10.5)
        assert 9 <= len(client.events) - seen <= 12
        assert client.position is not None
        assert client.position > client.records[-1].dlsn

    on_proxy(check, seeds=1)


def test_a_reader_that_falls_behind_goes_or_skips_if_it_asked_for_that() -> None:
    async def check(world: World) -> None:
        kept = world.read()
        gone = world.read(slow=pb.DISCONNECT, slow_lag_bytes=2000)
        skipping = world.read(slow=pb.SKIP_TO_LATEST, slow_lag_bytes=2000)
        clients = (kept, gone, skipping)
        await world.write(5)
        await world.until(lambda: all(len(client.records) == 5 for client in clients))
        await world.pass_time(1.0)
        for client in clients:
            client.may_go.clear()
        await world.write(100, first=5)
        for client in clients:
            client.may_go.set()
        await world.until(lambda: len(kept.records) == 105 and gone.error is not None and bool(skipping.gaps))
        assert isinstance(gone.error, OverCapacity)
        await world.write(1, first=105)
        await world.until(lambda: skipping.payloads[-1:] == [b"105"])
        assert len(skipping.records) < 50
        skipping.check_order()

    on_proxy(check)


# --- Subscriptions and locks


def test_a_subscription_begins_where_it_committed_last() -> None:
    async def check(world: World) -> None:
        places = await world.write(10)
        fresh = world.read(at(*places[2]), subscription="mine")
        await world.until(lambda: len(fresh.records) == 8)
        await world.proxy.commit_position(
            pb.CommitPositionRequest(stream=STREAM, subscription="mine", position=dlsn_message(places[6])), CALLER
        )
        again = world.read(EARLIEST, subscription="mine")
        await world.until(lambda: len(again.records) == 4)
        assert again.payloads == numbered(4, first=6)

    on_proxy(check, seeds=1)


@pytest.mark.parametrize("subscription", ["", "mine"])
def test_an_exclusive_reader_is_alone(subscription: str) -> None:
    async def check(world: World) -> None:
        await world.write(3)
        first = world.read(exclusive=True, subscription=subscription)
        await world.until(lambda: len(first.records) == 3)
        second = world.read(exclusive=True, subscription=subscription, lock_timeout_ms=500)
        await world.until(lambda: second.error is not None)
        assert isinstance(second.error, StreamOwned)
        third = world.read(exclusive=True, subscription=subscription)
        await first.stop()
        await world.until(lambda: len(third.records) == 3)

    on_proxy(check, seeds=1)


def test_an_exclusive_reader_that_lost_its_lock_gets_nothing_more() -> None:
    async def check(world: World) -> None:
        await world.write(3)
        client = world.read(exclusive=True)
        await world.until(lambda: len(client.records) == 3)
        world.tree.expire_host("proxy")
        await world.until(lambda: client.error is not None)
        assert isinstance(client.error, LockLost)

    on_proxy(check)


class _Toil:
    """A loop's time, as it passes where every step takes some."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._taken_s = loop, 0.0

    def time(self) -> float:
        self._taken_s += 0.01
        return self._loop.time() + self._taken_s


def test_a_reader_of_records_hears_from_the_proxy_while_there_is_nothing_for_it() -> None:
    """Method: a long run of control records, which are no records for a reader, is at hand. To pass over it takes the
    proxy longer than the reader wants to be without a word."""

    async def check(world: World) -> None:
        follower = world.read(EARLIEST, format=pb.RECORDS)
        client = world.read(EARLIEST, format=pb.RECORDS, idle_ping_ms=15, max_frame_bytes=10_000)
        client.may_go.clear()
        await world.until(lambda: bool(client.events))
        readings: list[Any] = [*world.proxy._service.readings]
        (reading,) = (each for each in readings if each._idle_s == 0.015)
        reading._loop = _Toil(world.sim.loop)
        async with world.writer() as writer:
            for _ in range(300):
                writer.append_control(bytes(2000), lambda _: None)
            await writer.append(b"last")
        await world.until(partial(_has_come_to, follower, b"last"))
        client.may_go.set()
        await world.until(partial(_has_come_to, client, b"last"))
        words = [event for event in client.events if event.HasField("progress") and not event.records]
        assert len({str(event.progress.position) for event in words}) >= 3, "each says how far it has come"

    on_proxy(check, seeds=1)
