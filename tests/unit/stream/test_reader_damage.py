"""Entries that cannot be read: told by their place, after all records before them; skipped only on demand."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from struct import pack

import pytest
from tests.support.streams.cluster import SETTINGS
from tests.support.streams.reading import ReaderWorld, on_stream, take

from quire.codec.digest import digest_for, master_key
from quire.codec.entry import EntryCodec
from quire.codec.stream.compression import Compression, compressed
from quire.codec.stream.entries import encode_entry
from quire.codec.stream.limits import EXPANDED_BYTES_MAX
from quire.codec.stream.record_sets import encode_record_set
from quire.codec.stream.records import RECORD_SET, LogRecord, encode_record, encode_records
from quire.codec.wire import v2
from quire.errors import DamagedEntry
from quire.rpc import BookieChannel
from quire.stream.reader import StreamReader
from quire.stream.start import Txid
from quire.testing import SimBookie
from quire.types import DLSN, DigestType, EntryId, LedgerId, Lssn, SlotId

WHOLE = encode_entry([encode_records([b"a", b"b", b"c"], [5, 5, 5], position=1)])
ZEROS = bytes(8 << 20)  # Very small once they are compressed.


def in_envelope(records: bytes) -> bytes:
    stored = compressed(records, Compression.LZ4)
    return pack(">BIII", 1, 1, len(records), len(stored)) + stored


def of_sets(*sets: bytes) -> bytes:
    return encode_entry([encode_record(each, txid=5, position=1, flags=RECORD_SET) for each in sets])


SET_OF_MILLIONS = pack(">IIII", 0x1001, len(ZEROS) // 4, len(ZEROS), len(compressed(ZEROS, Compression.LZ4)))
SET_OF_MUCH = encode_record_set([bytes(1_000_000)], compression=Compression.LZ4)
TAIL_CUT = encode_entry([encode_records([b"a", b"b", b"c"], [5, 5, 5], position=1)[:-1]])
DAMAGED = {
    "nothing at all": (b"", 0),
    "too short for an envelope": (WHOLE[:5], 0),
    "another version": (b"\x02" + WHOLE[1:], 0),
    "an unknown codec": (WHOLE[:4] + b"\x03" + WHOLE[5:], 0),
    "less than its length": (WHOLE[:-1], 0),
    "a record that is cut short": (TAIL_CUT, 2),
    "an envelope of far more than an entry": (in_envelope(ZEROS), 0),
    "a record set of millions": (of_sets(SET_OF_MILLIONS + compressed(ZEROS, Compression.LZ4)), 0),
    "many record sets of much": (of_sets(*[SET_OF_MUCH] * 70), EXPANDED_BYTES_MAX // 1_000_068),
}
SKIPPING = replace(SETTINGS, skip_damaged=True)


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


@pytest.mark.parametrize("what", DAMAGED)
def test_an_entry_that_makes_no_sense_is_told_by_its_place_and_skipped_on_demand(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, slot = DAMAGED[what]

    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        await segment.append(b"before", b"before")
        await segment.add_bytes(data)
        await segment.append(b"behind")
        await segment.complete()
        async with world.open() as reader:
            got = [batch async for batch in _until_error(reader)]
            assert [record for batch in got for record in batch] == world.stream.records[:2]
            for _ in range(2):
                with pytest.raises(DamagedEntry) as damage:
                    await anext(reader)
            facts = damage.value.facts
            assert (facts["lssn"], facts["entry_id"], facts["slot_id"]) == (1, 1, slot)
            assert reader.position == place(1, 0, 2)
        caplog.clear()
        async with world.open(settings=SKIPPING) as reader:
            assert await take(reader, 3) == world.stream.records
            assert reader.statistics().damaged_entries == 1
        (event,) = [record for record in caplog.records if getattr(record, "event", "") == "stream.entry_skipped"]
        assert (event.facts["lssn"], event.facts["entry_id"]) == (1, 1)  # type: ignore[attr-defined]

    caplog.set_level(logging.WARNING, logger="quire")
    on_stream(check, seeds=1)


async def _until_error(reader: StreamReader) -> AsyncIterator[list[LogRecord]]:
    """The batches before a damaged entry."""
    try:
        async for batch in reader.batches():
            yield batch
    except DamagedEntry:
        return


def test_a_search_tells_of_damage_or_passes_over_it() -> None:
    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        for txid in range(1, 8):
            if txid == 4:
                await segment.add_bytes(b"nonsense")
            await segment.append(b"%d" % txid, txid=txid)
        await segment.complete()
        with pytest.raises(DamagedEntry):
            await world.read(1, start=Txid(4))
        for txid in range(1, 8):
            (record,) = await world.read(1, start=Txid(txid), settings=SKIPPING)
            assert record.txid == txid

    on_stream(check, seeds=1)


async def unchecked(bookie: SimBookie) -> None:
    """Let a bookie take entries without looking at their digests, so that damaged copies can be planted."""
    await bookie.stop()
    bookie.settings = replace(bookie.settings, storage=replace(bookie.settings.storage, check_digests=False))
    await bookie.start()


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_that_fail_their_digest_are_read_elsewhere(copies: int, caplog: pytest.LogCaptureFixture) -> None:
    """Each bookie with a bad copy is told, with the entry's place in the stream. Of an entry that is damaged on all
    three bookies nothing is left: that is told, or skipped.
    """

    async def check(world: ReaderWorld) -> None:
        segment = await world.stream.begin()
        for number in range(5):
            await segment.append(b"%d" % number)
        await segment.complete()
        codec = EntryCodec(segment.segment.ledger_id, digest_for(DigestType.CRC32, b""))
        payload = b"not what was written"
        body = codec.prefix(EntryId(2), payload, lac=EntryId(1), length=0) + payload[:-1] + b"!"
        readers = world.context.ledgers
        readers.settings = replace(readers.settings, batch_reads=False)  # In the order of places.
        places = (await readers.ledgers_metadata.read(segment.segment.ledger_id)).metadata.fragments[0].bookies
        bookies = {bookie.host.name: bookie for bookie in world.cluster.bookies}
        asked = [*places[2:], *places[:2]]
        for name in asked[:copies]:
            await unchecked(bookies[name])
            await plant(world, bookies[name], segment.segment.ledger_id, 2, body)
        caplog.clear()
        if copies < 3:
            for _ in range(2):
                assert await world.read(5) == world.stream.records
        else:
            with pytest.raises(DamagedEntry):
                await world.read(5)
        told = [record.facts for record in caplog.records if "ledger.damaged_copy" in record.message]  # type: ignore[attr-defined]
        assert [facts["bookie"] for facts in told] == asked[:copies], "each once"
        for facts in told:
            assert (facts["stream"], facts["lssn"], facts["entry_id"]) == (world.stream.name, 1, 2)
            assert facts["ledger_id"] == segment.segment.ledger_id
            assert facts["error"] == f"entry 2 of ledger {segment.segment.ledger_id} does not match its digest"
        if copies < 3:
            return
        async with world.open() as reader:
            assert await take(reader, 2) == world.stream.records[:2]
            with pytest.raises(DamagedEntry) as damage:
                await anext(reader)
            assert (damage.value.facts["lssn"], damage.value.facts["entry_id"]) == (1, 2)
        async with world.open(settings=SKIPPING) as reader:
            assert await take(reader, 4) == world.stream.records[:2] + world.stream.records[3:]
            assert reader.statistics().damaged_entries == 1

    caplog.set_level(logging.WARNING, logger="quire")
    on_stream(check, seeds=1)


async def plant(world: ReaderWorld, bookie: SimBookie, ledger_id: LedgerId, entry_id: int, body: bytes) -> None:
    """Store bytes as an entry on one bookie, whatever they are."""
    channel = await BookieChannel.connect(world.sim.host("tester").runtime, bookie.host.name, bookie.port)
    async with channel:
        sink = _Sink()
        prefix = v2.add_request_prefix(master_key(b""), entry_bytes=len(body), flags=v2.RECOVERY_ADD)
        channel.send_adds(ledger_id, [prefix + body], (EntryId(entry_id),), sink)
        await sink.answered.wait()
        assert (await channel.read(ledger_id, EntryId(entry_id))).body == body


class _Sink:
    def __init__(self) -> None:
        self.answered = asyncio.Event()

    def on_add_answers(self, *answers: object) -> None:
        self.answered.set()

    def on_add_lost(self, *lost: object) -> None:
        raise AssertionError("the bookie did not take the entry")
