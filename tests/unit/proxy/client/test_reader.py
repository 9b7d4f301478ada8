"""Readers through read proxies: from one proxy to the next without a gap, and what ends them."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.proxy.client.scripted_proxies import CLIENT, SETTINGS, Proxies, with_proxies

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.entries import encode_entry
from quire.codec.stream.records import encode_records
from quire.errors import (
    DamagedEntry,
    InvalidArgument,
    LockLost,
    NoSuchStream,
    OverCapacity,
    PositionTruncated,
    ProxyDraining,
    ProxyUnreachable,
)
from quire.stream.start import Txid
from quire.types import DLSN, DigestType, EntryId, Lssn, SlotId


def place(lssn: int, entry: int, slot: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry), SlotId(slot))


def dlsn(lssn: int, entry: int, slot: int = 0) -> pb.Dlsn:
    return pb.Dlsn(lssn=lssn, entry_id=entry, slot_id=slot)


def opened(lssn: int, entry: int, slot: int = 0) -> pb.ReadEvent:
    return pb.ReadEvent(opened=pb.ReadOpened(resolved=dlsn(lssn, entry, slot), mode=pb.TAIL, incarnation="first"))


def entries(lssn: int, *numbers: int, records: int = 1) -> pb.ReadEvent:
    """Entries whose records say where they are; with the place behind them."""
    event = pb.ReadEvent()
    for number in numbers:
        payloads = [b"%d:%d:%d" % (lssn, number, slot) for slot in range(records)]
        txids = [number * 10 + slot for slot in range(records)]
        data = encode_entry([encode_records(payloads, txids, position=0)])
        event.entries.add(lssn=lssn, entry_id=number, data=data)
    event.progress.position.CopyFrom(dlsn(lssn, numbers[-1] + 1))
    event.progress.mode = pb.TAIL
    return event


def ping(lssn: int, entry: int) -> pb.ReadEvent:
    return pb.ReadEvent(progress=pb.Progress(position=dlsn(lssn, entry), mode=pb.TAIL))


END = pb.ReadEvent(end_of_stream=True)


def says(*events: Any) -> Any:
    return lambda request: list(events)


def starts(world: Proxies) -> list[str]:
    """Where each call began, at any proxy, in order."""
    found = []
    for proxy in world.proxies.values():
        for name, request, _ in proxy.requests:
            if name == "Read":
                at = request.start.dlsn
                shown = f"{at.lssn}:{at.entry_id}:{at.slot_id}" if request.start.HasField("dlsn") else "edge"
                found.append(shown)
    return found


async def with_reader(world: Proxies, *scripts: Any) -> None:
    await world.start("w")
    proxy = await world.start("r", pb.READ_PROXY)
    proxy.read_script.extend(scripts)


def test_entries_become_records_until_the_stream_ends() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0, 1), entries(2, 0, records=3), END))
        async with world.client() as client, client.open_reader("s") as reader:
            assert reader.position == place(1, 0)
            assert [record.payload async for record in reader] == [b"1:0:0", b"1:1:0", b"2:0:0", b"2:0:1", b"2:0:2"]
            assert reader.statistics().segments == 2
            assert reader.position >= place(2, 0, 3)

    with_proxies(check)


def test_after_a_break_reading_goes_on_behind_what_came() -> None:
    """Row 19: whatever ends the call, the next one begins at the place that the last message told."""

    async def check(world: Proxies) -> None:
        await with_reader(
            world,
            says(opened(1, 0), entries(1, 0, 1), ProxyDraining("it stops")),
            says(opened(1, 2)),
            says(opened(1, 2), entries(1, 2), OverCapacity("too many", retry_after_ms=100)),
            says(opened(1, 3), ping(2, 0), 100),
            says(opened(2, 0), entries(2, 0), END),
        )
        async with world.client() as client, client.open_reader("s", start="earliest") as reader:
            assert [record.payload async for record in reader] == [b"1:0:0", b"1:1:0", b"1:2:0", b"2:0:0"]
        assert starts(world) == ["edge", "1:2:0", "1:2:0", "1:3:0", "2:0:0"]

    with_proxies(check)


def test_a_place_inside_an_entry_is_kept() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0, 2), entries(1, 0, records=4), END))
        async with world.client() as client, client.open_reader("s", start=">1:0:1") as reader:
            assert [record.payload async for record in reader] == [b"1:0:2", b"1:0:3"]
        assert starts(world) == ["1:0:2"]

    with_proxies(check)


def test_a_reader_that_began_at_a_txid_gets_nothing_below_it() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0, records=4), END))
        async with world.client() as client, client.open_reader("s", start=Txid(2)) as reader:
            assert [record.txid async for record in reader] == [2, 3]

    with_proxies(check)


def test_an_error_comes_after_the_records_before_it_and_one_at_the_beginning_at_once() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(
            world,
            says(NoSuchStream("there is none")),
            says(opened(1, 0), entries(1, 0), PositionTruncated("gone", earliest=place(4, 0))),
        )
        async with world.client() as client:
            with pytest.raises(NoSuchStream):
                async with client.open_reader("s"):
                    raise AssertionError
            async with client.open_reader("s", start="1:0:0") as reader:
                assert (await anext(reader)).payload == b"1:0:0"
                with pytest.raises(PositionTruncated) as told:
                    await anext(reader)
                assert told.value.facts["earliest"] == place(4, 0)

    with_proxies(check)


def test_a_damaged_entry_is_passed_over_if_that_is_wanted() -> None:
    async def check(world: Proxies) -> None:
        damaged = [says(opened(1, 0), entries(1, 0), DamagedEntry("no replica has it"))] * 2
        await with_reader(world, *damaged, says(opened(1, 2), entries(1, 2), END))
        async with world.client() as client:
            async with client.open_reader("s") as reader:
                await anext(reader)
                with pytest.raises(DamagedEntry):
                    await anext(reader)
            async with client.open_reader("s", skip_damaged=True) as reader:
                assert [record.payload async for record in reader] == [b"1:0:0", b"1:2:0"]
                assert reader.statistics().damaged_entries == 1

    with_proxies(check)


def test_an_exclusive_reader_that_loses_its_proxy_has_lost_its_lock() -> None:
    """Somebody else may have read and committed meanwhile, so what is ready is not given any more."""

    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0), 1.0, ProxyDraining("it stops")))
        async with (
            world.client() as client,
            client.open_reader("s", exclusive=True, subscription="us") as reader,
        ):
            await anext(reader)
            with pytest.raises(LockLost):
                await anext(reader)
            with pytest.raises(LockLost):
                await reader.commit()
        request = next(request for name, request, _ in world.proxies["r"].requests if name == "Read")
        assert (request.exclusive, request.subscription) == (True, "us")

    with_proxies(check)


def test_positions_are_committed_at_a_read_proxy() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0), 100))
        proxy = world.proxies["r"]

        async def on_commitposition(request: pb.CommitPositionRequest) -> pb.CommitPositionResponse:
            return pb.CommitPositionResponse(position=request.position)

        proxy.on_commitposition = on_commitposition  # type: ignore[attr-defined]
        async with world.client() as client, client.open_reader("s", subscription="us") as reader:
            await anext(reader)
            assert await reader.commit() == place(1, 0, 1)
            assert await reader.commit(place(1, 0), may_go_back=True) == place(1, 0)
        commits = [request for name, request, _ in proxy.requests if name == "CommitPosition"]
        assert [(request.subscription, request.reset) for request in commits] == [("us", False), ("us", True)]
        assert {request.incarnation for request in commits} == {"first"}

    with_proxies(check)


def test_at_the_tail_is_whoever_was_told_that_there_is_nothing_more() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0), 1.0, ping(1, 1), 100))
        async with world.client() as client, client.open_reader("s") as reader:
            await anext(reader)
            assert not reader.statistics().at_tail
            assert await reader.read_many(1, timeout_s=1.5) == []
            assert reader.statistics().at_tail

    with_proxies(check)


def test_a_proxy_that_falls_silent_is_left_for_another_one() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0), 1000), says(opened(1, 1), entries(1, 1), END))
        loop = asyncio.get_running_loop()
        async with world.client() as client, client.open_reader("s") as reader:
            begun_s = loop.time()
            assert [record.payload async for record in reader] == [b"1:0:0", b"1:1:0"]
            assert CLIENT.read_silence_s <= loop.time() - begun_s < CLIENT.read_silence_s + 1.0

    with_proxies(check)


def test_without_a_read_proxy_a_reader_says_what_is_missing() -> None:
    async def check(world: Proxies) -> None:
        await world.start("w")
        async with world.client() as client:
            with pytest.raises(ProxyUnreachable, match="no read proxy") as refused:
                async with client.open_reader("s"):
                    raise AssertionError
            assert "quire read-proxy run" in refused.value.hint

    with_proxies(check)


def test_a_reader_gives_up_when_no_proxy_gives_it_the_stream_for_long() -> None:
    async def check(world: Proxies) -> None:
        await with_reader(world, says(opened(1, 0), entries(1, 0), ProxyDraining("it stops")))
        world.proxies["r"].read_script.extend([says(OverCapacity("too many", retry_after_ms=200))] * 500)
        loop = asyncio.get_running_loop()
        options = replace(SETTINGS, call_timeout_s=3.0)
        async with world.client(settings=options) as client, client.open_reader("s") as reader:
            await anext(reader)
            begun_s = loop.time()
            with pytest.raises(OverCapacity):
                await anext(reader)
            assert loop.time() - begun_s == pytest.approx(3.0, abs=0.5)

    with_proxies(check)


def test_what_is_no_place_is_refused_before_anything_is_opened() -> None:
    async def check(world: Proxies) -> None:
        await world.start("w")
        async with world.client() as client:
            with pytest.raises(InvalidArgument):
                client.open_reader("s", start="yesterday")
            with pytest.raises(InvalidArgument, match="digest"):
                client.open_reader("s", digest=DigestType.CRC32)

    with_proxies(check, seeds=1)
