"""What truncation and purging leave for a reader at some place, and whether going on there would leave a gap.

Segments are truncated and purged from the front. A place that was read up to may well be in a truncated segment: if no
record of it is behind the place, nothing is lost for whoever goes on in the next one.
"""

from typing import NamedTuple

from quire.codec.stream_metadata.segment import Segment
from quire.errors import PositionTruncated
from quire.types import DLSN, EntryId, Lssn, SlotId


class Left(NamedTuple):
    """Where a reader goes on that wants a certain place, and whether records between the two are hidden from it."""

    at: DLSN
    has_gap: bool


def left_of(segment: Segment, at: DLSN) -> Left:
    """What is left at a place in `segment`. That of a truncated one is the beginning of the segment after it."""
    if segment.is_truncated:
        done = segment.completion
        return Left(at.next_segment(), has_gap=done is None or at <= done.last_dlsn)
    if segment.is_partially_truncated and at < segment.min_active:
        return Left(segment.min_active, has_gap=True)
    return Left(at, has_gap=False)


def left_of_purged(at: DLSN, *, first: Lssn, first_ever: Lssn) -> Left:
    """What is left where the segment of `at` is not there any more, and `first` is the oldest one that is.

    Nothing was before the first segment that the stream ever had, though somebody may begin there.
    """
    return Left(first_place(first), has_gap=first != first_ever)


def first_place(lssn: Lssn) -> DLSN:
    return DLSN(lssn, EntryId(0), SlotId(0))


def position_truncated(stream: str, at: DLSN, left: DLSN) -> PositionTruncated:
    return PositionTruncated(
        f"records of stream {stream!r} from {shown(at)} on were truncated or purged; {shown(left)} is the first place "
        f"that is left",
        stream=stream,
        position=at,
        left=left,
        earliest=left,
    )


def shown(dlsn: DLSN) -> str:
    return f"({dlsn.lssn}, {dlsn.entry_id}, {dlsn.slot_id})"
