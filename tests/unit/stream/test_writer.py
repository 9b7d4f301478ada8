"""The writer of a stream on a simulated cluster: what it stores, what it acknowledges, what it refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster, stream_cluster

from quire.codec.stream.entries import decode_entry
from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Segment, Truncation
from quire.errors import (
    HandleClosed,
    InvalidArgument,
    MetadataUnavailable,
    NoSuchStream,
    PositionTruncated,
    QuireError,
    RecordTooLarge,
    StreamOwned,
    StreamSealed,
    TxidOutOfOrder,
    WriterFenced,
)
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.nodes import GuardedNodes, StoredSegment, StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.reader import open_stream_reader
from quire.stream.segments import StreamSegments
from quire.stream.settings import StreamSettings
from quire.testing import Simulation, simulate
from quire.types import DLSN

QUIET = replace(SETTINGS, commit_delay_s=1000.0)  # No control records but those at the ends of segments.


def play(act: Callable[[StreamCluster, StreamContext], Awaitable[None]], *, seed: int = 1, bookies: int = 3) -> None:
    async def main(sim: Simulation) -> None:
        async with stream_cluster(sim, bookies=bookies) as cluster, cluster.context() as context:
            await act(cluster, context)

    simulate(seed, main)


async def stored_records(context: StreamContext, stream: str = "s") -> list[LogRecord]:
    """All records of completed segments, of all kinds, straight from the ledgers."""
    records: list[LogRecord] = []
    for stored in await StreamNodes(context.store, context.paths(stream)).all_segments():
        async with context.ledgers.open(stored.segment.ledger_id) as ledger:
            async for entry_id, payload in ledger.read():
                records += decode_entry(payload, lssn=stored.segment.lssn, entry_id=entry_id)
    return records


async def node(context: StreamContext, path: str) -> tuple[bytes, int]:
    found = await context.store.get(path)
    return found.data, found.stat.writes


def test_the_life_of_a_stream_with_one_segment_is_as_the_format_tells_it() -> None:
    """Vector M of the format: what each node holds after each step, and how often it was written.

    Two nodes are written once more than by Apache's writer: opening claims the stream.
    """

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        paths = context.paths("s")
        async with open_stream_writer(context, "s", QUIET) as writer:
            assert await node(context, paths.max_txid) == (b"0", 1)
            assert await node(context, paths.segments) == (b"0", 2)
            assert await node(context, paths.allocation) == (b"", 2)
            assert await writer.append_many([b"hello", b"world!"], txids=[1001, 1002]) == [(1, 0, 0), (1, 0, 1)]
            assert await node(context, paths.allocation) == (b"", 4)
            assert await node(context, paths.segments) == (b"1", 3)
            (name,) = (await context.store.children(paths.segments)).names
            assert name == "inprogress_000000000000000001"
            data, _ = await node(context, paths.segment(name))
            ledger_id = int(data.split(b";")[1])
            assert data == b"5;%d;1001;1;0;0;-1" % ledger_id
        (name,) = (await context.store.children(paths.segments)).names
        assert name == "logrecs_000000000000000001"
        data, _ = await node(context, paths.segment(name))
        now = data.split(b";")[4]
        assert data == b"8589934597;%d;1001;1002;%s;1;0;1;0;0;0" % (ledger_id, now)
        assert await node(context, paths.segments) == (b"1", 4)
        assert await node(context, paths.max_txid) == (b"1002", 2)
        assert (await context.store.children(paths.lock)).names == ()
        async with context.ledgers.open(ledger_id, recover=False) as ledger:
            entries = [payload.hex() async for _, payload in ledger.read()]
        assert entries == [
            "01000000000000003300000033000000000001000000000000000003e90000000568656c6c6f"
            "000000000002000000000000000003ea00000006776f726c6421",
            "01000000000000001b0000001b000000000002000100000000000003ea00000007636f6e74726f6c",
        ]

    play(act)


def test_a_crashed_writers_segment_is_completed_by_the_next_one() -> None:
    """Vector M, step 4: the last place is that of the control record, and the next segment goes on behind."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        host, told = cluster.sim.host("doomed"), asyncio.Event()

        async def write() -> None:
            async with (
                cluster.context("doomed") as mine,
                open_stream_writer(mine, "s", replace(SETTINGS, commit_delay_s=0.0)) as writer,
            ):
                await writer.append_many([b"hello", b"world!"], txids=[1001, 1002])
                await asyncio.sleep(1)
                told.set()
                await asyncio.sleep(1000)

        host.spawn(write())
        await told.wait()
        await host.crash()
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            assert writer.last_txid == 1002
            assert await writer.append(b"next", txid=1002) == (2, 0, 0)
        first, second = (stored.segment for stored in await cluster.nodes(context, "s").all_segments())
        assert first.completion is not None
        assert second.completion is not None
        assert first.completion.last_dlsn == (1, 1, 0)
        assert (first.completion.record_count, first.completion.last_txid) == (2, 1002)
        assert (first.start_sequence_id, second.start_sequence_id) == (0, 2)

    play(act)


def test_records_of_many_callers_share_entries_and_keep_their_order() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", QUIET) as writer:
            dlsns = await asyncio.gather(*(writer.append(b"%d" % number) for number in range(500)))
            assert len(set(dlsns)) == 500
            assert len({dlsn.entry_id for dlsn in dlsns}) < 100
        users = [record for record in await stored_records(context) if not record.is_control]
        assert [(record.dlsn, record.payload) for record in users] == sorted(
            (dlsn, b"%d" % number) for number, dlsn in enumerate(dlsns)
        )
        assert [record.position for record in users] == list(range(1, 501))

    play(act)


def test_rolling_by_size_keeps_order_positions_and_sequence_ids() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        settings = replace(SETTINGS, roll_interval_s=0, roll_bytes=2000)
        written: list[tuple[DLSN, bytes]] = []
        async with open_stream_writer(context, "s", settings) as writer:
            for number in range(60):
                payloads = [b"%d/%d" % (number, each) for each in range(5)]
                written += zip(await writer.append_many(payloads), payloads, strict=True)
            assert writer.statistics().rolls >= 2
        users = [record for record in await stored_records(context) if not record.is_control]
        assert [(record.dlsn, record.payload) for record in users] == written
        start = 0
        for stored in await cluster.nodes(context, "s").all_segments():
            assert stored.segment.completion is not None
            assert stored.segment.start_sequence_id == start
            start += stored.segment.completion.record_count
        assert start == 300

    play(act)


def test_a_second_writer_takes_over_and_the_first_one_is_fenced() -> None:
    """Without the lock: fencing and versions alone must do it."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        unlocked = replace(SETTINGS, write_lock=False)
        async with cluster.context("other") as other, open_stream_writer(context, "s", unlocked) as first:
            await first.append(b"one")
            async with open_stream_writer(other, "s", unlocked) as second:
                await second.append(b"two")
                with pytest.raises(WriterFenced):
                    await first.append(b"late")
                with pytest.raises(WriterFenced):
                    await first.append(b"later")
                assert context.metrics.failed_records.value == 2, "also one that is refused since the writer is over"
                await second.append(b"three")
        users = [record.payload for record in await stored_records(context) if not record.is_control]
        assert users == [b"one", b"two", b"three"]

    play(act)


def test_a_writer_that_had_no_segment_cannot_begin_one_after_another_was_opened() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        unlocked = replace(SETTINGS, write_lock=False)
        async with (
            cluster.context("other") as other,
            open_stream_writer(context, "s", unlocked) as first,
            open_stream_writer(other, "s", unlocked) as second,
        ):
            with pytest.raises(WriterFenced):
                await first.append(b"late")
            await second.append(b"one")
        users = [record.payload for record in await stored_records(context) if not record.is_control]
        assert users == [b"one"]

    play(act)


def test_a_writer_that_had_no_segment_cannot_begin_one_after_another_wrote() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        unlocked = replace(SETTINGS, write_lock=False)
        async with cluster.context("other") as other, open_stream_writer(context, "s", unlocked) as first:
            async with open_stream_writer(other, "s", unlocked) as second:
                await second.append(b"two")
            with pytest.raises(WriterFenced):
                await first.append(b"late")
        assert await context.store.get(context.paths("s").allocation)
        ledgers = [ledger_id async for ledger_id in context.ledgers.scan()]
        segments = await cluster.nodes(context, "s").all_segments()
        assert ledgers == [stored.segment.ledger_id for stored in segments]  # That of the first one is deleted.

    play(act)


def test_only_one_client_at_a_time_holds_a_streams_lock() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with cluster.context("other") as other:
            async with open_stream_writer(context, "s", SETTINGS) as first:
                await first.append(b"one")
                with pytest.raises(StreamOwned) as refused:
                    async with open_stream_writer(other, "s", SETTINGS):
                        pass
                assert "client" in str(refused.value.facts["owner"])
            async with open_stream_writer(other, "s", SETTINGS) as second:
                await second.append(b"two")

    play(act)


def test_txids_never_decrease_and_are_the_time_by_default() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        clock = context.runtime.clock
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            before = clock.wall_ms()
            await writer.append(b"a")
            assert before <= writer.last_txid <= clock.wall_ms()
            ahead = clock.wall_ms() + 3600_000
            await writer.append(b"b", txid=ahead)
            with pytest.raises(TxidOutOfOrder):
                await writer.append(b"c", txid=ahead - 1)
            with pytest.raises(TxidOutOfOrder):
                await writer.append_many([b"c", b"d"], txids=[ahead + 2, ahead + 1])
            await writer.append(b"e")  # The clock is behind: the last txid it is.
            for bad in (-1, 2**63 - 1):
                with pytest.raises(TxidOutOfOrder):
                    await writer.append(b"f", txid=bad)
        users = [record for record in await stored_records(context) if not record.is_control]
        assert [record.txid for record in users][1:] == [ahead, ahead]
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            with pytest.raises(TxidOutOfOrder):
                await writer.append(b"g", txid=ahead - 1)
            await writer.append(b"h", txid=ahead)

    play(act)


def test_what_is_too_large_or_no_bytes_is_refused_before_anything_is_sent() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            with pytest.raises(RecordTooLarge):
                await writer.append(bytes(1024 * 1024))
            with pytest.raises(RecordTooLarge):
                await writer.append_set([bytes(600_000), bytes(600_000)])
            with pytest.raises(InvalidArgument):
                await writer.append("text")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                await writer.append_many(b"one record")  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                await writer.append_many([b"a", b"b"], txids=[1])
            assert await writer.append_many([]) == []
            largest = 1024 * 1024 - 8 * 1024 - 20
            assert await writer.append_many([bytes(largest), b""]) == [(1, 0, 0), (1, 1, 0)]
        with pytest.raises(HandleClosed):
            await writer.append(b"after")

    play(act)


def test_record_sets_take_a_slot_for_each_member() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", replace(QUIET, compression="lz4")) as writer:
            assert await writer.append(b"a") == (1, 0, 0)
            assert await writer.append_set([b"r0", b"rec1", b"r2"], compression="lz4") == [(1, 1, s) for s in range(3)]
            assert await writer.append(b"b") == (1, 2, 0)
        users = [record for record in await stored_records(context) if not record.is_control]
        assert [record.payload for record in users] == [b"a", b"r0", b"rec1", b"r2", b"b"]
        assert [record.position for record in users] == [1, 2, 3, 4, 5]

    play(act)


def test_a_sealed_stream_takes_nothing_more() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"last")
            await writer.seal()
            with pytest.raises(StreamSealed):
                await writer.append(b"more")
        with pytest.raises(StreamSealed):
            async with open_stream_writer(context, "s", SETTINGS):
                pass
        records = [record for record in await stored_records(context) if not record.is_control]
        assert [record.payload for record in records] == [b"last", b"endOfStream"]
        assert (await node(context, context.paths("s").max_txid))[0] == b"%d" % (2**63 - 1)

    play(act)


@pytest.mark.parametrize(
    "settings",
    [
        replace(QUIET, transmit="outstanding", buffer_bytes=300),
        replace(QUIET, transmit="periodic", flush_interval_s=0.2),
        replace(QUIET, transmit="immediate", in_flight_entries=1),
    ],
)
def test_the_policies_differ_in_when_entries_leave_and_not_in_what_is_stored(settings: StreamSettings) -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", settings) as writer:
            appends = [asyncio.create_task(writer.append(bytes(50))) for _ in range(10)]
            if settings.transmit == "outstanding":
                await asyncio.sleep(5)
                await writer.flush()
            dlsns = await asyncio.gather(*appends)
        users = [record for record in await stored_records(context) if not record.is_control]
        assert [record.dlsn for record in users] == sorted(dlsns)

    play(act)


def test_a_small_record_waits_under_the_outstanding_policy_until_it_is_flushed() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        settings = replace(QUIET, transmit="outstanding", buffer_bytes=300)
        async with open_stream_writer(context, "s", settings) as writer:
            small = asyncio.create_task(writer.append(bytes(100)))
            await asyncio.sleep(5)
            assert not small.done()
            await writer.append(bytes(300))  # More than 300 bytes are outstanding with it.
            await asyncio.sleep(0.1)
            assert small.done()
            small = asyncio.create_task(writer.append(bytes(100)))
            await asyncio.sleep(5)
            await writer.flush()
            await asyncio.sleep(0.1)
            assert small.done()

    play(act)


def test_a_control_record_follows_the_last_records_within_the_configured_time() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", replace(SETTINGS, commit_delay_s=0.5)) as writer:
            await writer.append(b"a")
            (stored,) = await cluster.nodes(context, "s").all_segments()
            async with context.ledgers.open(stored.segment.ledger_id, recover=False) as ledger:
                assert ledger.last_add_confirmed == -1
                await asyncio.sleep(0.6)
                assert await ledger.read_last_add_confirmed() == 0

    play(act)


def test_an_empty_segment_that_a_crash_left_is_completed_without_records() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        nodes = cluster.nodes(context, "s")
        await create_stream(context.store, nodes.paths, context.runtime.rng)
        guarded = await nodes.guarded(context.runtime.clock, timeout_s=5)
        segments = StreamSegments(context, guarded)
        await segments.recover(b"")
        _, _, resources = await segments.begin(7, SETTINGS)
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            assert await writer.append(b"a", txid=7) == (2, 0, 0)
        await resources.aclose()
        first, _ = (stored.segment for stored in await nodes.all_segments())
        assert first.completion is not None
        assert (first.completion.record_count, first.completion.last_dlsn) == (0, (1, -1, -1))

    play(act)


def test_slow_appends_are_told_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """When everything is slow, a log full of it makes it no faster.

    Method: five appends wait for bookies that cannot be reached for two seconds, and are acknowledged together.
    """

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"first")
            for bookie in cluster.bookies:
                cluster.sim.network.partition("client", bookie.host.name)
            slow = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(5)]
            await cluster.sim.host("client").clock.sleep(2.0)
            cluster.sim.network.heal()
            await asyncio.gather(*slow)

    with caplog.at_level("WARNING", "quire.stream"):
        play(act)
    told = [record for record in caplog.records if record.__dict__.get("event") == "append.slow"]
    assert [record.__dict__["facts"]["stream"] for record in told if record.name == "quire.stream"] == ["s"]


def test_truncation_hides_and_never_deletes() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        dlsns: list[DLSN] = []
        for _ in range(3):
            async with open_stream_writer(context, "s", SETTINGS) as writer:
                dlsns += await writer.append_many([b"a", b"b", b"c"])
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            assert await writer.truncate(dlsns[4]) == 2
            assert await writer.truncate(dlsns[4]) == 0
        states = [stored.segment.truncation for stored in await cluster.nodes(context, "s").all_segments()]
        assert states == [Truncation.TRUNCATED, Truncation.PARTIALLY_TRUNCATED, Truncation.ACTIVE]

    play(act)


def test_retention_deletes_old_segments_when_a_segment_is_rolled() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        settings = replace(SETTINGS, roll_interval_s=10, retention_s=25)
        async with open_stream_writer(context, "s", settings) as writer:
            for _ in range(20):
                await writer.append(b"a")
                await asyncio.sleep(4)
        lssns = [stored.segment.lssn for stored in await cluster.nodes(context, "s").all_segments()]
        assert lssns[0] > 1
        assert lssns == list(range(lssns[0], lssns[0] + len(lssns)))
        assert len(lssns) <= 5

    play(act)


def test_a_writer_goes_on_in_a_new_segment_after_its_bookies_were_away() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            first = await writer.append(b"a")
            for bookie in cluster.bookies:
                await bookie.crash(power_loss=False)
            with pytest.raises(QuireError):
                await writer.append(b"b")
            for bookie in cluster.bookies:
                await bookie.start()
            while True:
                try:
                    second = await writer.append(b"c")
                    break
                except QuireError:
                    await asyncio.sleep(1)
            assert first < second
        users = [record.payload for record in await stored_records(context) if not record.is_control]
        assert users in ([b"a", b"c"], [b"a", b"b", b"c"])

    play(act)


def test_a_stream_that_is_not_there_is_created_only_if_that_is_wanted() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        with pytest.raises(NoSuchStream):
            async with open_stream_writer(context, "s", replace(SETTINGS, create_if_missing=False)):
                pass
        async with open_stream_writer(context, "nested/s", SETTINGS) as writer:
            assert await writer.append(b"a") == (1, 0, 0)

    play(act)


def test_a_refused_record_does_not_block_those_that_wait_behind_it() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", replace(QUIET, window_records_max=1)) as writer:
            appends = [asyncio.create_task(writer.append(b"a", txid=txid)) for txid in (5, 1, 6, 7, 2, 8)]
            results = await asyncio.wait_for(asyncio.gather(*appends, return_exceptions=True), 30)
            assert await asyncio.wait_for(writer.append(b"z", txid=9), 30)
            assert any(isinstance(result, DLSN) for result in results)
            assert all(isinstance(result, DLSN | TxidOutOfOrder) for result in results)

    for seed in range(5):
        play(act, seed=seed)


def test_records_that_wait_for_room_are_not_overtaken() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", replace(QUIET, window_records_max=2)) as writer:
            started: list[bytes] = []
            places: dict[bytes, DLSN] = {}

            async def append(name: bytes) -> None:
                for number in range(20):
                    payload = b"%s%d" % (name, number)
                    started.append(payload)
                    places[payload] = await writer.append(payload)

            await asyncio.gather(*(append(name) for name in (b"a", b"b", b"c", b"d", b"e")))
            assert sorted(started, key=places.__getitem__) == started

    for seed in range(5):
        play(act, seed=seed)


@pytest.mark.parametrize("policy", ["immediate", "outstanding", "periodic"])
def test_closing_answers_everybody_and_leaves_nothing_in_progress(
    policy: Literal["immediate", "outstanding", "periodic"],
) -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        settings = replace(QUIET, transmit=policy, window_records_max=3, buffer_bytes=10_000)
        async with open_stream_writer(context, "s", settings) as writer:

            async def append(number: int) -> DLSN | None:
                await asyncio.sleep(number / 1000)
                try:
                    return await writer.append(b"%d" % number)
                except HandleClosed:
                    return None

            appends = [asyncio.create_task(append(number)) for number in range(30)]
            await asyncio.sleep(0.012)
            await writer.aclose()
        told = [place for place in await asyncio.wait_for(asyncio.gather(*appends), 30) if place is not None]
        users = [record.dlsn for record in await stored_records(context) if not record.is_control]
        assert sorted(told) == users
        (stored,) = await cluster.nodes(context, "s").all_segments()
        assert stored.segment.completion is not None

    for seed in range(5):
        play(act, seed=seed)


def test_a_flush_waits_for_all_even_if_the_last_append_was_cancelled() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            begun = asyncio.Event(), asyncio.Event()

            async def append(payload: bytes, begins: asyncio.Event) -> None:
                begins.set()  # The record is queued in the same step.
                await writer.append(payload)

            first, last = (asyncio.create_task(append(*each)) for each in zip((b"a", b"b"), begun, strict=True))
            for event in begun:
                await event.wait()
            last.cancel()
            await writer.flush()
            assert writer.statistics().records >= 1
            assert writer.statistics().waiting_records == 0
            await first

    for seed in range(5):
        play(act, seed=seed)


def test_closing_while_a_rolled_segment_cannot_be_completed_leaves_both_to_the_next_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A segment must not be completed before the one before it."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        real, is_away = GuardedNodes.complete, True

        async def complete(self: GuardedNodes, begun: StoredSegment, completed: Segment) -> StoredSegment:
            if is_away:
                raise MetadataUnavailable("out of reach")
            return await real(self, begun, completed)

        monkeypatch.setattr(GuardedNodes, "complete", complete)
        async with open_stream_writer(context, "s", replace(SETTINGS, roll_interval_s=0, roll_bytes=100)) as writer:
            for _ in range(6):
                await writer.append(bytes(50))
                await asyncio.sleep(0.01)
            closing = asyncio.create_task(writer.aclose())
            await asyncio.sleep(1.2)
            is_away = False
            await closing
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"next")
        users = [record for record in await stored_records(context) if not record.is_control]
        assert len(users) == 7
        assert all(stored.segment.completion for stored in await cluster.nodes(context, "s").all_segments())

    play(act)


def test_a_record_that_waits_for_others_does_not_keep_acknowledged_ones_invisible() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        settings = replace(SETTINGS, transmit="outstanding", buffer_bytes=1024)
        async with (
            open_stream_writer(context, "s", settings) as writer,
            open_stream_reader(context, "s", SETTINGS) as reader,
        ):
            await writer.append(bytes(2000))
            assert await reader.read_many(1, timeout_s=60)
            large = asyncio.create_task(writer.append(bytes(2000)))
            await asyncio.sleep(0)
            small = asyncio.create_task(writer.append(b"waits"))
            await large
            assert await reader.read_many(1, timeout_s=60)
            await writer.flush()
            await small

    for seed in range(5):
        play(act, seed=seed)


def test_sealing_ends_within_its_deadline_while_the_metadata_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the stream is durable by then, and the next one to open the stream finds it."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async def complete(self: GuardedNodes, begun: StoredSegment, completed: Segment) -> StoredSegment:
            raise MetadataUnavailable("out of reach")

        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"last")
            with monkeypatch.context() as patch:
                patch.setattr(GuardedNodes, "complete", complete)
                await asyncio.wait_for(writer.seal(), 2 * SETTINGS.call_timeout_s)
        async with open_stream_reader(context, "s", SETTINGS) as reader:
            assert [record.payload async for record in reader] == [b"last"]
        with pytest.raises(StreamSealed):
            async with open_stream_writer(context, "s", SETTINGS):
                pass

    play(act)


def test_a_consumer_that_has_read_everything_misses_nothing_by_truncation() -> None:
    """A recovered segment says that it ends with a control record, which is behind all that a consumer saw."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        host, told = cluster.sim.host("doomed"), asyncio.Event()

        async def write() -> None:
            async with cluster.context("doomed") as mine, open_stream_writer(mine, "s", SETTINGS) as writer:
                await writer.append_many([b"a", b"b"])
                await asyncio.sleep(1)
                told.set()
                await asyncio.sleep(1000)

        host.spawn(write())
        await told.wait()
        async with open_stream_reader(context, "s", SETTINGS, subscription="c") as reader:
            assert len(await reader.read_many(1)) == 1
            half_way = reader.position
            assert len(await reader.read_many(1)) == 1
            await reader.commit()
        await host.crash()
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.truncate(await writer.append(b"c"))
        async with open_stream_reader(context, "s", SETTINGS, subscription="c") as reader:
            assert [record.payload for record in await reader.read_many(1)] == [b"c"]
        with pytest.raises(PositionTruncated):
            async with open_stream_reader(context, "s", SETTINGS, start=half_way) as reader:
                await reader.read_many(1)

    play(act)
