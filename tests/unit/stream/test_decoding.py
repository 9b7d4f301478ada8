"""Records out of runs of entries: only those that an application sees, from where it began."""

from quire.codec.entry import Entry
from quire.codec.stream.entries import encode_entry
from quire.codec.stream.records import LogRecord, encode_control, encode_end_of_stream, encode_record
from quire.codec.stream_metadata.segment import Segment
from quire.errors import DamagedEntry
from quire.stream.decoding import Decoder
from quire.stream.entry_source import Run
from quire.types import DLSN, INITIAL_DLSN, EntryId, LedgerId, Lssn, SlotId

SEGMENT = Segment.begun(Lssn(1), LedgerId(1), 0)


def plain(payload: bytes, txid: int = 1) -> bytes:
    return encode_record(payload, txid=txid, position=1)


def a_run(*entries: bytes, first: int = 0) -> Run:
    made = [
        Entry(LedgerId(1), EntryId(number), EntryId(number), 0, data)
        for number, data in enumerate(entries, start=first)
    ]
    after = DLSN(Lssn(1), EntryId(first + len(entries)), SlotId(0))
    return Run(SEGMENT.lssn, SEGMENT.is_enveloped, made, sum(map(len, entries)), after)


def decoder(*, start: DLSN = INITIAL_DLSN, txid_min: int | None = None, skips: bool = False) -> Decoder:
    return Decoder(start=start, txid_min=txid_min, expand_sets=True, on_damage=lambda *_: skips)


def payloads(records: list[LogRecord]) -> list[bytes]:
    return [record.payload for record in records]


def test_control_records_are_left_out_and_keep_their_slots() -> None:
    entry = encode_entry([plain(b"a"), encode_control(txid=1, position=1), plain(b"b")])
    records = decoder().records(a_run(entry, encode_entry([encode_control(txid=1, position=1)])))
    assert [(record.payload, record.dlsn.slot_id) for record in records] == [(b"a", 0), (b"b", 2)]


def test_nothing_comes_behind_the_end_of_the_stream() -> None:
    decoding = decoder()
    entry = encode_entry([plain(b"a"), encode_end_of_stream(position=1), plain(b"behind it")])
    assert payloads(decoding.records(a_run(encode_entry([plain(b"before")]), entry, encode_entry([plain(b"c")])))) == [
        b"before",
        b"a",
    ]
    assert decoding.end_of_stream == DLSN(Lssn(1), EntryId(1), SlotId(1))


def test_nothing_before_the_start_comes_and_everything_behind_it() -> None:
    entries = [encode_entry([plain(b"%d" % number), plain(b"%d'" % number)]) for number in range(4)]
    decoding = decoder(start=DLSN(Lssn(1), EntryId(1), SlotId(1)))
    assert decoding.records(a_run(entries[0])) == []
    assert payloads(decoding.records(a_run(*entries[1:3], first=1))) == [b"1'", b"2", b"2'"]
    assert payloads(decoding.records(a_run(entries[3], first=3))) == [b"3", b"3'"]


def test_lower_txids_are_left_out_until_the_first_that_is_not() -> None:
    decoding = decoder(txid_min=5)
    assert decoding.records(a_run(encode_entry([plain(b"a", 4)]))) == []
    entry = encode_entry([plain(b"b", 4), plain(b"c", 5), plain(b"d", 6)])
    assert payloads(decoding.records(a_run(entry, first=1))) == [b"c", b"d"]
    assert payloads(decoding.records(a_run(encode_entry([plain(b"e", 1)]), first=2))) == [b"e"], "not looked at again"


def test_damage_ends_a_run_or_is_left_out() -> None:
    run = a_run(encode_entry([plain(b"a")]), b"nonsense", encode_entry([plain(b"c")]))
    assert payloads(decoder().records(run)) == [b"a"]
    assert payloads(decoder(skips=True).records(run)) == [b"a", b"c"]
    told: list[tuple[DLSN, DamagedEntry]] = []

    def on_damage(place: DLSN, error: DamagedEntry) -> bool:
        told.append((place, error))
        return False

    Decoder(start=INITIAL_DLSN, txid_min=None, expand_sets=True, on_damage=on_damage).records(run)
    assert [place for place, _ in told] == [DLSN(Lssn(1), EntryId(1), SlotId(0))]
