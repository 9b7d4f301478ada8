"""Decide what happens to the chain of a stream's segments: what comes next and what goes. Sans-IO.

Segments come in as they were read and in the order of `chain`; decisions come out. Carrying them out is one metadata
transaction each, guarded by the versions of the nodes that were read, so a decision from old facts changes nothing.

Invariants:
  LssnsAreConsecutive  along a chain each LSSN is the one before it plus one.
  TruncationOnlyGrows  no decision shows a reader again what truncation hid from it.
  PurgedFromTheFront   what is purged is a prefix of the chain, and the last completed segment before those in progress
                       stays: sequence ids go on from its end.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from quire.errors import DamagedMetadata, invariant
from quire.types import DLSN, INITIAL_DLSN, EntryId, Lssn, SlotId
from quire.values import dataclass

FIRST_LSSN: Final = INITIAL_DLSN.lssn
SEGMENT_BYTES_MAX: Final = 256 * 2**20


class CompletionFacts(Protocol):
    """What is known of a completed segment."""

    @property
    def last_txid(self) -> int: ...
    @property
    def completed_at_ms(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def last_dlsn(self) -> DLSN: ...


class SegmentFacts(Protocol):
    """What a decision rests on, however it is stored. LSSN 0 is that of old segments which have none."""

    @property
    def lssn(self) -> Lssn: ...
    @property
    def first_txid(self) -> int: ...
    @property
    def completion(self) -> CompletionFacts | None: ...
    @property
    def min_active(self) -> DLSN: ...
    @property
    def is_truncated(self) -> bool: ...
    @property
    def is_partially_truncated(self) -> bool: ...
    @property
    def keeps_truncation(self) -> bool: ...
    @property
    def keeps_min_active(self) -> bool: ...
    @property
    def keeps_sequence_id(self) -> bool: ...
    @property
    def effective_start_sequence_id(self) -> int: ...


S = TypeVar("S", bound=SegmentFacts)


# --- The chain


def chain(segments: Iterable[S]) -> list[S]:
    """`segments` in the order of the stream. Raises `DamagedMetadata` if an LSSN is missing or there twice."""
    ordered = sorted(segments, key=functools.cmp_to_key(_compare))
    for before, after in itertools.pairwise(ordered):
        if before.lssn and after.lssn and after.lssn != before.lssn + 1:
            raise DamagedMetadata(
                f"segment {after.lssn} follows segment {before.lssn} of its stream",
                hint="List the segments again. If that does not help, one was deleted or added by hand.",
                lssns=[segment.lssn for segment in ordered],
            )
    return ordered


def _compare(one: SegmentFacts, other: SegmentFacts) -> int:
    return one.lssn - other.lssn if one.lssn and other.lssn else one.first_txid - other.first_txid


def next_lssn(segments: Sequence[SegmentFacts], *, max_lssn: Lssn, first_lssn: Lssn = FIRST_LSSN) -> Lssn:
    """The number of the segment to begin. Raises `DamagedMetadata` if it does not fit the highest one ever given.

    `max_lssn` may be its equal, and not one less: recovery deleted a segment that nothing was written to.
    """
    following = first_lssn
    for index, segment in enumerate(reversed(segments)):
        if segment.lssn:  # Old segments behind it have no number, and yet count.
            following = Lssn(segment.lssn + index + 1)
            break
    is_new = not segments and max_lssn == 0
    if not is_new and following not in (max_lssn, max_lssn + 1):
        raise DamagedMetadata(
            f"the next segment would be {following}, but segments up to {max_lssn} were begun",
            hint="Read the stream's nodes again. If that does not help, they do not belong together.",
            lssn=following,
            max_lssn=max_lssn,
        )
    return following


def start_sequence_id(segments: Sequence[SegmentFacts], lssn: Lssn) -> int:
    """The sequence id of the first record of segment `lssn`, for whoever completes it or reads it in progress.

    The segment before it must be completed: nobody knows sooner how many records that has.
    """
    before = next((segment for segment in segments if segment.lssn == lssn - 1), None)
    if before is None or not before.lssn:
        return 0
    done = before.completion
    invariant(done is not None, "sequence ids asked for out of turn", lssn=lssn)
    return before.effective_start_sequence_id + done.record_count if done and before.keeps_sequence_id else 0


@dataclass(frozen=True, slots=True)
class RollRule:
    """When a writer turns to a new segment. While there is an interval the size does not matter, as in Apache's."""

    interval_s: float = 120 * 60  # 0 or less: roll by size.
    bytes_max: int = SEGMENT_BYTES_MAX  # 0 or less: the default.

    def is_due(self, *, now_s: float, since_s: float, segment_bytes: int) -> bool:
        """`since_s` is when a segment was completed last, or else when the stream was opened."""
        if self.interval_s > 0:
            return now_s - since_s > self.interval_s
        return segment_bytes > (self.bytes_max if self.bytes_max > 0 else SEGMENT_BYTES_MAX)


# --- Truncation and purging


@dataclass(frozen=True, slots=True)
class Truncate(Generic[S]):
    """Hide records of a segment from readers: those before a place in it, or all."""

    segment: S
    before: DLSN | None = None


def truncate(segments: Sequence[S], dlsn: DLSN) -> list[Truncate[S]]:
    """Which segments change when all that is before `dlsn` is to go. Segments in progress never change.

    A segment in an old format may have no field for it. It is passed over; `purge_by_txid` can remove it.
    """
    changes: list[Truncate[S]] = []
    for segment in segments:
        if segment.completion is None:
            break
        if segment.completion.last_dlsn < dlsn:
            if segment.keeps_truncation and not segment.is_truncated:
                changes.append(Truncate(segment))
            continue
        if _first_dlsn(segment) < dlsn and segment.keeps_min_active and not segment.is_truncated:
            is_news = not segment.is_partially_truncated or segment.min_active < dlsn
            changes += [Truncate(segment, before=dlsn)] if is_news else []
        break
    return changes


def purge_by_age(segments: Sequence[S], *, now_ms: int, retention_ms: int, truncated_only: bool = False) -> list[S]:
    """Which segments to delete, oldest first: those completed before the retention. 0 or less keeps everything."""
    if retention_ms <= 0:
        return []
    return _purge(segments, lambda _, done: done.completed_at_ms < now_ms - retention_ms, truncated_only)


def purge_by_txid(segments: Sequence[S], *, min_txid: int, truncated_only: bool = False) -> list[S]:
    """Which segments to delete, oldest first: those with lower txids only. 0 or less keeps everything."""
    if min_txid <= 0:
        return []
    return _purge(segments, lambda _, done: done.last_txid < min_txid, truncated_only)


def purge_by_size(
    segments: Sequence[S], *, lengths: Sequence[int], bytes_max: int, truncated_only: bool = False
) -> list[S]:
    """Which segments to delete, oldest first, so that no more than `bytes_max` are left. 0 or less keeps everything.

    `lengths` are those of the segments' ledgers. Apache has no such rule, and is not disturbed by it.
    """
    if bytes_max <= 0:
        return []
    left, oldest_first = sum(lengths), iter(lengths)

    def is_too_much(_: SegmentFacts, __: CompletionFacts) -> bool:
        nonlocal left
        if left <= bytes_max:
            return False
        left -= next(oldest_first)
        return True

    return _purge(segments, is_too_much, truncated_only)


def _purge(
    segments: Sequence[S], is_expired: Callable[[SegmentFacts, CompletionFacts], bool], truncated_only: bool
) -> list[S]:
    purged: list[S] = []
    for segment, after in itertools.pairwise(segments):
        # The last completed one before those in progress stays, hence the look at the segment after.
        if segment.completion is None or after.completion is None:
            break
        if (truncated_only and not segment.is_truncated) or not is_expired(segment, segment.completion):
            break
        purged.append(segment)
    return purged


def _first_dlsn(segment: SegmentFacts) -> DLSN:
    return DLSN(segment.lssn, EntryId(0), SlotId(0))
