"""One segment of a stream: the name of its node, and what the node says.

    in progress   word;ledger;first txid;LSSN;min-active entry;slot;start sequence id
    completed     word;ledger;first txid;last txid;completed at;LSSN;last entry;slot;min-active entry;slot;start seq. id

All are signed decimals, without blanks or a line break. This is version 5. The earlier ones lack fields: version 4 the
start sequence id, 2 the min-active place too, 1 also LSSN and last place; version 3 differs from 4 only in the entries.
The word packs several numbers: the version in bits 0-7, truncation in 8-9, the region in 28-31, the count of records in
32-63.

Invariant: the number of fields alone tells a completed segment from one in progress, whatever its node is called.
A segment keeps the version that it was begun with: nobody upgrades one in place, and its entries could not follow.
"""

import enum
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final, Self

from quire.codec.damage import INT32_MAX, INT64_MAX, decimal, reading, shown, utf8
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId, ledger_id
from quire.values import dataclass

VERSION: Final = 5
VERSION_WITH_LSSN: Final = 2
VERSION_WITH_MIN_ACTIVE: Final = 3
VERSION_WITH_ENVELOPES: Final = 4
VERSION_WITH_SEQUENCE_ID: Final = 5

UNASSIGNED_LSSN: Final = Lssn(0)
UNASSIGNED_SEQUENCE_ID: Final = -1
REGION_MAX: Final = 15

_WHAT: Final = "segment"
_TRUNCATION_SHIFT: Final = 8
_REGION_SHIFT: Final = 28
_COUNT_SHIFT: Final = 32
_FIELDS_IN_PROGRESS: Final = {1: 3, 2: 4, 3: 6, 4: 6, 5: 7}
_FIELDS_COMPLETED: Final = {1: 5, 2: 8, 3: 10, 4: 10, 5: 11}

_IN_PROGRESS: Final = "inprogress_"
_COMPLETED: Final = "logrecs_"
# 16 hexadecimal digits at most would be a first txid: how the oldest writers named a segment in progress.
_LSSN_IN_NAME = re.compile("(?:inprogress_|logrecs_)([0-9]{18,19})", re.ASCII)
_LSSN_AMONG_SIX = re.compile("logrecs_[^_]*_[^_]*_([0-9]{1,19})_[^_]*_[^_]*", re.ASCII)


class Truncation(enum.Enum):
    """How much of a segment its readers may no longer see. The values are Apache's."""

    ACTIVE = 0
    PARTIALLY_TRUNCATED = 1  # What is before the min-active place.
    TRUNCATED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Completion:
    """What is known of a segment once nobody writes to it any more."""

    last_txid: int
    completed_at_ms: int
    record_count: int
    last_dlsn: DLSN  # Of the last record that counts; entry and slot -1 if there is none.


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment as stored. `completion` is None while it is in progress.

    Segments of version 1 have no LSSN: theirs is `UNASSIGNED_LSSN`, and they know no last place.
    """

    lssn: Lssn
    ledger_id: LedgerId
    first_txid: int  # No record of the segment has a lower one.
    min_active: DLSN
    completion: Completion | None = None
    start_sequence_id: int = UNASSIGNED_SEQUENCE_ID
    truncation: Truncation = Truncation.ACTIVE
    region: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        problem = self._number_problem() or self._version_problem()
        if problem:
            raise InvalidArgument(f"{problem} in a segment of version {self.version}", lssn=self.lssn)

    @classmethod
    def begun(cls, lssn: Lssn, ledger: LedgerId, first_txid: int, *, region: int = 0) -> Self:
        """A new segment, in progress."""
        return cls(lssn, ledger, first_txid, DLSN(lssn, EntryId(0), SlotId(0)), region=region)

    def completed(self, completion: Completion, *, start_sequence_id: int) -> Self:
        """Versions before 5 have no place for the start sequence id and go without."""
        if self.version < VERSION_WITH_SEQUENCE_ID:
            start_sequence_id = UNASSIGNED_SEQUENCE_ID
        return replace(self, completion=completion, start_sequence_id=start_sequence_id)

    def truncated(self) -> Self:
        """All of it is gone for readers. The min-active place stays as it is, as Apache's writers leave it."""
        return replace(self, truncation=Truncation.TRUNCATED)

    def truncated_before(self, min_active: DLSN) -> Self:
        return replace(self, truncation=Truncation.PARTIALLY_TRUNCATED, min_active=min_active)

    @property
    def is_truncated(self) -> bool:
        return self.truncation is Truncation.TRUNCATED

    @property
    def is_partially_truncated(self) -> bool:
        return self.truncation is Truncation.PARTIALLY_TRUNCATED

    @property
    def is_enveloped(self) -> bool:
        """Whether its entries wear an envelope. Not stored: the version says it."""
        return self.version >= VERSION_WITH_ENVELOPES

    @property
    def keeps_truncation(self) -> bool:
        return self.version >= VERSION_WITH_LSSN

    @property
    def keeps_min_active(self) -> bool:
        return self.version >= VERSION_WITH_MIN_ACTIVE

    @property
    def keeps_sequence_id(self) -> bool:
        return self.version >= VERSION_WITH_SEQUENCE_ID

    @property
    def effective_start_sequence_id(self) -> int:
        """The sequence id of its first record. Far below zero while unknown, and still in the order of segments."""
        if self.start_sequence_id != UNASSIGNED_SEQUENCE_ID:
            return self.start_sequence_id
        return -(2**63) + (self.lssn << 32)

    def _number_problem(self) -> str | None:
        ledger_id(self.ledger_id)
        done = self.completion
        places = [("min-active", self.min_active), *([("last", done.last_dlsn)] if done else [])]
        for name, place in places:
            if place.lssn != self.lssn:
                return f"the {name} place {place} of another segment"
            if not (-1 <= place.entry_id <= INT64_MAX and -1 <= place.slot_id <= INT64_MAX):
                return f"the {name} place {place}"
        numbers = [self.first_txid, self.start_sequence_id, *([done.last_txid, done.completed_at_ms] if done else [])]
        for number in numbers:
            if not -INT64_MAX - 1 <= number <= INT64_MAX:
                return f"{number}, which does not fit into 64 bits,"
        if done and not 0 <= done.record_count <= INT32_MAX:
            return f"a count of {done.record_count} records"
        if not 0 <= self.lssn <= INT64_MAX:
            return f"LSSN {self.lssn}"
        return None

    def _version_problem(self) -> str | None:
        """What the segment's version has no field for would be lost without a word."""
        if self.version not in _FIELDS_COMPLETED:
            return "nothing can be stored"
        if not 0 <= self.region <= (REGION_MAX if self.version >= VERSION_WITH_LSSN else 0):
            return f"region {self.region}"
        if self.version < VERSION_WITH_LSSN and self.lssn != UNASSIGNED_LSSN:
            return f"LSSN {self.lssn}"
        if self.version < VERSION_WITH_LSSN and self.truncation is not Truncation.ACTIVE:
            return "truncation"
        if self.version < VERSION_WITH_LSSN and self.completion and self.completion.last_dlsn[1:] != (-1, -1):
            return f"the last place {self.completion.last_dlsn}"
        if self.version < VERSION_WITH_MIN_ACTIVE and self.min_active[1:] != (0, 0):
            return f"the min-active place {self.min_active}"
        if self.version < VERSION_WITH_SEQUENCE_ID and self.start_sequence_id != UNASSIGNED_SEQUENCE_ID:
            return f"start sequence id {self.start_sequence_id}"
        return None


# --- Contents


def encode_segment(segment: Segment) -> bytes:
    """The bytes of the segment's node, in the segment's own version."""
    done, version = segment.completion, segment.version
    word = version | segment.truncation.value << _TRUNCATION_SHIFT | segment.region << _REGION_SHIFT
    if done:
        word |= done.record_count << _COUNT_SHIFT
    numbers = [word, segment.ledger_id, segment.first_txid]
    if done:
        numbers += [done.last_txid, done.completed_at_ms]
    if version >= VERSION_WITH_LSSN:
        numbers += [segment.lssn, *(done.last_dlsn[1:] if done else ())]
    if version >= VERSION_WITH_MIN_ACTIVE:
        numbers += segment.min_active[1:]
    if version >= VERSION_WITH_SEQUENCE_ID:
        numbers.append(segment.start_sequence_id)
    return ";".join(map(str, numbers)).encode()


def decode_segment(data: bytes) -> Segment:
    """Raises `DamagedMetadata`. Bits of the word that mean nothing are ignored, as Apache's readers do."""
    texts = utf8(data, _WHAT).split(";")
    numbers = [decimal(text, f"{_WHAT}: field {index}") for index, text in enumerate(texts)]
    word = numbers[0]
    version = word & 0xFF
    if version not in _FIELDS_COMPLETED:
        raise DamagedMetadata(f"{_WHAT}: version {version} does not exist", version=version)
    is_completed = len(numbers) == _FIELDS_COMPLETED[version]
    if not is_completed and len(numbers) != _FIELDS_IN_PROGRESS[version]:
        raise DamagedMetadata(f"{_WHAT}: version {version} does not have {len(numbers)} fields: {shown(data)}")
    fields = iter(numbers[1:])  # Read in the order of the formats; what a version lacks has its default.
    ledger, first_txid = LedgerId(next(fields)), next(fields)
    last_txid, completed_at_ms = (next(fields), next(fields)) if is_completed else (0, 0)
    has_lssn = version >= VERSION_WITH_LSSN
    lssn = Lssn(next(fields)) if has_lssn else UNASSIGNED_LSSN
    last = _place(lssn, next(fields), next(fields)) if is_completed and has_lssn else _place(lssn, -1, -1)
    min_active = _place(lssn, next(fields), next(fields)) if version >= VERSION_WITH_MIN_ACTIVE else _place(lssn, 0, 0)
    with reading(_WHAT):
        return Segment(
            lssn,
            ledger,
            first_txid,
            min_active,
            completion=Completion(last_txid, completed_at_ms, word >> _COUNT_SHIFT, last) if is_completed else None,
            start_sequence_id=next(fields, UNASSIGNED_SEQUENCE_ID),
            truncation=Truncation(word >> _TRUNCATION_SHIFT & 3 if has_lssn else 0),
            region=word >> _REGION_SHIFT & REGION_MAX if has_lssn else 0,
            version=version,
        )


def _place(lssn: Lssn, entry_id: int, slot_id: int) -> DLSN:
    return DLSN(lssn, EntryId(entry_id), SlotId(slot_id))


# --- Names


def segment_name(segment: Segment) -> str:
    """What the node of a segment is called: `inprogress_000000000000000003`, then `logrecs_000000000000000003`."""
    return f"{_COMPLETED if segment.completion else _IN_PROGRESS}{segment.lssn:018d}"


def lssn_of_name(name: str) -> Lssn | None:
    """The LSSN in a segment's name; None for the names of old writers without one, and for what is no segment."""
    match = _LSSN_IN_NAME.fullmatch(name) or _LSSN_AMONG_SIX.fullmatch(name)
    return Lssn(int(match[1])) if match else None


def is_in_progress(name: str) -> bool:
    """Whether the node of this name is a segment in progress."""
    return name.startswith(_IN_PROGRESS)


def names_for_writer(names: Collection[str]) -> list[str]:
    """Which segments a writer has to read: all in progress, and the last completed one; of old names all."""
    completed = {name: lssn_of_name(name) for name in names if name.startswith(_COMPLETED)}
    last = max((lssn for lssn in completed.values() if lssn is not None), default=None)
    return [name for name in names if is_in_progress(name) or completed.get(name, UNASSIGNED_LSSN) in (None, last)]
