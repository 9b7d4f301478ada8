"""Every error Quire raises, in one tree. Each answers: may I retry, did it happen, what do I do.

    QuireError
    ├── CallerMistake            the call itself is wrong; the same call will fail again
    │   ├── InvalidArgument          a value is out of range or malformed
    │   │   ├── InvalidUri               a metadata or log URI does not parse
    │   │   ├── InvalidPath              a metadata path has empty parts, `..`, control characters
    │   │   └── InvalidName              a bookie id (or another name) breaks its rules
    │   ├── RequestTooLarge          more than one metadata request may carry
    │   ├── DuplicateEntryId         an entry of this id was written before, or is being written
    │   ├── RecordTooLarge           a record, or a record set, is larger than an entry takes
    │   ├── TxidOutOfOrder           a record has a lower txid than one before it
    │   ├── HandleClosed             the writer or reader was closed before this call
    │   ├── UnknownScheme            no driver is registered for the URI's scheme
    │   ├── MissingExtra             the driver exists, the library it needs is not installed
    │   └── StoreClosed              the handle was closed before this call
    ├── Refused                  the state of the system says no
    │   ├── NoSuchNode               the metadata node, or its parent, is not there
    │   ├── NodeExists               it is there already
    │   ├── NodeNotEmpty             it has children and cannot be deleted
    │   ├── ParentIsEphemeral        a session's node cannot have children
    │   ├── VersionConflict          somebody else wrote first
    │   ├── SessionExpired           the store gave up this client's session; its ephemeral nodes are gone
    │   ├── LockLost                 the session that held the lock ended
    │   ├── NoSuchLedger, LedgerExists, LedgerIdsExhausted
    │   ├── NotInitialised, AlreadyInitialised, LayoutMismatch
    │   ├── BookieRegistered         another live process registered under the same bookie id
    │   ├── WrongDisk                a bookie's directories are not those that its cookie names
    │   ├── FolderInUse              another live process works in the same folder
    │   ├── FolderUnusable           the folder is none, or may not be written
    │   ├── PortInUse                another program listens on the port, or this user may not
    │   ├── NotRunning               no local cluster runs where one was expected
    │   ├── NoSuchEntry              a bookie has the ledger, and not this entry
    │   ├── LedgerFenced             another client recovers, or recovered, this ledger
    │   ├── LedgerClosed             the ledger is closed, or this handle of it is
    │   ├── AppendOutcomeUnknown     the ledger could not be written on; the entry may be in it
    │   ├── NotBound                 no ledger cluster is bound to the namespace
    │   ├── NoSuchStream, StreamExists
    │   ├── StreamSealed             the stream has ended; nothing can be appended any more
    │   ├── StreamOwned              another client holds the stream's lock
    │   ├── WriterFenced             another writer has taken over the stream
    │   ├── SinkTaken                another query has used the sink's id for its own batches
    │   ├── SinkFull                 no further name of a batch can be kept under the sink's id
    │   ├── StagedGone               a ledger that was to become a segment was deleted before
    │   ├── PositionTruncated        records at this position were truncated or purged
    │   ├── PositionInFuture         the stream has not come that far
    │   ├── NotOwner                 the stream belongs to another proxy
    │   ├── NoSuchColdObject         cold storage has no object of this name
    │   ├── ColdObjectExists         cold storage has one already
    │   ├── NotAuthenticated         the caller did not say, or prove, who it is
    │   ├── RequestDenied            the caller may not do this
    │   ├── WrongPassword            the master key is not the one the ledger was made with
    │   └── BookieReadOnly           the bookie takes no new entries
    ├── Unavailable              not now; retryable
    │   ├── MetadataUnavailable      the store did not answer in time; nothing was written
    │   ├── MetadataOutcomeUnknown   the answer to a write was lost; it may have happened
    │   ├── NotEnoughBookies         too few bookies live to keep a ledger's promises
    │   ├── RecoveryFailed           too few bookies answered to tell where the ledger ends
    │   ├── BookieUnavailable        the bookie cannot be reached; nothing was sent
    │   ├── BookieBusy               the bookie's queues are full; nothing was stored
    │   ├── BookieOutcomeUnknown     no answer came to a request that was sent; it may have happened
    │   ├── BookieFailed             the bookie could not read or write its disks
    │   ├── AppendCancelled          records before these failed, so these were not sent
    │   ├── ProxyUnreachable         the proxy cannot be reached; nothing was sent
    │   ├── ProxyOutcomeUnknown      no answer came from the proxy; the call may have happened
    │   ├── ProxyFailed              something went wrong inside the proxy
    │   ├── ProxyDraining            the proxy is being stopped
    │   ├── StreamUnavailable        the proxy cannot serve the stream now
    │   ├── TooManyStreams           the proxy takes no more streams
    │   ├── OverCapacity             a limit of requests or bytes is reached
    │   ├── ReaderIdle               nothing came for longer than the reader was told to wait
    │   ├── ColdUnavailable          cold storage cannot be reached, or did not answer in time
    │   ├── QueryFailed              Spark could not finish a query, or a job
    │   └── DiskFull                 no room is left for what has to be written
    └── Damaged                  bytes that do not mean what they should
        ├── DamagedMetadata
        ├── EntriesUnknown           a bookie lost data and cannot tell what it had of this ledger
        ├── DamagedJournal           acknowledged entries in a bookie's journal cannot be read any more
        ├── DamagedEntry             an entry's digest or ids are not those it should have
        ├── DamagedColdFile          a file in cold storage is not what was archived
        ├── ChecksumMismatch         records did not arrive as they were sent
        ├── DamagedIndex             a bookie's index lost something, or cannot be read
        └── ProtocolViolation        a peer sent what the bookie protocol does not know

`InvariantBroken` stands outside the tree, so that no retry loop can swallow a bug.
"""

from quire.errors.base import InvariantBroken, Outcome, QuireError, invariant
from quire.errors.damaged import (
    ChecksumMismatch,
    Damaged,
    DamagedColdFile,
    DamagedEntry,
    DamagedIndex,
    DamagedJournal,
    DamagedMetadata,
    EntriesUnknown,
    ProtocolViolation,
)
from quire.errors.mistakes import (
    CallerMistake,
    DuplicateEntryId,
    HandleClosed,
    InvalidArgument,
    InvalidName,
    InvalidPath,
    InvalidUri,
    MissingExtra,
    RecordTooLarge,
    RequestTooLarge,
    StoreClosed,
    TxidOutOfOrder,
    UnknownScheme,
)
from quire.errors.refused import (
    AlreadyInitialised,
    AppendOutcomeUnknown,
    BookieReadOnly,
    BookieRegistered,
    ColdObjectExists,
    FolderInUse,
    FolderUnusable,
    LayoutMismatch,
    LedgerClosed,
    LedgerExists,
    LedgerFenced,
    LedgerIdsExhausted,
    LockLost,
    NodeExists,
    NodeNotEmpty,
    NoSuchColdObject,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchNode,
    NoSuchStream,
    NotAuthenticated,
    NotBound,
    NotInitialised,
    NotOwner,
    NotRunning,
    ParentIsEphemeral,
    PortInUse,
    PositionInFuture,
    PositionTruncated,
    Refused,
    RequestDenied,
    SessionExpired,
    SinkFull,
    SinkTaken,
    StagedGone,
    StreamExists,
    StreamOwned,
    StreamSealed,
    VersionConflict,
    WriterFenced,
    WrongDisk,
    WrongPassword,
)
from quire.errors.unavailable import (
    AppendCancelled,
    BookieBusy,
    BookieFailed,
    BookieOutcomeUnknown,
    BookieUnavailable,
    ColdUnavailable,
    DiskFull,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NotEnoughBookies,
    OverCapacity,
    ProxyDraining,
    ProxyFailed,
    ProxyOutcomeUnknown,
    ProxyUnreachable,
    QueryFailed,
    ReaderIdle,
    RecoveryFailed,
    StreamUnavailable,
    TooManyStreams,
    Unavailable,
)

__all__ = [
    "AlreadyInitialised",
    "AppendCancelled",
    "AppendOutcomeUnknown",
    "BookieBusy",
    "BookieFailed",
    "BookieOutcomeUnknown",
    "BookieReadOnly",
    "BookieRegistered",
    "BookieUnavailable",
    "CallerMistake",
    "ChecksumMismatch",
    "ColdObjectExists",
    "ColdUnavailable",
    "Damaged",
    "DamagedColdFile",
    "DamagedEntry",
    "DamagedIndex",
    "DamagedJournal",
    "DamagedMetadata",
    "DiskFull",
    "DuplicateEntryId",
    "EntriesUnknown",
    "FolderInUse",
    "FolderUnusable",
    "HandleClosed",
    "InvalidArgument",
    "InvalidName",
    "InvalidPath",
    "InvalidUri",
    "InvariantBroken",
    "LayoutMismatch",
    "LedgerClosed",
    "LedgerExists",
    "LedgerFenced",
    "LedgerIdsExhausted",
    "LockLost",
    "MetadataOutcomeUnknown",
    "MetadataUnavailable",
    "MissingExtra",
    "NoSuchColdObject",
    "NoSuchEntry",
    "NoSuchLedger",
    "NoSuchNode",
    "NoSuchStream",
    "NodeExists",
    "NodeNotEmpty",
    "NotAuthenticated",
    "NotBound",
    "NotEnoughBookies",
    "NotInitialised",
    "NotOwner",
    "NotRunning",
    "Outcome",
    "OverCapacity",
    "ParentIsEphemeral",
    "PortInUse",
    "PositionInFuture",
    "PositionTruncated",
    "ProtocolViolation",
    "ProxyDraining",
    "ProxyFailed",
    "ProxyOutcomeUnknown",
    "ProxyUnreachable",
    "QueryFailed",
    "QuireError",
    "ReaderIdle",
    "RecordTooLarge",
    "RecoveryFailed",
    "Refused",
    "RequestDenied",
    "RequestTooLarge",
    "SessionExpired",
    "SinkFull",
    "SinkTaken",
    "StagedGone",
    "StoreClosed",
    "StreamExists",
    "StreamOwned",
    "StreamSealed",
    "StreamUnavailable",
    "TooManyStreams",
    "TxidOutOfOrder",
    "Unavailable",
    "UnknownScheme",
    "VersionConflict",
    "WriterFenced",
    "WrongDisk",
    "WrongPassword",
    "invariant",
]
