"""A bookie learns which digest a ledger has, and refuses what does not match from then on. Never what may be right."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT64, some_examples

from quire.codec.digest import digest_for
from quire.codec.entry import HEADER_BYTES, STORABLE_BYTES_MIN, EntryCodec
from quire.codec.entry_digest import CRC32, CRC32C, UNCHECKED, WRONG, check_digest
from quire.types import DigestType, EntryId, LedgerId

LEARNED = {DigestType.CRC32: CRC32, DigestType.CRC32C: CRC32C}
CHECKED = st.sampled_from(sorted(LEARNED, key=lambda each: each.name))
UNKNOWABLE = st.sampled_from([DigestType.MAC, DigestType.DUMMY])
PAYLOADS = st.binary(max_size=60)
TRIES = st.integers(0, 8)


def entry(digest_type: DigestType, payload: bytes, *, entry_id: int = 3, lac: int = 2, length: int = 100) -> bytes:
    codec = EntryCodec(LedgerId(1), digest_for(digest_type, b"password"))
    return codec.prefix(EntryId(entry_id), payload, lac=EntryId(lac), length=length) + payload


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@some_examples
@given(CHECKED, PAYLOADS, TRIES, INT64, INT64)
def test_the_first_entry_that_matches_tells_the_digest(
    digest_type: DigestType, payload: bytes, tries: int, lac: int, length: int
) -> None:
    body = entry(digest_type, payload, lac=lac, length=length)
    assert check_digest(body, tries) == LEARNED[digest_type]
    assert check_digest(body, LEARNED[digest_type]) == LEARNED[digest_type]


@some_examples
@given(CHECKED, PAYLOADS, st.data())
def test_once_the_digest_is_known_a_flipped_bit_anywhere_is_refused(
    digest_type: DigestType, payload: bytes, data: st.DataObject
) -> None:
    body = entry(digest_type, payload)
    bit = data.draw(st.integers(0, 8 * len(body) - 1))
    assert check_digest(flipped(body, bit), LEARNED[digest_type]) == WRONG


@some_examples
@given(CHECKED, PAYLOADS, st.data())
def test_once_the_digest_is_known_an_entry_cut_short_is_refused(
    digest_type: DigestType, payload: bytes, data: st.DataObject
) -> None:
    body = entry(digest_type, payload + b"!")
    end = data.draw(st.integers(STORABLE_BYTES_MIN, len(body) - 1))
    assert check_digest(body[:end], LEARNED[digest_type]) == WRONG


@some_examples
@given(CHECKED, PAYLOADS, PAYLOADS, st.data())
def test_a_damaged_first_entry_does_not_hide_the_digest(
    digest_type: DigestType, first: bytes, second: bytes, data: st.DataObject
) -> None:
    """Nobody can tell that it is damaged. But it teaches nothing wrong either."""
    body = entry(digest_type, first)
    known = check_digest(flipped(body, data.draw(st.integers(0, 8 * len(body) - 1))), 0)
    assert known == 1
    assert check_digest(entry(digest_type, second), known) == LEARNED[digest_type]


@some_examples
@given(UNKNOWABLE, st.lists(PAYLOADS, min_size=12, max_size=12))
def test_entries_whose_digest_cannot_be_checked_are_never_refused(
    digest_type: DigestType, payloads: list[bytes]
) -> None:
    """After a few of them nobody tries any more: the time would be lost on each."""
    known, seen = 0, []
    for entry_id, payload in enumerate(payloads):
        known = check_digest(entry(digest_type, payload, entry_id=entry_id), known)
        seen.append(known)
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8, *[UNCHECKED] * 4]
    assert check_digest(entry(DigestType.CRC32C, b"matches"), UNCHECKED) == UNCHECKED


@some_examples
@given(st.binary(max_size=HEADER_BYTES + 8), st.sampled_from([0, 3, 8, CRC32, CRC32C, UNCHECKED]))
def test_anything_too_short_for_a_digest_is_judged_and_never_raises(data: bytes, known: int) -> None:
    expected = {CRC32: WRONG, CRC32C: WRONG, UNCHECKED: UNCHECKED, 8: UNCHECKED}.get(known, known + 1)
    assert check_digest(data, known) == expected
