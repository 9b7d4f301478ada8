"""The journal's bytes: groups read back, torn ones are told from damaged ones, nothing else passes for a group."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.codec.journal import (
    RECORD_HEADER,
    SECTOR,
    FileHeader,
    JournalNumber,
    Verdict,
    decode_file_header,
    encode_file_header,
    encode_group,
    find_group,
    group_size,
    read_group,
)
from quire.errors import DamagedJournal

SALT = 0x1122334455667788

BODIES = st.lists(st.binary(max_size=40) | st.builds(bytes, st.integers(0, 2000)), max_size=6)


def records(bodies: list[bytes]) -> list[bytes]:
    return [RECORD_HEADER.pack(len(body), 7, number) + body for number, body in enumerate(bodies)]


def group_of(offset: int, number: int, parts: Sequence[bytes | memoryview], *, salt: int = SALT) -> bytes:
    return b"".join(encode_group(salt, offset, number, parts))


def file_of(*groups: list[bytes], room: int = 4 * SECTOR) -> bytes:
    data = bytearray(encode_file_header(FileHeader(1, SALT, JournalNumber())))
    for number, bodies in enumerate(groups, start=1):
        data += group_of(len(data), number, records(bodies))
    return bytes(data) + bytes(room)


def read_all(data: bytes) -> tuple[list[list[bytes]], Verdict]:
    found: list[list[bytes]] = []
    offset = SECTOR
    while True:
        verdict, group = read_group(data, SALT, offset)
        if group is None:
            return found, verdict
        found.append([bytes(record.body) for record in group])
        offset = group.end


@given(st.lists(BODIES, max_size=4))
def test_groups_read_back(groups: list[list[bytes]]) -> None:
    assert read_all(file_of(*groups)) == (groups, Verdict.NOTHING)


def test_records_keep_their_ids() -> None:
    data = group_of(SECTOR, 5, [RECORD_HEADER.pack(2, 2**62, -0x2000), b"xy"])
    _, group = read_group(bytes(SECTOR) + data, SALT, SECTOR)
    assert group is not None
    assert (group.number, group.offset, group.end) == (5, SECTOR, 2 * SECTOR)
    ((ledger_id, entry_id, body),) = group
    assert (ledger_id, entry_id, bytes(body)) == (2**62, -0x2000, b"xy")


def test_a_group_is_a_whole_number_of_sectors() -> None:
    for size in (0, 1, 470, 475, 476, 512, 5000):
        assert group_size(size) % SECTOR == 0
        assert len(group_of(0, 1, [bytes(size)])) == group_size(size)


@given(st.lists(st.tuples(st.integers(0, 1100), st.binary(max_size=3)), max_size=6))
def test_zero_sectors_are_counted_as_the_group_has_them(pieces: list[tuple[int, bytes]]) -> None:
    """Zeros of entries, the padding behind them, and any place where a sector may begin among them."""
    data = b"".join(bytes(zeros) + some for zeros, some in pieces)
    group = group_of(0, 1, [data])
    sectors = [group[start : start + SECTOR] for start in range(SECTOR, len(group), SECTOR)]
    assert int.from_bytes(group[16:20], "big") == sectors.count(bytes(SECTOR))


@given(st.lists(st.integers(0, 5000) | st.binary(max_size=3), min_size=8, max_size=40), st.data())
def test_a_group_is_the_same_whether_its_records_come_as_one_or_in_large_parts(
    pieces: list[int | bytes], data: st.DataObject
) -> None:
    """Large parts are written as they are. Cuts may be anywhere: in sectors of zeros, at their ends, next to others."""
    whole = b"".join(bytes(piece) for piece in pieces).ljust(3 * 4096, b"\0")
    count = data.draw(st.integers(1, len(whole) // 4096))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=count - 1, max_size=count - 1)))
    parts = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert encode_group(SALT, SECTOR, 1, parts)[1:-1] == parts, "they were copied"
    group = group_of(SECTOR, 1, parts)
    assert group == group_of(SECTOR, 1, [whole]) == group_of(SECTOR, 1, [memoryview(part) for part in parts])
    sectors = [group[start : start + SECTOR] for start in range(SECTOR, len(group), SECTOR)]
    assert int.from_bytes(group[16:20], "big") == sectors.count(bytes(SECTOR))


@pytest.mark.parametrize("cuts", [[6000], [6000, 6100], [6000, 6000, 6001], [6144], [6143, 6145]])
def test_a_sector_across_parts_counts_as_zero_only_if_all_of_it_is(cuts: list[int]) -> None:
    for place in (*range(5600, 6700, 37), *cuts, cuts[0] - 1):
        whole = bytearray(20_000)
        whole[place] = 1
        parts = [bytes(whole[start:end]) for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        assert encode_group(SALT, SECTOR, 1, parts)[0] == encode_group(SALT, SECTOR, 1, [bytes(whole)])[0]


@given(BODIES.filter(bool), st.data())
@settings(max_examples=300)
def test_a_group_whose_sectors_did_not_all_reach_the_disk_is_torn(bodies: list[bytes], data: st.DataObject) -> None:
    """Each sector of the last group is there or still zero; if anything that matters is missing, it is torn."""
    whole = file_of([b"first"], bodies)
    start, end = len(file_of([b"first"], room=0)), len(file_of([b"first"], bodies, room=0))
    kept = data.draw(st.lists(st.booleans(), min_size=(end - start) // SECTOR, max_size=(end - start) // SECTOR))
    torn = bytearray(whole)
    for number, keep in enumerate(kept):
        if not keep:
            torn[start + number * SECTOR : start + (number + 1) * SECTOR] = bytes(SECTOR)
    expected = ([[b"first"], bodies], Verdict.NOTHING)
    if bytes(torn) != whole:
        expected = ([[b"first"]], Verdict.TORN if any(torn[start:end]) else Verdict.NOTHING)
    assert read_all(bytes(torn)) == expected


@given(BODIES, st.data())
@settings(max_examples=300)
def test_a_group_that_was_cut_off_anywhere_is_torn(bodies: list[bytes], data: st.DataObject) -> None:
    """A file system may keep any first part of a write, and the file may even end there."""
    start, whole = len(file_of([b"first"], room=0)), file_of([b"first"], bodies, room=0)
    cut = data.draw(st.integers(start, len(whole) - 1))
    for tail in (b"", bytes(len(whole) - cut + SECTOR)):
        found, verdict = read_all(whole[:cut] + tail)
        assert found == [[b"first"]]
        assert verdict in (Verdict.TORN, Verdict.NOTHING)


@given(BODIES, BODIES, st.data())
@settings(max_examples=400)
def test_a_flipped_bit_is_damage_and_never_another_record(
    first: list[bytes], second: list[bytes], data: st.DataObject
) -> None:
    """Also in the last group, which could otherwise be taken for one that was never acknowledged."""
    whole = file_of(first, second)
    used = len(file_of(first, second, room=0))
    position = data.draw(st.integers(SECTOR, used - 1))
    bad = bytearray(whole)
    bad[position] ^= 1 << data.draw(st.integers(0, 7))
    found, verdict = read_all(bytes(bad))
    if found != [first, second]:  # Flips in the padding hurt nobody.
        assert found in ([], [first])
        assert verdict is Verdict.DAMAGED


def test_damage_in_the_middle_does_not_hide_what_comes_after() -> None:
    whole = file_of([b"one"], [b"two"], [b"three"])
    second = SECTOR * 2
    bad = bytearray(whole)
    bad[second + 40] ^= 1
    assert read_all(bytes(bad)) == ([[b"one"]], Verdict.DAMAGED)
    third = find_group(bytes(bad), SALT, second + SECTOR)
    assert third == SECTOR * 3
    _, group = read_group(bytes(bad), SALT, third)
    assert group is not None
    assert [bytes(record.body) for record in group] == [b"three"]


@pytest.mark.parametrize("place", ["other salt", "other offset", "inside an entry"])
def test_a_group_in_the_wrong_place_is_not_a_group(place: str) -> None:
    """Stale blocks, and entries whose bytes look like a group, must not pass for one."""
    foreign = group_of(SECTOR * 3, 9, records([b"evil"]), salt=SALT if place == "other offset" else 99)
    if place == "inside an entry":
        data = file_of([bytes(SECTOR * 2 - 60) + foreign])
        assert foreign in data
        assert read_all(data)[1] is Verdict.NOTHING
        data = data[: -4 * SECTOR - 1] + b"\0" + data[-4 * SECTOR :]  # Spoil the trailer: the group itself is bad now.
        assert find_group(data, SALT, SECTOR * 2) is None
    else:
        data = file_of([b"one"])[: SECTOR * 2] + foreign + bytes(SECTOR)
        assert read_all(data)[0] == [[b"one"]]


@given(st.binary(max_size=3000))
def test_any_bytes_are_judged_and_never_raise(data: bytes) -> None:
    verdict, group = read_group(data, SALT, 0)
    assert (group is None) == (verdict is not Verdict.GROUP)
    try:
        decode_file_header(data)
    except DamagedJournal:
        return
    raise AssertionError("random bytes are no journal")


def test_the_file_header_reads_back_and_any_flip_in_it_is_noticed() -> None:
    header = encode_file_header(FileHeader(2**40, SALT, JournalNumber(1, 3)))
    assert len(header) == SECTOR
    assert decode_file_header(header) == FileHeader(2**40, SALT, JournalNumber(1, 3))
    for position in range(28):
        bad = bytearray(header)
        bad[position] ^= 0x10
        with pytest.raises(DamagedJournal):
            decode_file_header(bytes(bad))


def test_records_that_do_not_add_up_are_damage() -> None:
    for data in (b"short", RECORD_HEADER.pack(100, 1, 1) + b"too little"):
        _, group = read_group(group_of(0, 1, [data]), SALT, 0)
        assert group is not None
        with pytest.raises(DamagedJournal):
            list(group)
