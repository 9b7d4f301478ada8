"""Decide what a bookie still accepts for one ledger: who has the key, and what a fence forbids. Sans-IO.

A ledger comes into being on a bookie with the first add, fence or explicit LAC, and with the master key presented then.
A fence is for ever: from the moment it is set no ordinary add is accepted, while recovery goes on writing the entries
it found. Whether a fence may be *answered* is another question: only once its record is durable, which the shell waits
for.

A ledger is in limbo when the bookie lost part of its data and cannot tell whether a fence was among it. Until that is
settled it takes no ordinary adds: the writer may have been shut out before. That is no fence. To the writer the bookie
has failed: it replaces it, which the metadata allows only if the ledger is still open.

Invariants, of those in the ledger protocol:
  FencedStaysFenced   no event undoes a fence.
  KeyOrNothing        nothing changes for a caller without the ledger's key, and it is told so before anything else.
"""

import enum
import hmac


class Refusal(enum.Enum):
    """Why a bookie does not do what it was asked to do to a ledger."""

    WRONG_KEY = enum.auto()
    FENCED = enum.auto()
    IN_LIMBO = enum.auto()  # It may have been fenced, and nobody knows any more.
    GONE = enum.auto()  # It was fenced and then deleted here: nothing may bring it back but a recovery.


class LedgerGate:
    """The rules of one ledger on one bookie."""

    __slots__ = ("_master_key", "fenced", "limbo")

    def __init__(self, master_key: bytes, *, fenced: bool = False, limbo: bool = False) -> None:
        self._master_key = master_key
        self.fenced = fenced
        self.limbo = limbo

    @property
    def master_key(self) -> bytes:
        return self._master_key

    def on_add(self, master_key: bytes, *, recovery: bool) -> Refusal | None:
        """None if the entry may be stored. A recovery add passes a fence, but not without the key."""
        if not hmac.compare_digest(master_key, self._master_key):  # Constant time: the key is a secret.
            return Refusal.WRONG_KEY
        if recovery:
            return None
        if self.fenced:
            return Refusal.FENCED
        return Refusal.IN_LIMBO if self.limbo else None

    def on_fence(self, master_key: bytes) -> Refusal | None:
        """Set the fence, unless the key is wrong. Setting it again changes nothing."""
        if not hmac.compare_digest(master_key, self._master_key):
            return Refusal.WRONG_KEY
        self.fenced = True
        return None

    def on_explicit_lac(self, master_key: bytes) -> Refusal | None:
        """None if the explicit LAC may be stored. A fence does not forbid it: it adds no entry."""
        return None if hmac.compare_digest(master_key, self._master_key) else Refusal.WRONG_KEY
