"""Lists of entries: Apache's bytes, patterns that only readers meet, and claims that cannot be true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import damaged, many_examples, some_examples

from quire.codec.wire.availability import (
    EntryAvailability,
    RunGroup,
    decode_availability,
    encode_availability,
)
from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import EntryId

E = EntryId
EMPTY = bytes(64)


@st.composite
def groups(draw: st.DrawFn) -> list[RunGroup]:
    """Any that are allowed: single runs and patterns, apart or back to back."""
    found: list[RunGroup] = []
    start = 0
    for _ in range(draw(st.integers(0, 4))):
        start += draw(st.integers(0, 5))
        size = draw(st.integers(1, 4))
        repeats = draw(st.integers(0, 3))
        period = draw(st.integers(size, size + 3)) if repeats else 0
        found.append(RunGroup(E(start), E(start + repeats * period), size, period))
        start = found[-1].end
    return found


def spelled_out(groups: list[RunGroup]) -> list[int]:
    """The definition, run by run."""
    entries: list[int] = []
    for first, last, size, period in groups:
        start = first
        while start <= last:
            entries += range(start, start + size)
            start = E(start + (period or 1))
    return entries


def test_apaches_bytes_are_written_and_read() -> None:
    availability = EntryAvailability.of([E(0), E(1), E(2), E(5)])
    assert encode_availability(availability) == vectors.AVAILABILITY
    assert decode_availability(vectors.AVAILABILITY) == availability
    assert list(availability) == [0, 1, 2, 5]


def test_an_empty_ledger_is_a_header_alone() -> None:
    assert encode_availability(EntryAvailability.of([])) == EMPTY
    assert list(decode_availability(EMPTY)) == []
    assert 0 not in decode_availability(EMPTY)


@some_examples
@given(st.sets(st.integers(0, 40) | st.integers(0, 2**63 - 1)))
def test_entries_are_read_back(entries: set[int]) -> None:
    availability = decode_availability(encode_availability(EntryAvailability.of(E(entry) for entry in sorted(entries))))
    assert list(availability) == sorted(entries)
    assert availability.count() == len(entries)
    assert all(group.period == 0 for group in availability.groups)
    assert hash(availability) == hash(EntryAvailability(availability.groups))


@many_examples
@given(groups())
def test_patterns_stand_for_their_runs(groups: list[RunGroup]) -> None:
    expected = spelled_out(groups)
    availability = decode_availability(encode_availability(EntryAvailability(groups)))
    assert availability.groups == tuple(groups)
    assert list(availability) == expected
    assert availability.count() == len(expected)
    top = max(expected, default=0) + 3
    assert [entry for entry in range(-1, top) if entry in availability] == expected


def test_a_run_of_more_entries_than_a_group_can_count_would_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes have 31 bits. The bound is lowered here, since nobody can wait for two thousand million entries."""
    monkeypatch.setattr("quire.codec.wire.availability._SIZE_MAX", 3)
    availability = EntryAvailability.of(map(E, range(8)))
    assert [group[0:3] for group in availability.groups] == [(0, 0, 3), (3, 3, 3), (6, 6, 2)]
    assert list(availability) == list(range(8))


def test_a_huge_claim_takes_no_room() -> None:
    last = 2**62
    availability = decode_availability(encode_availability(EntryAvailability([RunGroup(E(0), E(last), 1, 1)])))
    assert availability.count() == last + 1
    assert last in availability
    assert last + 1 not in availability


@pytest.mark.parametrize(
    "bad",
    [
        [RunGroup(E(-1), E(-1), 1, 0)],
        [RunGroup(E(0), E(0), 0, 0)],
        [RunGroup(E(0), E(0), -1, 0)],
        [RunGroup(E(0), E(0), 1, 1)],
        [RunGroup(E(0), E(5), 1, 0)],
        [RunGroup(E(0), E(4), 3, 2)],
        [RunGroup(E(0), E(5), 1, 2)],
        [RunGroup(E(4), E(0), 1, 2)],
        [RunGroup(E(2**63 - 1), E(2**63 - 1), 2, 0)],
        [RunGroup(E(5), E(5), 1, 0), RunGroup(E(0), E(0), 1, 0)],
        [RunGroup(E(0), E(0), 3, 0), RunGroup(E(2), E(2), 1, 0)],
        [RunGroup(E(0), E(6), 1, 3), RunGroup(E(1), E(1), 1, 0)],
    ],
)
def test_groups_that_make_no_sense_are_refused(bad: list[RunGroup]) -> None:
    with pytest.raises(InvalidArgument, match=r"group \d of available entries"):
        EntryAvailability(bad)
    data = bytearray(EMPTY)
    data[4:8] = len(bad).to_bytes(4, "big")
    for first, last, size, period in bad:
        for number, width in ((first, 8), (last, 8), (size, 4), (period, 4)):
            data += number.to_bytes(width, "big", signed=True)
    with pytest.raises(ProtocolViolation, match=r"group \d of available entries"):
        decode_availability(bytes(data))


@pytest.mark.parametrize("entries", [[1, 0], [0, 0], [3, 5, 4], [-1]])
def test_entries_must_ascend(entries: list[int]) -> None:
    with pytest.raises(InvalidArgument):
        EntryAvailability.of(map(E, entries))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "64 bytes or more, not 0"),
        (bytes(63), "64 bytes or more, not 63"),
        (b"\0\0\0\1" + bytes(60), "version 1 of a list"),
        (vectors.AVAILABILITY[:-1], "2 groups of entries does not fit into 111"),
        (bytes(4) + b"\xff\xff\xff\xff" + bytes(56), "-1 groups"),
    ],
)
def test_half_a_list_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        decode_availability(data)


def test_what_follows_the_last_group_is_ignored() -> None:
    assert list(decode_availability(vectors.AVAILABILITY + b"later")) == [0, 1, 2, 5]


@many_examples
@given(
    st.one_of(
        st.binary(max_size=130), damaged(groups().map(lambda found: encode_availability(EntryAvailability(found))))
    )
)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        availability = decode_availability(data)
    except ProtocolViolation as error:
        assert len(str(error)) > 10
    else:
        assert decode_availability(encode_availability(availability)) == availability
