"""Damaged: bytes that do not mean what they should."""

from quire.errors.base import Outcome, QuireError


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


class DamagedColdFile(Damaged):
    """A file in cold storage is missing, or its bytes are not those that were archived."""

    hint = "Bring the file back from a copy of the cold storage. Nothing was changed."


class ChecksumMismatch(Damaged):
    """Records did not arrive as they were sent. Nothing was stored."""

    retryable = True
    hint = "Send them again. If it happens again, look for what changes bytes on their way."


class DamagedIndex(Damaged):
    """A bookie's index does not read, or lacks what was made durable in it. What it does not list may still exist."""

    hint = "Restore the bookie's folders together, or empty them and let autorecovery copy its entries from the others."


class ProtocolViolation(Damaged):
    """A peer sent bytes that the bookie protocol does not know. Nothing after them can be understood."""

    outcome = Outcome.UNKNOWN  # What the peer made of the requests under way cannot be learned from it any more.
    hint = "Close the connection. What was under way may have been done: send it again, unchanged, on a new one."
