"""What truncation leaves, and whether whoever goes on there misses records."""

import pytest

from quire.codec.stream_metadata.segment import Completion, Segment
from quire.stream.truncation import Left, left_of, left_of_purged
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId


def place(lssn: int, entry_id: int, slot_id: int = 0) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


RUNNING = Segment.begun(Lssn(3), LedgerId(1), 0)
DONE = RUNNING.completed(Completion(9, 0, 20, place(3, 5, 2)), start_sequence_id=0)
EMPTY = RUNNING.completed(Completion(0, 0, 0, place(3, -1, -1)), start_sequence_id=0)


@pytest.mark.parametrize(
    ("segment", "at", "left"),
    [
        (RUNNING, place(3, 0), Left(place(3, 0), False)),
        (DONE, place(3, 4), Left(place(3, 4), False)),
        (DONE.truncated(), place(3, 0), Left(place(4, 0), True)),
        (DONE.truncated(), place(3, 5, 2), Left(place(4, 0), True)),
        (DONE.truncated(), place(3, 5, 3), Left(place(4, 0), False)),
        (EMPTY.truncated(), place(3, 0), Left(place(4, 0), False)),
        (DONE.truncated_before(place(3, 2, 1)), place(3, 2), Left(place(3, 2, 1), True)),
        (DONE.truncated_before(place(3, 2, 1)), place(3, 2, 1), Left(place(3, 2, 1), False)),
        (DONE.truncated_before(place(3, 2, 1)), place(3, 9), Left(place(3, 9), False)),
    ],
)
def test_what_is_left_of_a_segment(segment: Segment, at: DLSN, left: Left) -> None:
    assert left_of(segment, at) == left


def test_what_is_left_where_segments_are_gone() -> None:
    assert left_of_purged(place(1, 3), first=Lssn(5), first_ever=Lssn(1)) == Left(place(5, 0), True)
    assert left_of_purged(place(1, 3), first=Lssn(5), first_ever=Lssn(5)) == Left(place(5, 0), False)
