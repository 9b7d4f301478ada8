"""Decide what a bookie still accepts for one ledger: who has the key, and what a fence forbids. Sans-IO.

A ledger comes into being on a bookie with the first add, fence or explicit LAC, and with the master key presented then.
A fence is for ever: from the moment it is set no ordinary add is accepted, while recovery goes on writing the entries
it found. Whether a fence may be *answered* is another question: only once its record is durable, which the shell waits
for.

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


class LedgerGate:
    """The rules of one ledger on one bookie."""

    __slots__ = ("_master_key", "fenced")

    def __init__(self, master_key: bytes, *, fenced: bool = False) -> None:
        self._master_key = master_key
        self.fenced = fenced

    @property
    def master_key(self) -> bytes:
        return self._master_key

    def on_add(self, master_key: bytes, *, recovery: bool) -> Refusal | None:
        """None if the entry may be stored. A recovery add passes a fence, but not without the key."""
        if not hmac.compare_digest(master_key, self._master_key):  # Constant time: the key is a secret.
            return Refusal.WRONG_KEY
        return Refusal.FENCED if self.fenced and not recovery else None

    def on_fence(self, master_key: bytes) -> Refusal | None:
        """Set the fence, unless the key is wrong. Setting it again changes nothing."""
        if not hmac.compare_digest(master_key, self._master_key):
            return Refusal.WRONG_KEY
        self.fenced = True
        return None

    def on_explicit_lac(self, master_key: bytes) -> Refusal | None:
        """None if the explicit LAC may be stored. A fence does not forbid it: it adds no entry."""
        return None if hmac.compare_digest(master_key, self._master_key) else Refusal.WRONG_KEY
