"""The immutable values that every layer passes around: ids, places in streams, quorums, ensembles, ledger metadata.

Ids are `NewType`s so that a ledger id cannot stand where an entry id belongs. Things with parts are frozen and check
their own rules on construction, so a value that exists is a value that Apache's readers accept.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType, Self

from quire.errors import InvalidArgument, InvalidName
from quire.values import dataclass

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)
Lssn = NewType("Lssn", int)  # Log segment sequence number: 1, 2, 3… along a stream.
SlotId = NewType("SlotId", int)  # Where a record is in its entry, counted from 0.

LEDGER_ID_MAX: Final = LedgerId(2**63 - 1)
NO_ENTRY: Final = EntryId(-1)  # The last entry id, or the LAC, of a ledger without entries.

# Apache's pattern has an accidental range from `:` to `_`; ids that it lets through must stay readable for us.
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+", re.ASCII)
_DLSN = re.compile(r"(-?\d{1,19}):(-?\d{1,19}):(-?\d{1,19})", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64 = range(-(2**63), 2**63)


class DLSN(NamedTuple):
    """The place of a record in its stream. Places compare in the stream's order.

    A tuple, since readers make one for each record.
    """

    lssn: Lssn
    entry_id: EntryId
    slot_id: SlotId

    @classmethod
    def parse(cls, text: str) -> Self:
        """The place that `str` shows as `3:17:0`: LSSN, entry, slot. Raises `InvalidArgument`."""
        match = _DLSN.fullmatch(text)
        if match is None:
            raise InvalidArgument(
                f"{text!r} is no place in a stream", hint="Write LSSN:entry:slot, such as 3:17:0.", text=text
            )
        return cls(Lssn(int(match[1])), EntryId(int(match[2])), SlotId(int(match[3])))

    def __str__(self) -> str:
        return f"{self.lssn}:{self.entry_id}:{self.slot_id}"

    def next_slot(self) -> "DLSN":
        """The least place behind this one, whether or not a record is there."""
        return DLSN(self.lssn, self.entry_id, SlotId(self.slot_id + 1))

    def previous_slot(self) -> "DLSN":
        """The place before this one in its entry. Slot -1 is before an entry's first record."""
        return DLSN(self.lssn, self.entry_id, SlotId(self.slot_id - 1))

    def next_entry(self) -> "DLSN":
        """The first place of the entry after this one."""
        return DLSN(self.lssn, EntryId(self.entry_id + 1), SlotId(0))

    def next_segment(self) -> "DLSN":
        """The first place of the segment after this one."""
        return DLSN(Lssn(self.lssn + 1), EntryId(0), SlotId(0))


INITIAL_DLSN: Final = DLSN(Lssn(1), EntryId(0), SlotId(0))  # Of the first record of a stream.
BEFORE_INITIAL_DLSN: Final = INITIAL_DLSN.previous_slot()  # Apache's lower bound that is not itself included.
INVALID_DLSN: Final = DLSN(Lssn(0), EntryId(-1), SlotId(-1))  # Apache's "no place"; below every real one.


class ProducerRun(NamedTuple):
    """Where records of a producer are that follow each other in one entry. A producer counts its records from 1."""

    first_seq: int
    records: int
    place: DLSN

    @property
    def end_seq(self) -> int:
        return self.first_seq + self.records


class ProducerFacts(NamedTuple):
    """What the owner of a stream knows of one producer."""

    producer: bytes
    last_seq: int
    seen_ms: int
    runs: tuple[ProducerRun, ...]


def bookie_id(text: str) -> BookieId:
    """Check that `text` can name a bookie, for Java clients too. Raises `InvalidName`."""
    if not _BOOKIE_ID.fullmatch(text):
        raise InvalidName(
            f"{text!r} cannot be a bookie id",
            hint="Use host:port, or letters, digits, '-', '.' and ':'; no '/', ',', '+' or spaces.",
            bookie_id=text,
        )
    if text.lower() == "readonly":
        raise InvalidName(
            f"{text!r} cannot be a bookie id: the metadata tree uses that name itself",
            hint="Choose another id.",
            bookie_id=text,
        )
    return BookieId(text)


def ledger_id(number: int) -> LedgerId:
    """Check that `number` can name a ledger: 0 to 2^63-1. Raises `InvalidArgument`."""
    if not 0 <= number <= LEDGER_ID_MAX:
        raise InvalidArgument(
            f"{number} cannot be a ledger id", hint="Ledger ids run from 0 to 9223372036854775807.", ledger_id=number
        )
    return LedgerId(number)


def plain_fields(value: "DataclassInstance") -> tuple[Any, ...]:
    """The fields of a value as its class takes them, for pickling: a read-only mapping cannot be pickled itself."""
    found = (getattr(value, each.name) for each in fields(value))
    return tuple(dict(each) if isinstance(each, MappingProxyType) else each for each in found)


class DigestType(enum.Enum):
    """How an entry's checksum is made. The values are Apache's numbers in stored metadata."""

    CRC32 = 1
    MAC = 2  # Spelled HMAC in stored metadata, MAC in Apache's API.
    CRC32C = 3
    DUMMY = 4


class LedgerState(enum.Enum):
    """Where a ledger is in its life. The values are Apache's numbers in stored metadata."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many bookies a ledger is spread over, get each entry, and must acknowledge it."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 0 or self.write < 1:
            raise InvalidArgument(
                f"ensemble {self.ensemble}, write quorum {self.write}, ack quorum {self.ack} do not fit together",
                hint="The ensemble must be at least the write quorum, and that at least the ack quorum.",
                quorum=(self.ensemble, self.write, self.ack),
            )


@dataclass(frozen=True, slots=True)
class Fragment:
    """The bookies that hold a ledger's entries from `first_entry_id` up to the next fragment."""

    first_entry_id: EntryId
    bookies: tuple[BookieId, ...]

    def __post_init__(self) -> None:
        for bookie in self.bookies:
            bookie_id(bookie)  # One illegal id would make the ledger unreadable for Java clients.


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """What the metadata store says of one ledger. The ledger's id is not in it: the path says that.

    `format_version` is kept on every update, as Apache's clients do: nobody upgrades a ledger in place.
    `ctime_ms` is None when the creation time is not stored in the ledger's own metadata.
    `password` and `digest` are both None only for ledgers of version 1, or of writers before passwords were stored.
    `ctoken` tells a creator whose answer was lost that the stored ledger is its own; every update writes 0.
    """

    quorum: Quorum
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: EntryId = NO_ENTRY  # Meaningful when CLOSED.
    length: int = 0  # Payload bytes; meaningful when CLOSED.
    digest: DigestType | None = DigestType.CRC32C
    password: bytes | None = field(default=b"", repr=False)  # Kept out of logs and error messages.
    ctime_ms: int | None = None
    custom: Mapping[str, bytes] = field(default_factory=dict)
    ctoken: int = 0
    format_version: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom", MappingProxyType(dict(self.custom)))
        problem = self._problem()
        if problem:
            raise InvalidArgument(f"ledger metadata is inconsistent: {problem}")

    def _problem(self) -> str | None:
        if not self.fragments:
            return "it has no fragment"
        previous: int = -1
        for fragment in self.fragments:
            if fragment.first_entry_id <= previous:
                return f"fragment {fragment.first_entry_id} does not come after {previous}"
            previous = fragment.first_entry_id
            if len(fragment.bookies) != self.quorum.ensemble:
                return (
                    f"fragment {fragment.first_entry_id} has {len(fragment.bookies)} bookies, "
                    f"the ensemble size is {self.quorum.ensemble}"
                )
        if (self.password is None) != (self.digest is None):
            return "password and digest type must be stored together"
        if self.format_version not in (1, 2, 3):
            return f"format version {self.format_version} does not exist"
        if self.state is LedgerState.CLOSED and (self.last_entry_id < NO_ENTRY or self.length < 0):
            return f"closed at entry {self.last_entry_id} with length {self.length}"
        return self._storage_problem()

    def _storage_problem(self) -> str | None:
        """What the stored forms cannot hold: they have 64 bits for a number, and UTF-8 for text."""
        for name, number in (
            ("first entry id", self.fragments[-1].first_entry_id),
            ("last entry id", self.last_entry_id),
            ("length", self.length),
            ("creation time", self.ctime_ms or 0),
            ("creation token", self.ctoken),
        ):
            if number not in _INT64:
                return f"{name} {number} does not fit into 64 bits"
        for key in self.custom:
            if _SURROGATE.search(key):
                return f"custom metadata key {key!r} is not valid text"
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), plain_fields(self)

    def __hash__(self) -> int:
        return hash((self.quorum, self.fragments, self.state, self.last_entry_id, self.length, self.ctoken))

    def ensemble_at(self, entry_id: EntryId) -> tuple[BookieId, ...]:
        """The bookies responsible for `entry_id`: the fragment with the largest first entry id not above it."""
        for fragment in reversed(self.fragments):
            if fragment.first_entry_id <= entry_id:
                return fragment.bookies
        return self.fragments[0].bookies

    def updated(self, **changes: object) -> Self:
        """A changed copy, as an update writes it: same format version, creation token cleared."""
        return replace(self, **{"ctoken": 0, **changes})  # type: ignore[arg-type]
