"""Random commits, moves, fences, restarts and crashes do what a few dictionaries do."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.bookie.index import Index, LocationMove, Operation, PutLedger, PutLocations
from quire.codec.entry_log import Location
from quire.types import EntryId, LedgerId
from tests.contract.index.backends import Backend, RocksBackend, SimBackend
from tests.contract.index.model import Model, entry_ids, ledger_ids, locations, moves, observed, operations

LONG = bool(os.environ.get("QUIRE_TEST_LONG"))


class IndexMachine(RuleBasedStateMachine):
    """`history[0]` is durable for certain; the commits after it may be lost in a crash, the newest first."""

    backend: Backend
    index: Index

    def __init__(self) -> None:
        super().__init__()
        self.history = [Model()]
        self.position_synced = 0

    @property
    def model(self) -> Model:
        return self.history[-1]

    def committed(self, *done: Operation, sync: bool) -> None:
        model = self.model.copy()
        for operation in done:
            model.apply(operation)
        self.history.append(model)
        if sync:
            self.history = [model]
            self.position_synced = self.index.position

    @rule(done=st.lists(operations, max_size=5), sync=st.booleans())
    def commit(self, done: list[Operation], sync: bool) -> None:
        before = self.index.position
        position = self.index.commit(*done, sync=sync)
        assert position == self.index.position >= before
        self.committed(*done, sync=sync)

    @rule()
    def sync(self) -> None:
        assert self.index.sync() == self.index.position
        self.committed(sync=True)

    @rule(asked=st.lists(moves, max_size=4), pick=st.integers(0, 100), new=locations, sync=st.booleans())
    def replace_locations(self, asked: list[LocationMove], pick: int, new: Location, sync: bool) -> None:
        """Moves drawn at random are hardly ever of an entry that is there, so one of those is put first."""
        known = sorted(self.model.entries.items())
        if known:
            (ledger_id, entry_id), old = known[pick % len(known)]
            asked = [LocationMove(ledger_id, entry_id, old, new), *asked]
        now, held = self.model.copy(), []
        for move in asked:
            if now.entries.get((move.ledger_id, move.entry_id)) == move.old:
                held.append(PutLocations([(move.ledger_id, move.entry_id, move.new)]))
                now.apply(held[-1])
        assert self.index.replace_locations(asked, sync=sync) == len(held)
        self.committed(*held, sync=sync)

    @rule(ledger_id=ledger_ids, sync=st.booleans())
    def set_fenced(self, ledger_id: LedgerId, sync: bool) -> None:
        known = self.model.ledgers.get(ledger_id)
        fenced = None if known is None else replace(known, fenced=True)
        assert self.index.set_fenced(ledger_id, sync=sync) == fenced
        if fenced is not None:
            self.committed(PutLedger(ledger_id, fenced), sync=sync)

    @rule(ledger_id=ledger_ids, first=entry_ids, last=st.none() | entry_ids, limit=st.integers(1, 4))
    def read_a_range(self, ledger_id: LedgerId, first: EntryId, last: EntryId | None, limit: int) -> None:
        inside = sorted(
            (entry_id, location)
            for (owner, entry_id), location in self.model.entries.items()
            if owner == ledger_id and first <= entry_id and (last is None or entry_id <= last)
        )
        assert self.index.locations(ledger_id, first, last, limit=limit) == inside[:limit]

    @rule()
    def restart(self) -> None:
        position = self.index.position
        self.index.close()
        self.index = self.backend.open(create=False, position_min=position)
        self.committed(sync=True)  # Closing syncs.

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        assert observed(self.index) == self.model.expected()

    def teardown(self) -> None:
        self.index.close()


class RocksMachine(IndexMachine):
    @initialize()
    def begin(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.backend = RocksBackend(Path(self.directory.name))
        self.index = self.backend.open()

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


class SimMachine(IndexMachine):
    backend: SimBackend

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.backend = SimBackend(seed)
        self.index = self.backend.open()

    @rule()
    def kill(self) -> None:
        self.backend.folder.kill()
        self.index = self.backend.open(create=False, position_min=self.position_synced)

    @rule()
    def crash(self) -> None:
        self.backend.folder.crash()
        self.index = self.backend.open(create=False, position_min=self.position_synced)
        found = observed(self.index)
        left = [model for model in self.history if model.expected() == found]
        assert left, "what is left after the crash is no prefix of what was committed, or lacks what was synced"
        self.history = [left[-1]]
        self.position_synced = self.index.position


TestRocksIndex = RocksMachine.TestCase
TestRocksIndex.settings = settings(
    max_examples=400 if LONG else 40,
    stateful_step_count=50 if LONG else 20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestSimIndex = SimMachine.TestCase
TestSimIndex.settings = settings(
    max_examples=1000 if LONG else 60,
    stateful_step_count=50 if LONG else 25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
