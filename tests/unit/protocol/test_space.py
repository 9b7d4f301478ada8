"""What a bookie takes as its disks fill up: the limits, the gap before it opens again, and the reasons it gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.space import FolderSpace, SpaceGate, SpaceLimits, SpaceMode, opens_again_at, shown_bytes

WRITABLE, READ_ONLY, CLOSED = SpaceMode
TIB, GIB, MIB = 1 << 40, 1 << 30, 1 << 20
A, B = "/a", "/b"


def gate_at(free_bytes: int, *, total_bytes: int = TIB) -> SpaceGate:
    gate = SpaceGate(free_bytes_min=GIB)
    gate.on_usage({A: FolderSpace(free_bytes, total_bytes)})
    return gate


@pytest.mark.parametrize(
    ("free_bytes", "mode", "may_compact"),
    [
        (GIB, WRITABLE, True),
        (GIB - 1, READ_ONLY, True),
        (256 * MIB, READ_ONLY, True),
        (256 * MIB - 1, CLOSED, True),
        (64 * MIB, CLOSED, True),
        (64 * MIB - 1, CLOSED, False),
        (0, CLOSED, False),
    ],
)
def test_a_large_disk_is_measured_in_bytes(free_bytes: int, mode: SpaceMode, may_compact: bool) -> None:
    gate = gate_at(free_bytes)
    assert (gate.mode, gate.may_compact(A)) == (mode, may_compact)


def test_a_small_disk_is_measured_by_its_size() -> None:
    assert SpaceLimits.of(10 * GIB, free_bytes_min=GIB) == (512 * MIB, 128 * MIB, 32 * MIB)
    assert SpaceLimits.of(20 * GIB, free_bytes_min=GIB) == (GIB, 256 * MIB, 64 * MIB)
    assert gate_at(512 * MIB, total_bytes=10 * GIB).mode is WRITABLE
    assert gate_at(512 * MIB - 1, total_bytes=10 * GIB).mode is READ_ONLY


@pytest.mark.parametrize(("limit", "before", "after"), [(GIB, READ_ONLY, WRITABLE), (256 * MIB, CLOSED, READ_ONLY)])
def test_what_was_given_up_is_taken_up_again_half_as_much_later(
    limit: int, before: SpaceMode, after: SpaceMode
) -> None:
    gate = gate_at(limit - 1)
    for free_bytes in (limit, limit + limit // 2 - 1):
        assert gate.on_usage({A: FolderSpace(free_bytes, TIB)}) is before
    assert gate.on_usage({A: FolderSpace(limit + limit // 2, TIB)}) is after
    assert gate.on_usage({A: FolderSpace(limit, TIB)}) is after, "and is given up only at the limit"


def test_one_full_disk_is_enough_and_is_the_one_that_is_named() -> None:
    gate = SpaceGate(free_bytes_min=GIB)
    assert gate.on_usage({A: FolderSpace(TIB, TIB), B: FolderSpace(100 * MIB, TIB)}) is CLOSED
    [reason] = gate.reasons
    assert reason == (
        "100 MiB are free on the disk of /b: no adds at all are taken below 256 MiB, and until 384 MiB are free"
    )
    assert gate.on_usage({B: FolderSpace(500 * MIB, TIB)}) is READ_ONLY
    [reason] = gate.reasons
    assert reason == (
        "500 MiB are free on the disk of /b: only recovery's adds are taken below 1 GiB, and until 1.5 GiB are free"
    )


def test_what_an_operator_closed_is_opened_by_an_operator() -> None:
    gate = gate_at(TIB)
    assert gate.on_manual("the fan rattles") is READ_ONLY
    assert gate.on_usage({A: FolderSpace(0, TIB)}) is CLOSED
    assert gate.on_usage({A: FolderSpace(TIB, TIB)}) is READ_ONLY
    assert gate.reasons == ("an operator made the bookie read-only: the fan rattles",)
    assert gate.on_manual("") is READ_ONLY, "no reason is no reason to open"
    assert gate.on_manual(None) is WRITABLE
    assert not gate.reasons


def test_a_disk_that_failed_does_not_come_back() -> None:
    gate = gate_at(TIB)
    assert gate.on_failed(A, "Input/output error") is CLOSED
    assert gate.on_usage({A: FolderSpace(TIB, TIB)}) is CLOSED
    assert gate.reasons == ("the disk of /a failed: Input/output error",)
    assert not gate.may_compact(A)
    assert gate.may_compact(B)


def test_sizes_are_shown_to_people() -> None:
    assert [shown_bytes(count) for count in (0, 1023, 1024, 1536 * MIB, 5 * TIB)] == [
        "0 bytes",
        "1023 bytes",
        "1 KiB",
        "1.5 GiB",
        "5 TiB",
    ]


FLOOR = 1600
usages = st.tuples(st.sampled_from([A, B]), st.integers(0, 2 * FLOOR), st.sampled_from([1 << 20, 20_000, 300, 0]))
manuals = st.sampled_from([None, "", "why"])


@given(st.lists(usages | manuals))
def test_the_gate_agrees_with_a_plain_reading_of_the_rules(events: list[tuple[str, int, int] | str | None]) -> None:
    gate, manual = SpaceGate(free_bytes_min=FLOOR), None
    now: dict[str, tuple[int, SpaceLimits]] = {}
    for event in events:
        before = gate.mode
        if isinstance(event, tuple):
            folder, free_bytes, total_bytes = event
            mode = gate.on_usage({folder: FolderSpace(free_bytes, total_bytes)})
            now[folder] = (free_bytes, SpaceLimits.of(total_bytes, free_bytes_min=FLOOR))
        else:
            manual, mode = event, gate.on_manual(event)
        assert mode is gate.mode

        below = [any(free < limits[which] for free, limits in now.values()) for which in range(3)]
        clear = [all(free >= opens_again_at(limits[which]) for free, limits in now.values()) for which in range(3)]
        if below[1]:
            assert mode is CLOSED
        elif clear[1]:
            assert mode is not CLOSED
        if below[0] or manual is not None:
            assert mode is not WRITABLE
        elif clear[0]:
            assert mode is WRITABLE
        if isinstance(event, tuple) and len(now) == 1 and not below[0] and not clear[0]:
            assert (mode is WRITABLE) == (before is WRITABLE), "between the two limits nothing changes"
        assert bool(gate.reasons) == (mode is not WRITABLE)
        if not all(gate.may_compact(folder) for folder in now):
            assert mode is CLOSED, "compaction is the last thing to be given up"


def test_a_write_that_found_no_room_counts_whatever_is_reported() -> None:
    """A quota of the user is in no report."""
    gate = gate_at(TIB)
    assert gate.on_no_room("[Errno 122] Disk quota exceeded") is CLOSED
    assert gate.reasons == ("a write found no room: [Errno 122] Disk quota exceeded",)
    assert gate.on_usage({A: FolderSpace(TIB, TIB)}) is CLOSED
