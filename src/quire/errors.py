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
    │   ├── NoSuchEntry              a bookie has the ledger, and not this entry
    │   ├── LedgerFenced             another client recovers, or recovered, this ledger
    │   ├── LedgerClosed             the ledger is closed, or this handle of it is
    │   ├── AppendOutcomeUnknown     the ledger could not be written on; the entry may be in it
    │   ├── NotBound                 no ledger cluster is bound to the namespace
    │   ├── NoSuchStream, StreamExists
    │   ├── StreamSealed             the stream has ended; nothing can be appended any more
    │   ├── StreamOwned              another client holds the stream's lock
    │   ├── WriterFenced             another writer has taken over the stream
    │   ├── PositionTruncated        records at this position were truncated or purged
    │   ├── PositionInFuture         the stream has not come that far
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
    │   ├── ReaderIdle               nothing came for longer than the reader was told to wait
    │   └── DiskFull                 no room is left for what has to be written
    └── Damaged                  bytes that do not mean what they should
        ├── DamagedMetadata
        ├── EntriesUnknown           a bookie lost data and cannot tell what it had of this ledger
        ├── DamagedJournal           acknowledged entries in a bookie's journal cannot be read any more
        ├── DamagedEntry             an entry's digest or ids are not those it should have
        ├── DamagedIndex             a bookie's index lost something, or cannot be read
        └── ProtocolViolation        a peer sent what the bookie protocol does not know

`InvariantBroken` stands outside the tree, so that no retry loop can swallow a bug.
"""

import enum
from typing import ClassVar, NoReturn


class Outcome(enum.Enum):
    """What a failed call did to the log: callers need this more than the cause."""

    NOT_APPLIED = enum.auto()  # Nothing was stored; trying again cannot duplicate.
    UNKNOWN = enum.auto()  # It may be stored; read back before trying again.


class QuireError(Exception):
    """The root of everything that Quire raises on purpose."""

    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    hint: str = ""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.facts = facts  # Structured, so that logs and the RPC boundary need not parse prose.
        if hint:
            self.hint = hint


# --- The caller's mistake -------------------------------------------------------------------------------------


class CallerMistake(QuireError):
    """The call is wrong in itself; repeating it unchanged fails again."""


class InvalidArgument(CallerMistake):
    """A value is out of range or malformed."""


class InvalidUri(InvalidArgument):
    """A URI does not parse, or names something that its scheme cannot serve."""

    hint = "Write zk+hierarchical://host:2181;host2:2181/ledgers, etcd://host:2379/ledgers, sqlite:./m.db or memory:."


class InvalidPath(InvalidArgument):
    """A metadata path is not absolute, has empty, `.` or `..` parts, or contains forbidden characters."""

    hint = "Paths look like /ledgers/available: they start with one slash and no part is empty, '.' or '..'."


class InvalidName(InvalidArgument):
    """A bookie id or another name breaks the rules that Apache's programs enforce."""


class RequestTooLarge(CallerMistake):
    """More data, or more operations, than one metadata request may carry."""

    hint = "Metadata holds small facts: keep bulk data in ledgers, and split large transactions."


class DuplicateEntryId(CallerMistake):
    """An entry of this id was written before, or is being written."""

    hint = "Each entry id of an advanced ledger is used once."


class RecordTooLarge(CallerMistake):
    """A record, or a record set as a whole, is larger than one entry takes. Nothing was sent."""

    hint = "A record takes 1,040,364 bytes at most: split the payload, or keep it elsewhere and append where it is."


class TxidOutOfOrder(CallerMistake):
    """A record has a lower txid than one before it in its stream, or one that no record may have. Nothing was sent."""

    hint = "Use txids that never decrease, or none: then each record gets the time in milliseconds."


class HandleClosed(CallerMistake):
    """The writer or reader was closed before this call."""

    hint = "Use it inside its `async with` block."


class UnknownScheme(CallerMistake):
    """No installed package registered a metadata driver for this scheme."""


class MissingExtra(CallerMistake):
    """The driver is part of Quire, but the library that it needs is not installed."""


class StoreClosed(CallerMistake):
    """The store was closed before this call."""


# --- Refused by the state of the system -------------------------------------------------------------------------


class Refused(QuireError):
    """The call was understood and the present state forbids it."""


class NoSuchNode(Refused):
    """The metadata node, or the parent of the node to create, does not exist."""


class NodeExists(Refused):
    """A metadata node of this name exists already."""


class NodeNotEmpty(Refused):
    """A node with children cannot be deleted."""

    hint = "Delete its children first."


class ParentIsEphemeral(Refused):
    """An ephemeral node belongs to one session and cannot have children."""


class VersionConflict(Refused):
    """Another client wrote this node since it was read."""

    retryable = True
    hint = "Read the node again and decide anew from what it holds now."


class SessionExpired(Refused):
    """The store ended this client's session: its ephemeral nodes are gone, and this call was refused.

    The store handle starts a new session by itself, so calling again may succeed; whatever rested on the old
    session (locks, registrations) has to be acquired again first.
    """

    retryable = True
    hint = "Acquire again whatever the old session held, then retry."


class LockLost(Refused):
    """The session that held the lock ended; another client may hold it now."""

    hint = "Stop the protected work and acquire the lock again."


class NoSuchLedger(Refused):
    """No metadata is stored for this ledger id."""

    hint = "`quire ledger list` lists those there are."


class LedgerExists(Refused):
    """A ledger of this id exists already."""

    hint = "Choose another id, or none: then it gets one of its own."


class LedgerIdsExhausted(Refused):
    """The layout cannot name any more ledgers."""

    hint = "Use the hierarchical or longhierarchical layout: the flat layout ends at 2147483646 ledgers."


class NotInitialised(Refused):
    """The metadata store holds no cluster at this root."""


class AlreadyInitialised(Refused):
    """The metadata store holds a cluster at this root already."""


class LayoutMismatch(Refused):
    """The URI asks for another ledger layout than the one stored."""


class BookieRegistered(Refused):
    """Another live session is registered under the same bookie id."""

    hint = "Stop the other process, or give this bookie an id of its own."


class WrongDisk(Refused):
    """The directories that a bookie was given are not the ones that its cookie names: wrong, emptied, or exchanged."""


class FolderInUse(Refused):
    """Another live process works in the folder."""

    hint = "Stop that process first; two of them would destroy each other's data."


class FolderUnusable(Refused):
    """The folder cannot be worked in: it is not one, it may not be written, or its disk does not answer."""

    hint = "Name a folder that this user may write to."


class NoSuchEntry(Refused):
    """The bookie has nothing under this entry id."""


class LedgerFenced(Refused):
    """Another client is recovering this ledger, or has done so: this writer may never append to it again."""

    outcome = Outcome.UNKNOWN  # Recovery may adopt an entry that a single bookie had stored.
    hint = "Open a new writer. Retrying on this one cannot succeed."


class LedgerClosed(Refused):
    """The ledger is closed, or this handle of it is: nothing can be added any more."""

    hint = "Create a new ledger."


class AppendOutcomeUnknown(Refused):
    """The ledger could not be written on after the entry had been sent. It may be in the ledger, or not."""

    outcome = Outcome.UNKNOWN
    hint = "Open the ledger with recovery and look whether the entry is there; then go on in a new ledger."


class NotBound(Refused):
    """Neither the namespace nor a node above it says in which ledger cluster its streams are."""

    hint = "Bind it first: `bind_namespace`, or Apache's `dlog admin bind`."


class NoSuchStream(Refused):
    """The namespace has no stream of this name."""

    hint = "`quire stream list` lists those there are."


class StreamExists(Refused):
    """The namespace has a stream of this name already."""


class StreamSealed(Refused):
    """The stream has ended: its last record says that no other will follow."""

    hint = "Read it as long as you like; append to another stream."


class StreamOwned(Refused):
    """Another client holds the lock that was asked for, and did not give it up in time."""

    retryable = True
    hint = "Only one client at a time writes a stream. `owner` in `facts` says which one does."


class WriterFenced(Refused):
    """Another writer has taken over the stream. What was in flight may be in it."""

    outcome = Outcome.UNKNOWN
    hint = "Open a new writer if this client should write; it knows the last txid in the stream."


class PositionTruncated(Refused):
    """Records at, or behind, the reader's position were truncated or purged: going on would leave a gap."""

    hint = "Open a reader at 'earliest' to go on with what is left."


class PositionInFuture(Refused):
    """No record can be at this position yet: the stream has not come that far, or is another one."""

    hint = "Check that the position was read from this very stream, or open the reader at 'latest'."


class WrongPassword(Refused):
    """The master key presented is not the one that the ledger was made with, or the peer is not authenticated."""

    hint = "Use the password that the ledger was created with."


class BookieReadOnly(Refused):
    """The bookie takes no new entries: its disk is nearly full, or an operator decided so."""

    hint = "Write to another bookie. `quire bookie status` tells why this one is read-only."


# --- Unavailable for now ----------------------------------------------------------------------------------------


class Unavailable(QuireError):
    """Not possible now; the same call may succeed later."""

    retryable = True


class MetadataUnavailable(Unavailable):
    """The metadata store did not answer in time. Nothing was written."""

    hint = "Check that the servers named in the URI run and can be reached, then retry."


class MetadataOutcomeUnknown(Unavailable):
    """The connection broke, or the deadline passed, while a write was under way. It may have been stored."""

    outcome = Outcome.UNKNOWN
    hint = "Read the node before writing again."


class NotEnoughBookies(Unavailable):
    """Fewer bookies live, and are allowed, than the ledger needs."""

    hint = "Start more bookies, or ask for a smaller ensemble. `quire metadata show` lists those that live."


class RecoveryFailed(Unavailable):
    """Where the ledger ends could not be told. Its writer may be shut out by now; anybody may try again."""

    outcome = Outcome.UNKNOWN
    hint = "Bring back the bookies of the ledger's last ensemble, then open it again."


class BookieUnavailable(Unavailable):
    """The bookie cannot be reached. Nothing was sent to it."""

    hint = "Check that the bookie runs and that its address can be reached from here."


class BookieBusy(Unavailable):
    """The bookie's queues are full, and it refused."""

    hint = "Send less at a time, or give the cluster more bookies."


class BookieOutcomeUnknown(Unavailable):
    """The connection broke, or the deadline passed, before the answer to a request that was sent. It may be done."""

    outcome = Outcome.UNKNOWN
    hint = "Send the same bytes again, or replace the bookie: adding an entry twice changes nothing."


class BookieFailed(Unavailable):
    """The bookie could not read or write its disks, or could not make sense of the request."""

    outcome = Outcome.UNKNOWN
    hint = "Use another bookie, and look at this one's log."


class AppendCancelled(Unavailable):
    """Records before these failed, or no segment could be begun for them: they were never sent."""

    hint = "Look what became of the records before them, then append these again."


class ReaderIdle(Unavailable):
    """No record came for longer than the reader was told to wait."""

    hint = "Look whether the stream still has a writer, then go on reading from the same position."


class DiskFull(Unavailable):
    """No room is left for what has to be written."""

    hint = "Free space on that disk, or move the folder to a larger one; then start again."


# --- Damaged data -----------------------------------------------------------------------------------------------


class Damaged(QuireError):
    """Bytes that do not mean what they should."""


class DamagedMetadata(Damaged):
    """Stored metadata does not parse, or breaks a rule that every reader relies on."""

    hint = "Nothing was changed. Run `quire metadata check` to see every damaged node."


class EntriesUnknown(Damaged):
    """The bookie lost part of its data and cannot tell what it had of this ledger. It may have had the entry."""

    hint = "Read from another bookie. Never take this for the end of the ledger."


class DamagedJournal(Damaged):
    """A part of a bookie's journal that had been written whole cannot be read: acknowledged entries may be lost."""

    hint = "Keep the journal files. The bookie cannot vouch for its open ledgers: recover them from other replicas."


class DamagedEntry(Damaged):
    """An entry or an explicit LAC is too short, fails its digest, or belongs to another ledger or entry id."""

    hint = "Read it from another bookie. If all replicas fail, check the ledger's digest type and password."


class DamagedIndex(Damaged):
    """A bookie's index does not read, or lacks what was made durable in it. What it does not list may still exist."""

    hint = "Restore the bookie's folders together, or empty them and let autorecovery copy its entries from the others."


class ProtocolViolation(Damaged):
    """A peer sent bytes that the bookie protocol does not know. Nothing after them can be understood."""

    outcome = Outcome.UNKNOWN  # What the peer made of the requests under way cannot be learned from it any more.
    hint = "Close the connection. What was under way may have been done: send it again, unchanged, on a new one."


# --- Bugs -------------------------------------------------------------------------------------------------------


class InvariantBroken(Exception):
    """A promise that the code makes to itself does not hold. Never caught by retry loops: this is a bug."""


def invariant(condition: bool, message: str, **facts: object) -> None:
    """Raise `InvariantBroken` unless `condition` holds. Stays on in production, also under `python -O`."""
    if not condition:
        _broken(message, facts)


def _broken(message: str, facts: dict[str, object]) -> NoReturn:
    detail = ", ".join(f"{name}={value!r}" for name, value in facts.items())
    raise InvariantBroken(f"{message} ({detail})" if detail else message)
