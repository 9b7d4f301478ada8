"""Version 1 of ledger metadata: its rules of grammar, and what it cannot hold. Vectors: test_ledger_metadata.py."""

from dataclasses import replace

import pytest

from quire.codec.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

HEADER = b"BookieMetadataFormatVersion\t1\n"
LEDGER = LedgerMetadata(
    quorum=Quorum(ensemble=2, write=2, ack=2),
    fragments=(Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1"))),),
    digest=None,
    password=None,
    format_version=1,
)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "lines 2 to 4"),
        (b"2\n2\n", "lines 2 to 4"),
        (b"\n2\n0\n0\ta:1\tb:1\n", "the write quorum on line 2"),
        (b"x\n2\n0\n0\ta:1\tb:1\n", "the write quorum on line 2"),
        (b"2\n 2\n0\n0\ta:1\tb:1\n", "the ensemble size on line 3"),
        (b"2\n2\n9223372036854775808\n0\ta:1\tb:1\n", "the length on line 4"),
        (b"2\n2\n0\n", "no fragment"),
        (b"2\n2\n0\n5\tCLOSED", "no fragment"),
        (b"2\n2\n0\n0\n", "line 5 has neither bookies nor 'CLOSED'"),
        (b"2\n2\n0\n0\ta:1\tb:1\n\n5\tCLOSED", "the entry id on line 6"),
        (b"2\n2\n0\n0\ta:1\tb:1\n\n", "the entry id on line 6"),
        (b"2\n2\n0\nzero\ta:1\tb:1\n", "the entry id on line 5"),
        (b"2\n2\n0\n0\ta:1\n", "has 1 bookies, the ensemble size is 2"),
        (b"2\n2\n0\n0\ta:1\tb:1\t\n", "cannot be a bookie id"),
        (b"2\n2\n0\n0\ta:1\tb 1\n", "cannot be a bookie id"),
        (b"2\n2\n0\n0\ta:1\tb:1\r\n", "cannot be a bookie id"),
        (b"2\n2\n0\n0\ta:1\tb:1\n0\ta:1\tb:1\n", "does not come after"),
        (b"2\n2\n0\n0\ta:1\tb:1\n-7\tCLOSED", "closed at entry -7"),
        (b"3\n2\n0\n0\ta:1\tb:1\n", "do not fit together"),
        (b"2\n2\n0\n0\ta:1\tb\xff1\n", "after the first line: byte 13 is not UTF-8"),
    ],
)
def test_broken_text_is_refused_saying_where(body: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=complaint):
        decode_ledger_metadata(HEADER + body)


def test_the_last_line_feed_may_be_missing() -> None:
    assert decode_ledger_metadata(HEADER + b"2\n2\n0\n0\ta:1\tb:1") == LEDGER


def test_a_length_without_closing_line_means_nothing() -> None:
    assert decode_ledger_metadata(HEADER + b"2\n2\n777\n0\ta:1\tb:1\n") == LEDGER


def test_the_closing_line_ends_the_ledger() -> None:
    closed = replace(LEDGER, state=LedgerState.CLOSED, last_entry_id=EntryId(5), length=9)
    assert decode_ledger_metadata(HEADER + b"2\n2\n9\n0\ta:1\tb:1\n5\tCLOSED\tmore\nnonsense") == closed


def test_an_empty_closed_ledger_ends_before_entry_0() -> None:
    closed = replace(LEDGER, state=LedgerState.CLOSED)
    data = HEADER + b"2\n2\n0\n0\ta:1\tb:1\n-1\tCLOSED"
    assert decode_ledger_metadata(data) == closed
    assert encode_ledger_metadata(closed) == data


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (replace(LEDGER, quorum=Quorum(2, 2, 1)), "an ack quorum of its own"),
        (replace(LEDGER, password=b"", digest=DigestType.CRC32), "a password"),
        (replace(LEDGER, ctime_ms=0), "a creation time"),
        (replace(LEDGER, custom={"k": b""}), "custom metadata"),
        (
            replace(LEDGER, fragments=(Fragment(EntryId(0), (BookieId("CLOSED"), BookieId("b:1"))),)),
            "a bookie named CLOSED in front",
        ),
        (replace(LEDGER, ctime_ms=1, custom={"k": b""}), "a creation time or custom metadata"),
    ],
)
def test_what_version_1_cannot_hold_is_not_dropped_in_silence(changed: LedgerMetadata, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        encode_ledger_metadata(changed)


def test_a_bookie_named_closed_is_only_a_name_behind_another() -> None:
    odd = replace(LEDGER, fragments=(Fragment(EntryId(0), (BookieId("b:1"), BookieId("CLOSED"))),))
    assert decode_ledger_metadata(encode_ledger_metadata(odd)) == odd
