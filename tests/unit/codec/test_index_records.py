"""Keys that sort as ids do, values that come back, and bytes that mean nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples

from quire.codec.entry_log import Location
from quire.codec.index_records import (
    FORMAT_KEY,
    LEDGERS,
    TOMBSTONES,
    LedgerRecord,
    decode_ledger,
    decode_location,
    decode_tombstone,
    encode_ledger,
    encode_tombstone,
    entry_id_of,
    entry_ids_of,
    ledger_id_of,
    ledger_key,
    location_bounds,
    location_items,
    location_key,
    mark_key,
    tombstone_key,
)
from quire.errors import DamagedIndex, InvalidArgument
from quire.types import EntryId, LedgerId

ID_MAX = 2**63 - 1
BAD = [-1, 2**63, 2**64, -(2**63), -(2**64)]

ids = st.one_of(st.integers(0, ID_MAX), st.integers(0, 300), st.integers(2**32 - 3, 2**32 + 3), st.just(ID_MAX))
entries = st.tuples(ids.map(LedgerId), ids.map(EntryId))
records = st.builds(
    LedgerRecord,
    master_key=st.binary(max_size=40),
    fenced=st.booleans(),
    explicit_lac=st.none() | st.binary(max_size=40),
    limbo=st.booleans(),
)


def test_the_bytes_are_those_that_the_format_describes() -> None:
    ledger_id, entry_id = LedgerId(0x0102), EntryId(0x0A0B0C)
    assert location_key(ledger_id, entry_id).hex() == "01000000000000010200000000000a0b0c"
    assert [*location_items([(ledger_id, entry_id, Location(5 << 32 | 6))])] == [
        (location_key(ledger_id, entry_id), bytes.fromhex("0000000500000006"))
    ]
    assert ledger_key(ledger_id).hex() == "020000000000000102"
    assert tombstone_key(ledger_id).hex() == "030000000000000102"
    assert mark_key("ä") == b"\x04\xc3\xa4"
    assert encode_tombstone(1_700_000_000_000).hex() == "0000018bcfe56800"
    assert encode_ledger(LedgerRecord(b"key")).hex() == "0000000003" + b"key".hex()
    assert encode_ledger(LedgerRecord(b"k", fenced=True, limbo=True)).hex() == "0300000001" + b"k".hex()
    assert encode_ledger(LedgerRecord(b"", explicit_lac=b"lac")).hex() == "0400000000" + b"lac".hex()


@many_examples
@given(st.lists(entries, min_size=2))
def test_keys_sort_as_ledgers_and_entries_do(found: list[tuple[LedgerId, EntryId]]) -> None:
    assert sorted(found) == sorted(found, key=lambda entry: location_key(*entry))
    assert sorted(found) == sorted(found, key=lambda entry: (ledger_key(entry[0]), entry[1]))


@many_examples
@given(entries, ids.map(LedgerId), ids.map(EntryId), st.none() | ids.map(EntryId))
def test_bounds_enclose_exactly_the_range(
    entry: tuple[LedgerId, EntryId], ledger_id: LedgerId, first: EntryId, last: EntryId | None
) -> None:
    lower, upper = location_bounds(ledger_id, first, last)
    for owner, entry_id in (entry, (ledger_id, entry[1]), (ledger_id, first), (ledger_id, last or EntryId(ID_MAX))):
        inside = owner == ledger_id and first <= entry_id and (last is None or entry_id <= last)
        assert (lower <= location_key(owner, entry_id) < upper) == inside


@many_examples
@given(ids.map(LedgerId), entries, st.text(min_size=1, max_size=10))
def test_kinds_do_not_mix(ledger_id: LedgerId, entry: tuple[LedgerId, EntryId], name: str) -> None:
    keys = [FORMAT_KEY, location_key(*entry), ledger_key(ledger_id), tombstone_key(ledger_id), mark_key(name)]
    assert sorted(keys) == keys
    for bounds, key in ((LEDGERS, ledger_key(ledger_id)), (TOMBSTONES, tombstone_key(ledger_id))):
        assert [other for other in keys if bounds[0] <= other < bounds[1]] == [key]


@many_examples
@given(st.lists(entries))
def test_ids_come_back_from_keys(found: list[tuple[LedgerId, EntryId]]) -> None:
    keys = [location_key(*entry) for entry in found]
    assert [entry_id_of(key) for key in keys] == [*entry_ids_of(keys)] == [entry_id for _, entry_id in found]
    for ledger_id, _ in found:
        assert ledger_id_of(ledger_key(ledger_id)) == ledger_id_of(tombstone_key(ledger_id)) == ledger_id


@many_examples
@given(ids.map(Location), ids, records)
def test_values_come_back(location: Location, expires_ms: int, record: LedgerRecord) -> None:
    [(_, value)] = location_items([(LedgerId(0), EntryId(0), location)])
    assert decode_location(value) == location
    assert decode_tombstone(encode_tombstone(expires_ms)) == expires_ms
    assert decode_ledger(encode_ledger(record)) == record


@many_examples
@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_damaged_never_something_else(value: bytes) -> None:
    try:
        record = decode_ledger(value)
    except DamagedIndex:
        return
    assert encode_ledger(record) == value


@many_examples
@given(st.binary(max_size=12))
def test_any_bytes_are_a_number_or_damaged(value: bytes) -> None:
    for decode in (decode_location, decode_tombstone):
        if len(value) == 8 and value[0] < 0x80:
            assert decode(value) == int.from_bytes(value)
        else:
            with pytest.raises(DamagedIndex):
                decode(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00\x00\x00\x00",  # The length of the key is cut short,
        b"\x00\x00\x00\x00\x02k",  # and so is the key.
        b"\x00\x00\x00\x00\x01kx",  # An explicit LAC that no flag announces.
        b"\x08\x00\x00\x00\x00",  # A flag of some later version.
        b"\x01\xff\xff\xff\xffkey",
    ],
)
def test_half_a_record_is_damaged(value: bytes) -> None:
    with pytest.raises(DamagedIndex):
        decode_ledger(value)


def test_keys_of_another_length_are_damaged() -> None:
    key = location_key(LedgerId(1), EntryId(2))
    for wrong in (key[:-1], key + b"x", b""):
        with pytest.raises(DamagedIndex):
            entry_id_of(wrong)
        with pytest.raises(DamagedIndex):
            [*entry_ids_of([key, wrong])]
        with pytest.raises(DamagedIndex):
            ledger_id_of(wrong)


@pytest.mark.parametrize("bad", BAD)
def test_ids_that_do_not_exist_have_no_keys(bad: int) -> None:
    ledger_id, entry_id, location = LedgerId(bad), EntryId(bad), Location(bad)
    good = LedgerId(1)
    with pytest.raises(InvalidArgument):
        location_key(ledger_id, EntryId(0))
    with pytest.raises(InvalidArgument):
        location_key(good, entry_id)
    with pytest.raises(InvalidArgument):
        [*location_items([(good, EntryId(0), Location(0)), (good, EntryId(0), location)])]
    with pytest.raises(InvalidArgument):
        location_bounds(ledger_id)
    with pytest.raises(InvalidArgument):
        location_bounds(good, entry_id)
    with pytest.raises(InvalidArgument):
        location_bounds(good, EntryId(0), entry_id)
    with pytest.raises(InvalidArgument):
        ledger_key(ledger_id)
    with pytest.raises(InvalidArgument):
        tombstone_key(ledger_id)
    with pytest.raises(InvalidArgument):
        encode_tombstone(bad)


def test_a_marks_name_has_a_length_and_is_text() -> None:
    assert mark_key("n" * 255)
    for name in ("", "n" * 256, "ä" * 128, "\ud800"):
        with pytest.raises(InvalidArgument):
            mark_key(name)


def test_a_master_key_stays_out_of_messages() -> None:
    assert "secret" not in repr(LedgerRecord(b"secret"))
