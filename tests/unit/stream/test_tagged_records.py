"""Records with a tag beside them, and control records of a proxy's own: where they are, and that readers skip them."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.streams.cluster import SETTINGS, StreamCluster
from tests.unit.stream.test_writer import QUIET, play, stored_records

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, RECORDS_BYTES_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.errors import AppendOutcomeUnknown, QuireError, RecordTooLarge, TxidOutOfOrder
from quire.stream.context import StreamContext
from quire.stream.dlsn_runs import PlacedRun
from quire.stream.ownership import open_stream_writer
from quire.stream.reader import open_stream_reader
from quire.stream.record_queue import Part, Pushed, RecordQueue, TrackedCall
from quire.stream.writer import StreamWriter
from quire.types import DLSN, EntryId, Lssn, SlotId


class Marked:
    """Says which records it stands before."""

    def __init__(self, name: bytes = b"t") -> None:
        self._name = name

    size_bytes = 12

    def payload(self, begin: int, end: int) -> bytes:
        return b"%s %04d-%04d" % (self._name, begin, end) + b" "


class Outcomes:
    """Awaits what callbacks are told."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[TrackedCall] = asyncio.Queue()

    def on_settled(self, call: TrackedCall) -> None:
        self._told.put_nowait(call)

    async def next(self) -> TrackedCall:
        return await self._told.get()


def places(call: TrackedCall) -> list[DLSN]:
    return [
        DLSN(lssn, entry_id, SlotId(slot + number))
        for lssn, entry_id, slot, records in call.runs
        for number in range(records)
    ]


async def read(context: StreamContext, count: int) -> list[tuple[DLSN, bytes]]:
    found: list[tuple[DLSN, bytes]] = []
    async with open_stream_reader(context, "s", SETTINGS) as reader:
        while len(found) < count:
            found += [(record.dlsn, record.payload) for record in await reader.read_many(count - len(found))]
    return found


def test_a_tag_stands_before_its_records_in_each_entry_and_takes_a_slot() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        outcomes = Outcomes()
        payloads = [b"%d" % number * 10 for number in range(10)]
        async with open_stream_writer(context, "s", replace(QUIET, entry_bytes=150)) as writer:
            plain = await writer.append_many([b"before"], txids=[5])
            writer.append_tracked(payloads, outcomes.on_settled, txids=range(10, 20), tag=Marked())
            call = await outcomes.next()
            assert len(call.runs) > 2
            assert {run.first_slot for run in call.runs} == {1}, "the tag has the slot before"
            after = await writer.append_many([b"after"], txids=[30])
        visible = [b"before", *payloads, b"after"]
        assert await read(context, 12) == list(zip([*plain, *places(call), *after], visible, strict=True))
        records = await stored_records(context)
        tags = [record for record in records if record.payload.startswith(b"t ")]
        begin = 0
        for tag, run in zip(tags, call.runs, strict=True):
            assert tag.is_control
            assert tag.payload == Marked().payload(begin, begin + run.records)
            assert tag.dlsn.next_slot() == (run.lssn, run.entry_id, run.first_slot)
            assert tag.txid == 10 + begin, "that of the record behind it"
            assert tag.position == 1 + begin, "that of the record before it"
            begin += run.records
        assert [record.position for record in records if not record.is_control] == list(range(1, 13))
        (segment,) = (stored.segment for stored in await cluster.nodes(context, "s").all_segments())
        assert segment.completion is not None
        assert (segment.completion.record_count, segment.completion.last_dlsn) == (12, after[0])

    play(act)


def test_tagged_and_plain_calls_and_sets_share_entries() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        outcomes = Outcomes()
        async with open_stream_writer(context, "s", QUIET) as writer:
            writer.append_tracked([b"a", b"b"], outcomes.on_settled)
            writer.append_tracked([b"c"], outcomes.on_settled, tag=Marked())
            writer.append_control(b"only control", outcomes.on_settled)
            writer.append_tracked([b"d", b"e"], outcomes.on_settled)
            writer.append_tracked([encode_record_set([b"f", b"g"])], outcomes.on_settled, members=2, tag=Marked())
            calls = [await outcomes.next() for _ in range(5)]
        assert [call.runs for call in calls] == [
            [PlacedRun(Lssn(1), EntryId(0), slot, records)]
            for slot, records in ((0, 2), (3, 1), (4, 1), (5, 2), (8, 2))
        ]
        del calls[2]
        found = await read(context, 7)
        assert [payload for _, payload in found] == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
        assert [dlsn for dlsn, _ in found] == [place for call in calls for place in places(call)]

    for seed in range(4):
        play(act, seed=seed)


def test_an_entry_of_control_records_only_ends_a_segment_where_its_records_end() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        outcomes = Outcomes()
        async with open_stream_writer(context, "s", QUIET) as writer:
            (dlsn,) = await writer.append_many([b"a"], txids=[7])
            for number in range(3):
                writer.append_control(b"%d" % number, outcomes.on_settled)
                assert (await outcomes.next()).error is None
            assert writer.last_txid == 7
        (segment,) = (stored.segment for stored in await cluster.nodes(context, "s").all_segments())
        assert segment.completion is not None
        assert (segment.completion.last_dlsn, segment.completion.last_txid) == (dlsn, 7)
        async with open_stream_writer(context, "s", QUIET) as writer:
            writer.append_control(b"first of a segment", outcomes.on_settled)
            assert (await outcomes.next()).runs[0].lssn == 2
            assert writer.epoch == 2

    play(act)


def test_the_largest_record_fits_beside_its_tag_and_a_whole_call_is_one_entry_or_refused() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        outcomes = Outcomes()
        async with open_stream_writer(context, "s", QUIET) as writer:
            writer.append_tracked([bytes(PAYLOAD_BYTES_MAX)], outcomes.on_settled, tag=Marked())
            assert (await outcomes.next()).error is None
            left = RECORDS_BYTES_MAX - 2 * RECORD_HEADER_BYTES - 12
            writer.append_tracked([bytes(left // 2)] * 3, outcomes.on_settled, tag=Marked())
            assert len((await outcomes.next()).runs) == 3
            half = (RECORDS_BYTES_MAX - 3 * RECORD_HEADER_BYTES - Marked.size_bytes) // 2
            writer.append_tracked([bytes(half)] * 2, outcomes.on_settled, tag=Marked(), is_whole=True)
            assert len((await outcomes.next()).runs) == 1
            with pytest.raises(RecordTooLarge):
                writer.append_tracked([bytes(half + 1)] * 2, outcomes.on_settled, tag=Marked(), is_whole=True)
            with pytest.raises(RecordTooLarge):
                writer.append_tracked([bytes(PAYLOAD_BYTES_MAX + 1)], outcomes.on_settled)
            txid = writer.last_txid
            with pytest.raises(TxidOutOfOrder):
                writer.append_tracked([b"x"], outcomes.on_settled, txids=[txid - 1])

    play(act)


def test_giving_up_tells_everybody_at_once() -> None:
    """What was sent is of unknown outcome, the rest was never sent; and the stream is free soon."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        told: list[QuireError | None] = []
        async with open_stream_writer(context, "s", replace(QUIET, in_flight_entries=1)) as writer:
            await writer.append(b"a")
            for bookie in cluster.bookies:
                cluster.sim.network.partition("client", bookie.host.name)
            writer.append_tracked([b"b"], lambda call: told.append(call.error))
            await cluster.sim.host("client").clock.sleep(0.1)
            writer.append_tracked([b"c"], lambda call: told.append(call.error))
            await cluster.sim.host("client").clock.sleep(0.1)
            assert not told
            begun_s = cluster.sim.loop.time()
            writer.give_up("enough")
            assert len(told) == 2
            assert sum(isinstance(error, AppendOutcomeUnknown) for error in told) == 1
            assert writer.problem is not None
        assert cluster.sim.loop.time() - begun_s < 1.0
        cluster.sim.network.heal()
        async with open_stream_writer(context, "s", SETTINGS) as following:
            assert isinstance(following, StreamWriter)
            await following.append(b"d")

    play(act)


def stored_bytes(call: Pushed, begin: int, end: int) -> int:
    return sum(RECORD_HEADER_BYTES + len(payload) for payload in call.payloads[begin:end])


@given(st.data())
def test_entries_are_filled_as_far_as_they_go_and_never_beyond(data: st.DataObject) -> None:
    """With calls of all kinds: every record once, in order, whole calls whole, and no entry larger than it may be."""
    queue, pushed = RecordQueue(), list[Pushed]()
    for _ in range(data.draw(st.integers(1, 12))):
        records = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=6))
        if data.draw(st.booleans()):  # Records of one size are not added up.
            records = records[:1] * len(records)
        call = TrackedCall(
            [bytes(size) for size in records],
            [0] * len(records),
            lambda _: None,
            tag=data.draw(st.sampled_from([None, Marked()])),
            is_whole=data.draw(st.booleans()),
        )
        queue.push(call)
        pushed.append(call)
    parts = list[Part]()
    while queue.records:
        before = (queue.records, queue.bytes)
        taken, count, size_bytes = queue.take(150)
        assert (queue.records, queue.bytes) == (before[0] - count, before[1] - size_bytes)
        assert size_bytes == sum(stored_bytes(call, begin, end) for call, begin, end in taken)
        used = size_bytes + sum(part.call.tag_bytes for part in taken)
        assert used <= 150 or len(taken) == 1
        assert used <= 150 or taken[0].call.is_whole or taken[0].end - taken[0].begin == 1
        parts += taken
        following = next((call for call in pushed if call.sent < len(call.payloads)), None)
        if following is not None:
            end = len(following.payloads) if following.is_whole else following.sent + 1
            tag_bytes = 0 if taken[-1].call is following else following.tag_bytes
            assert used + tag_bytes + stored_bytes(following, following.sent, end) > 150
    for each_call in pushed:
        own = [(begin, end) for each, begin, end in parts if each is each_call]
        assert [number for begin, end in own for number in range(begin, end)] == list(range(len(each_call.payloads)))
        assert not each_call.is_whole or len(own) == 1
    assert [part.call for part in parts] == sorted((part.call for part in parts), key=pushed.index)


def test_a_call_that_failed_is_told_once() -> None:
    told: list[TrackedCall] = []
    call = TrackedCall([b"a", b"b"], [1, 1], told.append)
    call.on_acknowledged(Lssn(1), EntryId(0), 0, 1)
    call.fail(AppendOutcomeUnknown("broke off"))
    call.fail(AppendOutcomeUnknown("again"))
    call.on_acknowledged(Lssn(1), EntryId(1), 0, 1)
    assert told == [call]
    assert isinstance(call.error, AppendOutcomeUnknown)
    done: list[TrackedCall] = []
    other = TrackedCall([encode_record_set([b"a", b"b", b"c"])], [1], done.append, members=3)
    other.on_acknowledged(Lssn(1), EntryId(0), 2, 1)
    other.fail(AppendOutcomeUnknown("too late"))
    assert done == [other]
    assert (other.error, other.runs) == (None, [PlacedRun(Lssn(1), EntryId(0), 2, 3)])
