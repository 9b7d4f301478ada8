"""What clients and bookies say in version 3 of the protocol, as values.

One class for the content of each request and of each answer, and two envelopes. An answer's status stands in its
envelope only; the wire repeats it inside the content, and `v3` takes care of that.

The classes are slotted and not frozen: one is made for each frame, and freezing makes that four times as expensive.
Nobody changes them. Keys and entries stay out of `repr`, and so out of logs.
"""

import enum
from dataclasses import field
from typing import Final, TypeAlias

from quire.codec.wire.codes import Status
from quire.types import EntryId, LedgerId
from quire.values import dataclass

VERSION: Final = 3
HIGH_PRIORITY: Final = 100  # What Java clients send. Every priority above 0 means the same.
DEFERRED_SYNC: Final = 0x1  # In `AddRequest.write_flags`: acknowledge before the journal is synced.
TOTAL_DISK: Final = 0x1  # In `BookieInfoRequest.requested`.
FREE_DISK: Final = 0x2
AUTH_DISABLED_PLUGIN: Final = "AuthDisabledPlugin"  # The answer of a bookie that authenticates nobody.


class Operation(enum.IntEnum):
    """What a request asks for. 3, 4 and 12 have no content: a bookie refuses them with `EBADREQ`."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3
    RANGE_ADD_ENTRY = 4
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12


class ReadFlag(enum.IntEnum):
    """A read has one of them or none."""

    FENCE_LEDGER = 1
    ENTRY_PIGGYBACK = 2  # On a long poll: attach the entry after `previous_lac` once it is confirmed.


# --- Requests


@dataclass(slots=True)
class ReadRequest:
    """Entry -1 is the last one that the bookie has. Fencing needs the master key, other reads do not."""

    ledger_id: LedgerId
    entry_id: EntryId
    master_key: bytes | None = field(default=None, repr=False)
    previous_lac: EntryId | None = None
    timeout_ms: int | None = None
    flag: ReadFlag | None = None

    @property
    def is_long_poll(self) -> bool:
        """Whether to wait for the LAC to pass `previous_lac`. A read that fences never waits."""
        return self.previous_lac is not None and self.flag is not ReadFlag.FENCE_LEDGER


@dataclass(slots=True)
class AddRequest:
    """`body` is the whole entry, and what is stored has the ids in it; the two here are only repeated in the answer."""

    ledger_id: LedgerId
    entry_id: EntryId
    master_key: bytes = field(repr=False)
    body: bytes = field(repr=False)
    write_flags: int = 0
    recovery: bool = False


@dataclass(slots=True)
class WriteLacRequest:
    """`body` is a LAC packet, and the bookie goes by the LAC in it."""

    ledger_id: LedgerId
    lac: EntryId
    master_key: bytes = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(slots=True)
class ReadLacRequest:
    ledger_id: LedgerId


@dataclass(slots=True)
class BookieInfoRequest:
    requested: int | None = TOTAL_DISK | FREE_DISK


@dataclass(slots=True)
class StartTlsRequest:
    pass


@dataclass(slots=True)
class ForceLedgerRequest:
    ledger_id: LedgerId


@dataclass(slots=True)
class ListEntriesRequest:
    ledger_id: LedgerId


# --- Both ways


@dataclass(slots=True)
class AuthMessage:
    """One step of whatever exchange the plugin does. Also the content of version 2's packet."""

    plugin: str
    payload: bytes = field(default=b"", repr=False)


# --- Answers


@dataclass(slots=True)
class ReadResponse:
    """`entry_id` is that of the request; only a long poll that attaches an entry says here which one."""

    ledger_id: LedgerId
    entry_id: EntryId
    body: bytes | None = field(default=None, repr=False)
    max_lac: EntryId | None = None
    lac_updated_ms: int | None = None


@dataclass(slots=True)
class AddResponse:
    ledger_id: LedgerId
    entry_id: EntryId


@dataclass(slots=True)
class WriteLacResponse:
    ledger_id: LedgerId


@dataclass(slots=True)
class ReadLacResponse:
    """The LAC packet last written, and the last entry on this bookie, whose header holds a LAC as well."""

    ledger_id: LedgerId
    lac_body: bytes | None = field(default=None, repr=False)
    last_entry_body: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class BookieInfoResponse:
    """None for what was not asked."""

    total_disk_bytes: int | None = None
    free_disk_bytes: int | None = None


@dataclass(slots=True)
class StartTlsResponse:
    pass


@dataclass(slots=True)
class ForceLedgerResponse:
    ledger_id: LedgerId


@dataclass(slots=True)
class ListEntriesResponse:
    """`availability` is what `quire.codec.wire.availability` reads and writes."""

    ledger_id: LedgerId
    availability: bytes | None = field(default=None, repr=False)


# --- Envelopes

RequestContent: TypeAlias = (
    ReadRequest
    | AddRequest
    | AuthMessage
    | WriteLacRequest
    | ReadLacRequest
    | BookieInfoRequest
    | StartTlsRequest
    | ForceLedgerRequest
    | ListEntriesRequest
)
ResponseContent: TypeAlias = (
    ReadResponse
    | AddResponse
    | AuthMessage
    | WriteLacResponse
    | ReadLacResponse
    | BookieInfoResponse
    | StartTlsResponse
    | ForceLedgerResponse
    | ListEntriesResponse
)


@dataclass(slots=True)
class Request:
    """A request as it arrived.

    `content` is None where the operation has none, or where it is missing: answer with `EBADREQ`. A `version` other
    than 3 is to be answered with `EBADVERSION`.
    """

    txn_id: int
    operation: Operation
    content: RequestContent | None
    priority: int = 0
    version: int = VERSION


@dataclass(slots=True)
class Response:
    """An answer as it arrived. `content` is None in some refusals, and never with `EOK`."""

    txn_id: int
    operation: Operation
    status: Status
    content: ResponseContent | None
