"""Entries and LAC packets: Apache's bytes, and no damage that goes unnoticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import INT64, many_examples, some_examples

from quire.codec.digest import Buffer, digest_for
from quire.codec.entry import Entry, EntryCodec, stored_ids, stored_lac
from quire.errors import DamagedEntry, InvalidArgument
from quire.types import NO_ENTRY, DigestType, EntryId, LedgerId

CHECKED = [DigestType.CRC32, DigestType.CRC32C, DigestType.MAC]
ENTRY_IDS = INT64.map(EntryId)
BUFFERS = st.sampled_from([bytes, bytearray, memoryview])


def codec(digest_type: DigestType, *, ledger_id: int = 1, password: bytes = vectors.PASSWORD) -> EntryCodec:
    return EntryCodec(LedgerId(ledger_id), digest_for(digest_type, password))


@pytest.mark.parametrize("digest_type", DigestType)
def test_apaches_entries_are_written_and_read(digest_type: DigestType) -> None:
    entries = codec(digest_type)
    prefix = vectors.ENTRY_HEADER + vectors.ENTRY_DIGESTS[digest_type]
    assert entries.prefix(vectors.ENTRY, vectors.PAYLOAD, lac=NO_ENTRY, length=5) == prefix
    assert entries.prefix_bytes == len(prefix)
    expected = Entry(vectors.LEDGER, vectors.ENTRY, NO_ENTRY, 5, b"hello")
    assert entries.decode(prefix + b"hello", entry_id=vectors.ENTRY) == expected


@pytest.mark.parametrize("digest_type", DigestType)
def test_apaches_lac_packets_are_written_and_read(digest_type: DigestType) -> None:
    entries = codec(digest_type)
    packet = vectors.LAC_7_HEADER + vectors.LAC_7_DIGESTS[digest_type]
    assert entries.encode_lac(EntryId(7)) == packet
    assert entries.decode_lac(packet) == 7
    assert len(packet) == {"DUMMY": 16, "CRC32": 24, "CRC32C": 20, "MAC": 36}[digest_type.name]


@some_examples
@given(
    st.sampled_from(DigestType),
    INT64,
    ENTRY_IDS,
    ENTRY_IDS,
    INT64,
    st.lists(st.binary(max_size=40), max_size=3),
    BUFFERS,
)
def test_what_was_written_is_read_back(
    digest_type: DigestType,
    ledger: int,
    entry: EntryId,
    lac: EntryId,
    length: int,
    parts: list[bytes],
    kind: type[Buffer],
) -> None:
    entries = codec(digest_type, ledger_id=ledger)
    payload = b"".join(parts)
    data = entries.prefix(entry, *(kind(part) for part in parts), lac=lac, length=length) + payload
    expected = Entry(LedgerId(ledger), entry, lac, length, payload)
    assert entries.decode(kind(data), entry_id=entry) == expected
    assert entries.decode(data, entry_id=None) == expected
    assert stored_ids(kind(data)) == (ledger, entry, lac)
    assert type(entries.decode(memoryview(data), entry_id=entry).payload) is bytes


@some_examples
@given(st.sampled_from(DigestType), INT64, ENTRY_IDS, BUFFERS)
def test_a_lac_packet_is_read_back(digest_type: DigestType, ledger: int, lac: EntryId, kind: type[Buffer]) -> None:
    entries = codec(digest_type, ledger_id=ledger)
    packet = entries.encode_lac(lac)
    assert entries.decode_lac(kind(packet)) == lac
    assert stored_lac(kind(packet)) == (ledger, lac)


@many_examples
@given(st.sampled_from(CHECKED), st.data())
def test_no_flipped_bit_goes_unnoticed(digest_type: DigestType, data: st.DataObject) -> None:
    entries = codec(digest_type)
    whole = entries.prefix(vectors.ENTRY, b"hello", lac=NO_ENTRY, length=5) + b"hello"
    for packet, decode in (
        (whole, lambda damaged: entries.decode(damaged, entry_id=None)),
        (entries.encode_lac(EntryId(7)), entries.decode_lac),
    ):
        bit = data.draw(st.integers(0, 8 * len(packet) - 1))
        damaged = bytearray(packet)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedEntry, match="does not match its digest"):
            decode(damaged)


@pytest.mark.parametrize("digest_type", DigestType)
def test_what_is_too_short_is_damaged(digest_type: DigestType) -> None:
    entries = codec(digest_type)
    least = 32 + digest_for(digest_type, b"").size
    for size in range(least):
        with pytest.raises(DamagedEntry, match=f"entry 3 of ledger 1 has {size} bytes, {least} is the least") as caught:
            entries.decode(bytes(size), entry_id=EntryId(3))
        assert caught.value.facts == {"ledger_id": 1, "entry_id": 3}
    for size in range(least - 16):
        with pytest.raises(DamagedEntry, match=f"explicit LAC of ledger 1 has {size} bytes"):
            entries.decode_lac(bytes(size))


@pytest.mark.parametrize("digest_type", DigestType)
def test_an_entry_in_the_wrong_place_is_damaged(digest_type: DigestType) -> None:
    """A bookie that answers with another entry, or with one of another ledger, is no better than one that lies."""
    entries, others = codec(digest_type), codec(digest_type, ledger_id=2)
    prefix = entries.prefix(EntryId(4), lac=EntryId(3), length=0)
    assert entries.decode(prefix, entry_id=EntryId(4)).payload == b""
    with pytest.raises(DamagedEntry, match="entry 5 of ledger 1 turned out to be entry 4 of ledger 1"):
        entries.decode(prefix, entry_id=EntryId(5))
    with pytest.raises(DamagedEntry, match="entry 4 of ledger 2 turned out to be entry 4 of ledger 1"):
        others.decode(prefix, entry_id=EntryId(4))
    with pytest.raises(DamagedEntry, match="the last entry of ledger 2 turned out to be"):
        others.decode(prefix, entry_id=None)
    with pytest.raises(DamagedEntry, match="explicit LAC of ledger 2 is one of ledger 1"):
        others.decode_lac(entries.encode_lac(EntryId(3)))


def test_the_wrong_password_shows_where_there_is_a_mac() -> None:
    entries = codec(DigestType.MAC)
    packet = entries.encode_lac(EntryId(7))
    with pytest.raises(DamagedEntry, match="digest"):
        codec(DigestType.MAC, password=b"other").decode_lac(packet)


@pytest.mark.parametrize("size", [0, 15, 16, 23])
def test_a_bookie_cannot_store_what_has_no_ids(size: int) -> None:
    with pytest.raises(DamagedEntry, match=f"an entry of {size} bytes cannot be stored"):
        stored_ids(bytes(size))


def test_a_bookie_cannot_store_half_a_lac() -> None:
    with pytest.raises(DamagedEntry, match="a LAC packet of 15 bytes cannot be stored"):
        stored_lac(bytes(15))


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_cannot_be_written(bad: int) -> None:
    entries = codec(DigestType.CRC32C)
    with pytest.raises(InvalidArgument, match="64 bits"):
        entries.prefix(EntryId(bad), lac=NO_ENTRY, length=0)
    with pytest.raises(InvalidArgument, match="64 bits"):
        entries.prefix(EntryId(0), lac=NO_ENTRY, length=bad)
    with pytest.raises(InvalidArgument, match="64 bits"):
        entries.encode_lac(EntryId(bad))


@many_examples
@given(st.sampled_from(DigestType), st.binary(max_size=80))
def test_any_bytes_are_read_or_damaged(digest_type: DigestType, data: bytes) -> None:
    entries = codec(digest_type)
    for decode in (
        lambda: entries.decode(data, entry_id=None),
        lambda: entries.decode_lac(data),
        lambda: stored_ids(data),
    ):
        try:
            decode()
        except DamagedEntry as error:
            assert str(error)
