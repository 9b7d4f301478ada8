"""Scanning a log: every intact record is found, nothing else is, and gaps are told apart."""

from collections.abc import Set
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.bookie.entry_log_scan import GAPS_MAX, Extent, RecordScanner, ScanReport, StoredEntry
from quire.codec.entry_log import (
    HEADER_BYTES,
    LOG_BYTES_MAX,
    MARK,
    LogContent,
    LogId,
    encode_footer,
    encode_header,
    split_location,
)
from quire.types import EntryId, LedgerId

LOG_ID = LogId(4)
CHUNK_BYTES = st.sampled_from([33, 64, 100, 1000])
BODIES = st.one_of(
    st.binary(max_size=80),
    st.just(MARK * 4),  # What a search could take for records.
    st.binary(max_size=40).map(lambda body: MARK[1:] + body + MARK[:2]),
)


class Log:
    """A log in memory, and what its records are."""

    def __init__(self, bodies: list[bytes], *, syncs: Set[int] = frozenset()) -> None:
        """Before each number in `syncs`, the log was synced."""
        content = LogContent(LOG_ID, log_bytes_max=LOG_BYTES_MAX)
        self.data = bytearray(encode_header(LOG_ID))
        self.entries: list[StoredEntry] = []
        self.synced_to: list[int] = []
        synced_to = HEADER_BYTES
        for number, body in enumerate(bodies):
            if number in syncs:
                synced_to = len(self.data)
            run = content.take([(LedgerId(number % 3), EntryId(number), body)], 0, synced_to=synced_to)
            self.entries.append(StoredEntry(LedgerId(number % 3), EntryId(number), run.locations[0], body))
            self.synced_to.append(synced_to)
            self.data += b"".join(run.buffers)
        self.end = len(self.data)
        self.footer = content.footer()

    def offset(self, number: int) -> int:
        return self.end if number == len(self.entries) else split_location(self.entries[number].location)[1]

    def scan(self, *, is_proven: bool = False, chunk_bytes: int = 1000) -> tuple[list[StoredEntry], ScanReport]:
        return scan(bytes(self.data), Extent(self.end, is_proven), chunk_bytes=chunk_bytes)


def scan(data: bytes, extent: Extent, *, chunk_bytes: int = 1000) -> tuple[list[StoredEntry], ScanReport]:
    scanner = RecordScanner(LOG_ID, extent, chunk_bytes=chunk_bytes)
    found: list[StoredEntry] = []
    offset = 0
    while not scanner.is_done:
        assert scanner.count > 0
        count, offset = scanner.count, scanner.offset
        found += scanner.feed(data[offset : offset + count])
        assert scanner.offset > offset or scanner.count > count, "the scan makes no progress"
    return found, scanner.report()


@settings(deadline=None, max_examples=150)
@given(
    st.lists(BODIES, max_size=12),
    st.sets(st.integers(0, 12)),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=60)), max_size=4),
    st.booleans(),
    CHUNK_BYTES,
)
def test_exactly_the_intact_records_are_found_and_the_gaps_are_the_rest(
    bodies: list[bytes], syncs: set[int], damage: list[tuple[int, bytes]], is_proven: bool, chunk_bytes: int
) -> None:
    log = Log(bodies, syncs=syncs)
    intact = bytes(log.data)
    for place, junk in damage:
        start = HEADER_BYTES + place % max(1, log.end - HEADER_BYTES)
        log.data[start : min(log.end, start + len(junk))] = junk[: log.end - start]
    whole = [
        number
        for number in range(len(bodies))
        if log.data[log.offset(number) : log.offset(number + 1)] == intact[log.offset(number) : log.offset(number + 1)]
    ]
    found, report = log.scan(is_proven=is_proven, chunk_bytes=chunk_bytes)
    assert found == [log.entries[number] for number in whole]
    assert report.entries == len(found)
    edges = [(0, HEADER_BYTES), *((log.offset(n), log.offset(n + 1)) for n in whole), (log.end, log.end)]
    expected = [(end, start) for (_, end), (start, _) in pairwise(edges) if end < start]
    assert sorted(gap[:2] for gap in report.damaged + report.torn) == expected
    durable = log.end if is_proven else max([log.synced_to[number] for number in whole], default=0)
    assert [gap.offset for gap in report.damaged] == [start for start, _ in expected if start < durable]


@settings(deadline=None, max_examples=50)
@given(st.lists(BODIES, min_size=1, max_size=8), st.integers(0, 10**6), st.integers(0, 100), CHUNK_BYTES)
def test_a_torn_tail_ends_the_scan_quietly(bodies: list[bytes], cut: int, zeros: int, chunk_bytes: int) -> None:
    """The last bytes are missing, or were never written although the file had been made longer."""
    log = Log(bodies)
    end = HEADER_BYTES + cut % (log.end - HEADER_BYTES)
    data = bytes(log.data[:end]) + bytes(zeros)
    found, report = scan(data, Extent(len(data), is_proven=False), chunk_bytes=chunk_bytes)
    whole = [number for number in range(len(bodies)) if log.offset(number + 1) <= end]
    assert found[: len(whole)] == [log.entries[number] for number in whole]
    assert len(found) <= len(whole) + 1  # If the record that was cut ended in zeros, the file's own made it whole.
    assert report.damaged == ()
    assert [gap.end for gap in report.torn] == [len(data)] * (log.offset(len(found)) < len(data))


def test_a_footer_that_is_not_intact_is_one_torn_gap() -> None:
    log = Log([b"a", b"b"], syncs={1})
    data = bytes(log.data) + log.footer[:-1] + b"?"
    found, report = scan(data, Extent(len(data), is_proven=False))
    assert (found, report.damaged) == (log.entries, ())
    assert [gap[:2] for gap in report.torn] == [(log.end, len(data))]


def test_damage_is_known_from_records_that_were_written_after_a_sync() -> None:
    """The same broken record, three times: followed by nothing, by records of the same batch, and by later ones."""
    for count, syncs, is_damage in ((1, set[int](), False), (3, set[int](), False), (3, {1}, True), (3, {2}, True)):
        log = Log([b"body"] * count, syncs=syncs)
        log.data[log.offset(0) + 33] ^= 1
        found, report = log.scan()
        assert found == log.entries[1:]
        assert (len(report.damaged), len(report.torn)) == ((1, 0) if is_damage else (0, 1))


def test_a_gap_after_the_last_sync_is_torn_even_if_records_follow() -> None:
    """Disks write sectors in any order: of two unsynced records the second may survive alone."""
    log = Log([b"a" * 50] * 5, syncs={2})
    log.data[log.offset(3) : log.offset(4)] = bytes(log.offset(4) - log.offset(3))
    found, report = log.scan()
    assert [entry.entry_id for entry in found] == [0, 1, 2, 4]
    assert report.damaged == ()
    assert [gap[:2] for gap in report.torn] == [(log.offset(3), log.offset(4))]


def test_a_file_that_lost_its_end_has_a_gap_there() -> None:
    log = Log([b"a" * 50] * 4)
    for size in (log.offset(3), log.offset(3) + 5, log.offset(3) + 40):
        found, report = scan(bytes(log.data[:size]), Extent(log.end, is_proven=True))
        assert found == log.entries[:3]
        assert [gap[:2] for gap in report.damaged] == [(log.offset(3), log.end)]


def test_a_record_that_reaches_beyond_the_end_of_the_records_is_damaged() -> None:
    """Its bytes are intact, but a footer that says where records end contradicts it."""
    log = Log([b"a" * 50] * 2)
    found, report = scan(bytes(log.data), Extent(log.end - 1, is_proven=True))
    assert found == log.entries[:1]
    assert [gap[:2] for gap in report.damaged] == [(log.offset(1), log.end - 1)]


def test_records_of_another_log_are_none() -> None:
    """A block of an older file, left by the file system where ours was lost."""
    other = LogContent(LogId(3), log_bytes_max=LOG_BYTES_MAX)
    stale = b"".join(other.take([(LedgerId(0), EntryId(0), b"stale")], 0, synced_to=HEADER_BYTES).buffers)
    data = encode_header(LOG_ID) + stale
    found, report = scan(data, Extent(len(data), is_proven=False))
    assert found == []
    assert [gap[:2] for gap in report.torn] == [(HEADER_BYTES, len(data))]


def test_of_too_many_gaps_the_last_one_stands_for_the_rest() -> None:
    log = Log([b"x"] * 500, syncs={499})
    for number in range(0, 500, 2):
        log.data[log.offset(number)] ^= 1
    found, report = log.scan()
    assert len(found) == 250
    assert len(report.damaged) == GAPS_MAX
    assert (report.damaged[0][:2], report.damaged[-1].end) == ((log.offset(0), log.offset(1)), log.offset(499))


@pytest.mark.parametrize("size", [0, HEADER_BYTES])
def test_a_log_without_records_is_done_at_once(size: int) -> None:
    assert scan(encode_header(LOG_ID)[:size], Extent(size, is_proven=False)) == ([], ScanReport(0, (), ()))


def test_an_empty_footer_is_no_gap_when_its_place_is_known() -> None:
    data = encode_header(LOG_ID) + encode_footer(LOG_ID, HEADER_BYTES, {})
    assert scan(data, Extent(HEADER_BYTES, is_proven=True)) == ([], ScanReport(0, (), ()))
