"""The write cache against a plain model: an entry is found until its checkpoint has ended, and every byte counted."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quire.bookie.write_cache import WriteCache
from quire.errors import InvariantBroken
from quire.types import EntryId, LedgerId

LEDGERS = st.integers(0, 2).map(LedgerId)
ENTRIES = st.integers(0, 4).map(EntryId)
Bodies = dict[tuple[LedgerId, EntryId], bytes]


class WriteCacheModel(RuleBasedStateMachine):
    """What waits, and what a checkpoint is writing."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = WriteCache()
        self.waiting: Bodies = {}
        self.flushing: Bodies = {}
        self.is_flushing = False

    @rule(ledger_id=LEDGERS, entry_id=ENTRIES, body=st.binary(max_size=9))
    def put(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        self.cache.put(ledger_id, entry_id, body)
        self.waiting[ledger_id, entry_id] = body

    @precondition(lambda self: not self.is_flushing)
    @rule()
    def begin_flush(self) -> None:
        entries = self.cache.begin_flush()
        assert [(ledger_id, entry_id, bytes(body)) for ledger_id, entry_id, body in entries] == [
            (*ids, body) for ids, body in sorted(self.waiting.items())
        ]
        self.flushing, self.waiting = self.waiting, {}
        self.is_flushing = True

    @precondition(lambda self: self.is_flushing)
    @rule()
    def end_flush(self) -> None:
        self.cache.end_flush()
        self.flushing, self.is_flushing = {}, False

    @precondition(lambda self: not self.is_flushing)
    @rule(ledger_id=LEDGERS)
    def forget(self, ledger_id: LedgerId) -> None:
        """Never while a checkpoint is under way: both hold the same lock."""
        self.cache.forget(ledger_id)
        self.waiting = {ids: body for ids, body in self.waiting.items() if ids[0] != ledger_id}

    @rule(ledger_id=LEDGERS, entry_id=ENTRIES)
    def get(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        expected = {**self.flushing, **self.waiting}.get((ledger_id, entry_id))
        assert self.cache.get(ledger_id, entry_id) == expected

    @rule(ledger_id=LEDGERS)
    def entry_ids(self, ledger_id: LedgerId) -> None:
        both = {**self.flushing, **self.waiting}
        assert self.cache.entry_ids(ledger_id) == sorted(entry for ledger, entry in both if ledger == ledger_id)

    @invariant()
    def every_byte_is_counted(self) -> None:
        assert (self.cache.active_bytes, self.cache.flushing_bytes) == (size(self.waiting), size(self.flushing))
        assert self.cache.total_bytes == size(self.waiting) + size(self.flushing)
        assert bool(self.cache) == bool(self.waiting)
        assert {*self.cache.ledgers} == {ledger_id for ledger_id, _ in (*self.waiting, *self.flushing)}


def size(bodies: Bodies) -> int:
    return sum(map(len, bodies.values()))


TestAgainstModel = WriteCacheModel.TestCase
TestAgainstModel.settings = settings(deadline=None, max_examples=30, stateful_step_count=20)


def test_a_checkpoint_cannot_begin_where_another_was_given_up() -> None:
    """It would take the place of what the first one held, which nobody has written."""
    cache = WriteCache()
    cache.put(LedgerId(1), EntryId(0), b"first")
    cache.begin_flush()
    cache.put(LedgerId(1), EntryId(1), b"second")
    with pytest.raises(InvariantBroken, match="given up"):
        cache.begin_flush()
    assert cache.get(LedgerId(1), EntryId(0)) == b"first"
    assert cache.get(LedgerId(1), EntryId(1)) == b"second"
