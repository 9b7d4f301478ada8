"""Completed segments without records: Java takes them wherever they stand, and its readers never lose anything by them.

That is what our recovery makes of a segment to which nobody wrote. Java's own deletes it, and the next writer takes its
LSSN again; the last test shows what a reader that was waiting in it misses then.
"""

import pytest

from quire.codec.stream.entries import encode_entry
from quire.codec.stream.records import encode_control
from quire.codec.stream_metadata.segment import Completion, Segment
from quire.types import INITIAL_DLSN, Lssn
from tests.interop.ensembles import kinds
from tests.interop.ledger_client import Payloads
from tests.interop.peer import JavaError
from tests.interop.raw_stream import COMPLETED_AT_MS, PASSWORD, RawStream, RawStreams, check_segments, place
from tests.interop.stream_facts import JavaRecord
from tests.interop.stream_handles import JavaTail
from tests.interop.stream_peer import PROMPT, NamespaceSite, OpenNamespace

PAYLOADS = Payloads("around nothing")
FULL = 3  # Records of a segment that has some.

# True stands for a segment with records, False for one without.
PLACES = {
    "only": [False],
    "first": [False, True, True],
    "middle": [True, False, True],
    "last": [True, True, False],
    "two in a row": [True, False, False, True],
}

every_place = pytest.mark.parametrize("order", list(PLACES.values()), ids=list(PLACES))
with_and_without_entries = pytest.mark.parametrize("entries", [0, 1], ids=["no entry", "a control record"])


def txids(records: list[JavaRecord]) -> list[int]:
    """After a look at the payloads, and whether the sequence ids have no gaps."""
    assert all(record.payload == PAYLOADS[record.txid] for record in records)
    assert [record.sequence_id - records[0].sequence_id for record in records] == [*range(len(records))]
    return [record.txid for record in records]


async def lay_out(ours: RawStream, order: list[bool], *, entries: int) -> int:
    """Segments in this order, the empty ones with so many entries. How many records there are: txids count from 1."""
    written = 0
    for lssn, is_full in enumerate(order, start=1):
        if is_full:
            await ours.add_full(lssn, PAYLOADS, first_txid=written + 1, count=FULL, start_sequence_id=written)
            written += FULL
        else:
            control = encode_entry([encode_control(txid=written + 1, position=0)])
            begun = Segment.begun(Lssn(lssn), await ours.ledger([control] * entries), written + 1)
            await ours.add(completed_empty(begun, start_sequence_id=written))
    return written


def completed_empty(begun: Segment, *, start_sequence_id: int) -> Segment:
    completion = Completion(begun.first_txid, COMPLETED_AT_MS, 0, place(begun.lssn, -1, -1))
    return begun.completed(completion, start_sequence_id=start_sequence_id)


@kinds("quire")
@every_place
@with_and_without_entries
async def test_java_reads_and_writes_around_empty_segments(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, order: list[bool], entries: int
) -> None:
    ours, java = await raw.create("orders"), (await open_namespace(**PROMPT)).stream("orders")
    count = await lay_out(ours, order, entries=entries)
    expected = [*range(1, count + 1)]
    await check_segments(ours, await java.segments())
    assert await java.count() == count
    if expected:
        assert (await java.first_txid(), await java.last_txid()) == (1, count)
        assert not await java.has_end()
    else:
        with pytest.raises(JavaError, match="LogEmptyException"):
            await java.last_dlsn()
    for start in (INITIAL_DLSN, 0, 1):
        assert txids((await java.read_sync(start)).records) == txids(await java.read_all(start)) == expected
    for txid in expected:
        assert txids(await java.read_all(txid)) == expected[txid - 1 :]
    for lssn in range(1, len(order) + 1):
        assert txids(await java.read_all(place(lssn, 0, 0))) == expected[sum(order[: lssn - 1]) * FULL :]

    async with java.tail() as tail, java.writer() as writer:
        places = await writer.write(PAYLOADS, 2, first_txid=count + 1)
        assert {dlsn.lssn for dlsn in places} == {len(order) + 1}
        assert txids(await tail.wait_records(count + 2)) == [*range(1, count + 3)]
    assert (await check_segments(ours, await java.segments()))[-1].start_sequence_id == count


@kinds("quire")
@every_place
async def test_java_truncates_purges_and_deletes_empty_segments(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, order: list[bool]
) -> None:
    """Truncation at the very beginning of an empty segment takes it along already: its last place is before that."""
    opened = await open_namespace(**PROMPT)
    ours, java = await raw.create("orders"), opened.stream("orders")
    count = await lay_out(ours, order, entries=0)
    async with java.writer() as writer:
        await writer.write(PAYLOADS, 2, first_txid=count + 1)  # A segment that stays.
        for lssn, is_full in enumerate(order, start=1):
            await writer.truncate(place(lssn, 0, 0))
            hidden = lssn - is_full
            stored = await check_segments(ours, await java.segments())
            assert [segment.is_truncated for segment in stored] == [at < hidden for at in range(len(order) + 1)]
            if is_full:
                await writer.truncate(place(lssn, 1, 0))
                stored = await check_segments(ours, await java.segments())
                assert stored[lssn - 1].is_partially_truncated
            before = sum(order[:lssn]) * FULL - 2 * is_full  # Of a full segment, one record is hidden now.
            assert txids(await java.read_all()) == [*range(before + 1, count + 3)]
        await writer.truncate(place(len(order) + 1, 0, 0))
    assert txids(await java.read_all()) == [count + 1, count + 2]
    ledgers = [segment.ledger_id for segment in (await ours.segments()).values()]
    await java.purge(count + 2)
    assert [segment.lssn for segment in (await ours.segments()).values()] == [len(order) + 1]
    assert txids(await java.read_all()) == [count + 1, count + 2]
    await opened.delete("orders")
    left = [ledger async for ledger in raw.ledgers.scan()]
    assert [ledger for ledger in ledgers if ledger in left] == []


def check_given_up(tail: JavaTail) -> None:
    """A reader of Java's was told that there is no such entry, just between the fence and the seal of an empty ledger.

    From the fence on bookies know the ledger and have nothing to say of it. Whoever recovers it, the reader fails then.
    """
    assert tail.error == "BKTransmitException"
    assert "-13" in (tail.message or "")


@kinds("apache", "quire")
@pytest.mark.parametrize("full", [0, 1], ids=["alone", "after records"])
@with_and_without_entries
async def test_a_reader_that_waits_in_a_segment_goes_on_when_it_is_completed_empty(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams, full: int, entries: int
) -> None:
    """It may give up instead, though only if there was no entry, and never without a word."""
    ours, java = await raw.create("orders"), (await open_namespace(**PROMPT)).stream("orders")
    count = await lay_out(ours, [True] * full, entries=0)
    control = encode_entry([encode_control(txid=count + 1, position=0)])
    begun = Segment.begun(Lssn(full + 1), await ours.open_ledger([control] * entries), count + 1)
    await ours.add(begun)
    async with java.tail() as tail:
        assert txids(await tail.wait_records(count)) == [*range(1, count + 1)]
        await tail.wait_in(begun.ledger_id)
        await raw.ledgers.recover(begun.ledger_id, password=PASSWORD)
        await ours.complete(begun, completed_empty(begun, start_sequence_id=count))
        async with java.writer() as writer:
            places = await writer.write(PAYLOADS, 2, first_txid=count + 1)
            assert {place.lssn for place in places} == {begun.lssn + 1}
            try:
                await tail.wait_records(count + 2)
            except AssertionError:
                assert entries == 0
                check_given_up(tail)
            found = txids(tail.records)
            assert found == [*range(1, len(found) + 1)]


@kinds("apache", "quire")
async def test_a_reader_that_waits_in_a_segment_misses_records_when_java_recovers_it(
    namespace: NamespaceSite, open_namespace: OpenNamespace, raw: RawStreams
) -> None:
    """The reason why we do not do as Java does. Should this fail one day, Apache has found a remedy.

    Java seals the empty ledger before it deletes it. So the reader finds the end of the segment, and has read it; that
    another one comes with the same LSSN is more than it can know. What is in that, it never delivers.
    """
    ours, java = await raw.create("orders"), (await open_namespace(**PROMPT)).stream("orders")
    count = await lay_out(ours, [True], entries=0)
    begun = Segment.begun(Lssn(2), await ours.open_ledger([]), count + 1)
    await ours.add(begun)
    async with java.tail() as tail:
        await tail.wait_records(count)
        await tail.wait_in(begun.ledger_id)
        async with java.writer() as writer:
            places = await writer.write(PAYLOADS, 2, first_txid=count + 1)
            assert {place.lssn for place in places} == {begun.lssn}
            try:
                await tail.wait_in(None)
            except AssertionError:
                check_given_up(tail)
                return
            await writer.roll(count + 2)
            await writer.write(PAYLOADS, 2, first_txid=count + 3)
            found = await tail.wait_records(count + 2)
            assert [record.txid for record in found] == [*range(1, count + 1), count + 3, count + 4]
            assert tail.error is None
    assert txids(await java.read_all()) == [*range(1, count + 5)], "whoever begins now misses nothing"
