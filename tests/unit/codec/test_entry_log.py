"""The entry log format: what goes in comes out, at its own place only, and nothing else ever does."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.strategies import LEDGER_IDS, damaged, many_examples, some_examples

from quire.codec.entry_log import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    LEDGERS_MAX,
    LOG_BYTES_MAX,
    LOG_ID_MAX,
    MARK,
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    TRAILER_BYTES,
    Entry,
    LedgerUsage,
    Location,
    LogContent,
    LogId,
    Record,
    check_entries,
    check_header,
    decode_footer,
    decode_record,
    decode_run,
    encode_footer,
    encode_header,
    footer_begin,
    location_of,
    log_name,
    parse_log_name,
    split_location,
)
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import EntryId, LedgerId

LOG_IDS = st.one_of(st.integers(1, 5), st.integers(1, LOG_ID_MAX)).map(LogId)
OFFSETS = st.one_of(st.integers(HEADER_BYTES, 10_000), st.integers(HEADER_BYTES, LOG_BYTES_MAX))
ENTRIES = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 3), LEDGER_IDS).map(LedgerId),
        st.integers(0, 2**63 - 1).map(EntryId),
        st.one_of(
            st.binary(max_size=200),
            st.binary(max_size=50).map(bytearray),
            st.binary(max_size=50).map(lambda data: memoryview(data)[:]),
        ),
    ),
    min_size=1,
    max_size=12,
)
LEDGERS = st.dictionaries(
    LEDGER_IDS.map(LedgerId),
    st.builds(LedgerUsage, entries=st.integers(1, 2**40), bytes=st.integers(32, 2**40)),
    max_size=8,
)


def one_record(log_id: LogId, ledger_id: int, entry_id: int, body: bytes) -> bytes:
    """The bytes of a record that stands first in its log."""
    content = LogContent(log_id, log_bytes_max=LOG_BYTES_MAX)
    return b"".join(content.take([(LedgerId(ledger_id), EntryId(entry_id), body)], 0, synced_to=HEADER_BYTES).buffers)


def flips(data: bytes) -> Iterator[bytes]:
    """`data` with each of its bits flipped in turn."""
    for index in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[index // 8] ^= 1 << index % 8
        yield bytes(flipped)


def decoded_or_damaged(log_id: LogId, offset: int, data: bytes) -> Record | int | None:
    try:
        return decode_record(log_id, offset, data)
    except DamagedEntry as error:
        assert len(str(error)) > 10
        return None


# --- Names and places -----------------------------------------------------------------------------------------


@some_examples
@given(LOG_IDS)
def test_a_log_is_found_again_by_the_name_of_its_file(log_id: LogId) -> None:
    assert parse_log_name(log_name(log_id)) == log_id


def test_a_name_has_sixteen_digits() -> None:
    assert log_name(LogId(26)) == "000000000000001a.log"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1.log",
        "000000000000001A.log",
        "000000000000001a.log.new",
        "x000000000000001a.log",
        "000000000000001a_log",
        "000000000000001a.log\n",
        "0000000000000000.log",
        "0000000080000000.log",
        "ffffffffffffffff.log",
        "\u0661000000000000001.log",
    ],
)
def test_other_names_are_no_logs(name: str) -> None:
    assert parse_log_name(name) is None


@pytest.mark.parametrize("log_id", [-1, 0, LOG_ID_MAX + 1])
def test_log_ids_that_no_location_can_hold_are_refused(log_id: int) -> None:
    with pytest.raises(InvalidArgument, match=str(log_id)):
        log_name(LogId(log_id))


@some_examples
@given(LOG_IDS, OFFSETS)
@example(LOG_ID_MAX, LOG_BYTES_MAX)
def test_a_location_is_one_positive_number_and_holds_both_its_parts(log_id: LogId, offset: int) -> None:
    location = location_of(log_id, offset)
    assert 0 < location < 2**63
    assert split_location(location) == (log_id, offset)


# --- Header ---------------------------------------------------------------------------------------------------


@some_examples
@given(LOG_IDS, LOG_IDS)
def test_a_header_belongs_to_one_log(log_id: LogId, other: LogId) -> None:
    header = encode_header(log_id)
    assert len(header) == HEADER_BYTES
    check_header(header + b"records", log_id)
    if other != log_id:
        with pytest.raises(DamagedEntry, match=f"says log {log_id}"):
            check_header(header, other)


def test_each_flipped_bit_of_a_header_is_noticed() -> None:
    for header in flips(encode_header(LogId(7))):
        with pytest.raises(DamagedEntry):
            check_header(header, LogId(7))


def test_a_header_of_another_version_says_so() -> None:
    header = bytearray(encode_header(LogId(7)))
    header[11] = 2
    with pytest.raises(DamagedEntry, match="format version 2"):
        check_header(bytes(header), LogId(7))


@many_examples
@given(st.one_of(st.binary(max_size=600), damaged(LOG_IDS.map(encode_header))), LOG_IDS)
@example(bytes(HEADER_BYTES), LogId(1))
def test_any_bytes_are_a_header_or_damaged(data: bytes, log_id: LogId) -> None:
    try:
        check_header(data, log_id)
    except DamagedEntry:
        assert data[:HEADER_BYTES] != encode_header(log_id)
    else:
        assert data[:HEADER_BYTES] == encode_header(log_id)


# --- Records --------------------------------------------------------------------------------------------------


@many_examples
@given(ENTRIES, LOG_IDS, st.integers(HEADER_BYTES + 1, 3000), st.integers(HEADER_BYTES, LOG_BYTES_MAX))
def test_entries_come_back_from_where_they_went(
    entries: list[Entry], log_id: LogId, log_bytes_max: int, synced_to: int
) -> None:
    """Through as many logs as they need: by location one by one, as runs of one ledger, and as totals."""
    check_entries(entries)
    stored = 0
    while stored < len(entries):
        content = LogContent(log_id, log_bytes_max=log_bytes_max)
        run = content.take(entries, stored, synced_to=synced_to)
        data = b"".join(run.buffers)
        assert (run.offset, content.end) == (HEADER_BYTES, HEADER_BYTES + len(data))
        assert content.end <= log_bytes_max or len(run.locations) == 1
        assert content.take(entries, stored + len(run.locations), synced_to=synced_to).locations == []
        totals: dict[LedgerId, LedgerUsage] = {}
        at = 0
        for location, (ledger_id, entry_id, body) in zip(run.locations, entries[stored:], strict=False):
            assert split_location(location) == (log_id, HEADER_BYTES + at)
            record = decode_record(log_id, HEADER_BYTES + at, data, at)
            assert isinstance(record, Record)
            assert record == (RECORD_HEADER_BYTES + len(body), synced_to, ledger_id, entry_id, bytes(body))
            before = totals.get(ledger_id, LedgerUsage(0, 0))
            totals[ledger_id] = LedgerUsage(before.entries + 1, before.bytes + record.length)
            at += record.length
        assert at == len(data)
        assert content.ledgers() == totals
        assert decode_footer(content.footer(), log_id, begin=content.end) == totals
        stored += len(run.locations)


@some_examples
@given(st.integers(0, 3), st.binary(max_size=60), LOG_IDS, LOG_IDS, OFFSETS)
def test_a_record_is_none_at_any_other_place(
    ledger_id: int, body: bytes, log_id: LogId, other_log_id: LogId, other_offset: int
) -> None:
    """RecordsKnowTheirPlace."""
    record = one_record(log_id, ledger_id, 7, body)
    for wrong_log_id, wrong_offset in ((log_id, other_offset), (other_log_id, HEADER_BYTES)):
        if (wrong_log_id, wrong_offset) != (log_id, HEADER_BYTES):
            with pytest.raises(DamagedEntry, match="checksum"):
                decode_record(wrong_log_id, wrong_offset, record)


def test_each_flipped_bit_of_a_record_is_noticed() -> None:
    """A length that grew asks for more bytes first; with more bytes the checksum fails."""
    record = one_record(LogId(7), 5, 3, b"body of an entry")
    for flipped in flips(record):
        outcome = decoded_or_damaged(LogId(7), HEADER_BYTES, flipped)
        if isinstance(outcome, int):
            outcome = decoded_or_damaged(LogId(7), HEADER_BYTES, flipped.ljust(outcome, b"\0"))
        assert outcome is None


@some_examples
@given(LOG_IDS, OFFSETS, st.integers(RECORD_HEADER_BYTES, 100))
def test_zeros_are_nothing(log_id: LogId, offset: int, count: int) -> None:
    """ZerosAreNothing."""
    assert decoded_or_damaged(log_id, offset, bytes(count)) is None


@many_examples
@given(
    st.one_of(
        st.binary(max_size=100),
        st.binary(max_size=100).map(lambda tail: MARK + tail),
        damaged(st.builds(one_record, st.just(LogId(7)), st.integers(0, 3), st.integers(0, 3), st.binary(max_size=50))),
    ),
    st.one_of(st.just(HEADER_BYTES), OFFSETS, st.just(2**40)),
)
def test_any_bytes_are_a_record_or_damaged_or_too_few(data: bytes, offset: int) -> None:
    outcome = decoded_or_damaged(LogId(7), offset, data)
    if isinstance(outcome, Record):
        again = one_record(LogId(7), outcome.ledger_id, outcome.entry_id, outcome.body)
        assert data[: outcome.length] == again
    elif outcome is not None:
        assert len(data) < outcome <= RECORD_BYTES_MAX


def test_too_few_bytes_tell_how_many_it_takes() -> None:
    record = one_record(LogId(7), 5, 3, b"x" * 100)
    assert decode_record(LogId(7), HEADER_BYTES, record[:31]) == RECORD_HEADER_BYTES
    assert decode_record(LogId(7), HEADER_BYTES, record[:32]) == len(record)
    assert decode_record(LogId(7), HEADER_BYTES, record[:-1]) == len(record)


@many_examples
@given(ENTRIES, st.data(), st.integers(0, 14), st.integers(0, 3))
def test_a_run_is_what_single_records_say_up_to_the_first_that_is_not_of_it(
    entries: list[Entry], data: st.DataObject, entries_max: int, ledger_id: int
) -> None:
    """Model: `decode_record` in a loop, on bytes that something may have happened to."""
    log_id, shift = LogId(9), 11
    run = LogContent(log_id, log_bytes_max=LOG_BYTES_MAX).take(entries, 0, synced_to=HEADER_BYTES)
    intact = bytes(shift) + b"".join(run.buffers)
    content = data.draw(st.one_of(st.just(intact), damaged(st.just(intact))))
    expected: list[tuple[EntryId, Location, bytes]] = []
    at = shift
    while len(expected) < entries_max and at < len(content):
        record = None
        try:
            record = decode_record(log_id, HEADER_BYTES + at - shift, content, at)
        except DamagedEntry:
            break
        if isinstance(record, int) or record.ledger_id != ledger_id:
            break
        expected.append((record.entry_id, location_of(log_id, HEADER_BYTES + at - shift), record.body))
        at += record.length
    found = decode_run(log_id, HEADER_BYTES, content, shift, ledger_id=LedgerId(ledger_id), entries_max=entries_max)
    assert found == expected


def test_a_run_ends_where_offsets_end() -> None:
    """A file may have been made longer than any log; what is there has no location."""
    record = one_record(LogId(1), 0, 0, b"")
    for offset in (LOG_BYTES_MAX - 5, LOG_BYTES_MAX + 1):
        assert decode_run(LogId(1), offset, record, 0, ledger_id=LedgerId(0), entries_max=9) == []
    assert decoded_or_damaged(LogId(1), LOG_BYTES_MAX + 1, record) is None


def test_one_write_carries_a_bounded_part_of_many_entries() -> None:
    small: list[Entry] = [(LedgerId(1), EntryId(n), b"x") for n in range(3000)]
    content = LogContent(LogId(1), log_bytes_max=LOG_BYTES_MAX)
    taken = 0
    while taken < len(small):
        run = content.take(small, taken, synced_to=HEADER_BYTES)
        assert 0 < len(run.locations) <= 1024
        taken += len(run.locations)
    large: list[Entry] = [(LedgerId(1), EntryId(n), bytes(1 << 20)) for n in range(20)]
    run = LogContent(LogId(1), log_bytes_max=LOG_BYTES_MAX).take(large, 0, synced_to=HEADER_BYTES)
    assert 1 < len(run.locations) < 7


def test_a_log_holds_a_bounded_number_of_ledgers_but_always_those_it_has() -> None:
    entries: list[Entry] = [(LedgerId(n), EntryId(0), b"") for n in range(LEDGERS_MAX + 1)]
    content = LogContent(LogId(1), log_bytes_max=LOG_BYTES_MAX)
    taken = 0
    while run := content.take(entries, taken, synced_to=HEADER_BYTES).locations:
        taken += len(run)
    assert taken == LEDGERS_MAX
    assert len(content.take([(LedgerId(5), EntryId(1), b"")], 0, synced_to=HEADER_BYTES).locations) == 1
    assert len(decode_footer(content.footer(), LogId(1), begin=content.end)) == LEDGERS_MAX


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "body"),
    [(-1, 0, b""), (0, -1, b""), (2**63, 0, b""), (0, 2**63, b""), (0, 0, bytes(BODY_BYTES_MAX + 1))],
    ids=["negative ledger", "negative entry", "large ledger", "large entry", "large body"],
)
def test_entries_that_do_not_fit_the_format_are_refused(ledger_id: int, entry_id: int, body: bytes) -> None:
    with pytest.raises(InvalidArgument, match=f"{ledger_id}:{entry_id} of {len(body)} bytes"):
        check_entries([(LedgerId(0), EntryId(0), b""), (LedgerId(ledger_id), EntryId(entry_id), body)])


# --- Footer ---------------------------------------------------------------------------------------------------


@some_examples
@given(LOG_IDS, OFFSETS, LEDGERS)
def test_a_footer_is_found_from_the_end_of_its_file(
    log_id: LogId, begin: int, ledgers: dict[LedgerId, LedgerUsage]
) -> None:
    footer = encode_footer(log_id, begin, ledgers)
    assert footer_begin(footer[-TRAILER_BYTES:], log_id, log_bytes=begin + len(footer)) == begin
    assert decode_footer(footer, log_id, begin=begin) == ledgers
    for other_log_id, other_end in ((LogId(log_id ^ 1), begin), (log_id, begin + 24)):
        with pytest.raises(DamagedEntry):
            footer_begin(footer[-TRAILER_BYTES:], other_log_id, log_bytes=other_end + len(footer))


def test_each_flipped_bit_of_a_footer_is_noticed() -> None:
    footer = encode_footer(LogId(7), 600, {LedgerId(1): LedgerUsage(2, 80), LedgerId(4): LedgerUsage(1, 33)})
    for flipped in flips(footer):
        with pytest.raises(DamagedEntry):
            decode_footer(flipped, LogId(7), begin=600)


@many_examples
@given(
    st.one_of(
        st.binary(max_size=150),
        damaged(LEDGERS.map(lambda ledgers: encode_footer(LogId(7), 600, ledgers))),
    )
)
def test_any_bytes_are_a_footer_or_damaged(data: bytes) -> None:
    try:
        ledgers = decode_footer(data, LogId(7), begin=600)
    except DamagedEntry:
        return
    assert encode_footer(LogId(7), 600, ledgers) == data


# --- The bytes themselves -------------------------------------------------------------------------------------

# Also in docs/reference/entry-log.md, which explains them. Files of old releases look like this: never change them.
HEADER = bytes.fromhex("51554952454c4f47 00000001 000000000000000a").ljust(508, b"\0") + bytes.fromhex("d7a10650")
RECORD = bytes.fromhex("f85145ff 621984f6 00000025 00000200 0000000000000003 0000000000000005 68656c6c6f")
FOOTER = bytes.fromhex(
    "0000000000000003 0000000000000001 0000000000000025"
    "5155495245454e44 000000000000000a 0000000000000225 00000001 cbeb87f1"
)


def test_the_bytes_are_those_of_the_first_release() -> None:
    assert encode_header(LogId(10)) == HEADER
    assert one_record(LogId(10), 3, 5, b"hello") == RECORD
    assert encode_footer(LogId(10), 549, {LedgerId(3): LedgerUsage(1, 37)}) == FOOTER
