"""Refused: the state of the system says no."""

from quire.errors.base import Outcome, QuireError


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


class PortInUse(Refused):
    """A port that somebody asked for cannot be listened on."""

    hint = "Choose another port, or none: then any free one is taken."


class NotRunning(Refused):
    """No local cluster runs in the folder, or none at all."""

    hint = "Start one with `quire up`."


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


class SinkTaken(Refused):
    """A batch of this number or name is in the stream under the same sink id: from another query, or of other rows."""

    hint = "Give this query a `sinkId` of its own, or go on from the checkpoint of the query that used it so far."


class SinkFull(Refused):
    """A sink has so many batches with names that no new name can be kept; those that it has stay known."""

    hint = "Go on under another `sinkId`, and keep this one for batches that may come again."


class StagedGone(Refused):
    """A ledger that was to become a segment of a stream was deleted before: its batch was aborted, or took too long."""

    retryable = True
    hint = "Write the batch again. If batches take longer than the sweep waits, raise `stagedTtl`."


class PositionTruncated(Refused):
    """Records at, or behind, the reader's position were truncated or purged: going on would leave a gap."""

    hint = "Open a reader at 'earliest' to go on with what is left."


class PositionInFuture(Refused):
    """No record can be at this position yet: the stream has not come that far, or is another one."""

    hint = "Check that the position was read from this very stream, or open the reader at 'latest'."


class NotOwner(Refused):
    """The stream belongs to another proxy. `proxy` in `facts` says which one, if it is known."""

    retryable = True
    hint = "Ask that proxy. Clients of `quire.connect` do so by themselves."


class NoSuchColdObject(Refused):
    """Cold storage has no object of this name."""

    hint = "Check the address of the cold storage. Somebody may have deleted the object."


class ColdObjectExists(Refused):
    """Cold storage has an object of this name already. It was left as it is."""

    hint = "Names of archived segments are never used twice: archive it again, under a new one."


class NotAuthenticated(Refused):
    """The caller did not say, or could not prove, who it is."""

    hint = "Send a client id, and a token if the proxy asks for one."


class RequestDenied(Refused):
    """The caller may not do this."""

    hint = "Ask whoever runs the proxies for the permission."


class WrongPassword(Refused):
    """The master key presented is not the one that the ledger was made with, or the peer is not authenticated."""

    hint = "Use the password that the ledger was created with."


class BookieReadOnly(Refused):
    """The bookie takes no new entries: its disk is nearly full, or an operator decided so."""

    hint = "Write to another bookie. `quire bookie status` tells why this one is read-only."
