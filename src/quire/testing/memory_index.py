"""A bookie's index in memory, for bookies of real threads that live no longer than their process.

The simulated index, one call at a time: RocksDB takes longer to open than all the rest of a bookie, and small tests
never have more entries than fit into a dictionary.
"""

import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Self, TypeVar

from quire.testing.sim_index import SimIndex, SimIndexFolder
from quire.testing.sim_rng import SimRng

P = ParamSpec("P")
T = TypeVar("T")


class MemoryIndexFolder:
    """What is left of the index when its bookie stops."""

    def __init__(self) -> None:
        self._folder = SimIndexFolder(SimRng(0))  # Chance only has a say in crashes, and there are none.
        self._lock = threading.Lock()

    def open(self, *, create: bool, position_min: int | None = None) -> "MemoryIndex":
        """As `RocksIndex.open`."""
        with self._lock:
            return MemoryIndex(self._folder.open(create=create, position_min=position_min), self._lock)


def _one_at_a_time(
    method: Callable[Concatenate[SimIndex, P], T],
) -> Callable[Concatenate["MemoryIndex", P], T]:
    def call(self: "MemoryIndex", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            return method(self.index, *args, **kwargs)

    return call


class MemoryIndex:
    """An open index, made by `MemoryIndexFolder.open`. Any thread may use it."""

    def __init__(self, index: SimIndex, lock: threading.Lock) -> None:
        self.index, self.lock = index, lock

    location = _one_at_a_time(SimIndex.location)
    locations = _one_at_a_time(SimIndex.locations)
    last_entry = _one_at_a_time(SimIndex.last_entry)
    entry_ids = _one_at_a_time(SimIndex.entry_ids)
    ledger = _one_at_a_time(SimIndex.ledger)
    ledgers = _one_at_a_time(SimIndex.ledgers)
    tombstone = _one_at_a_time(SimIndex.tombstone)
    tombstones = _one_at_a_time(SimIndex.tombstones)
    mark = _one_at_a_time(SimIndex.mark)
    commit = _one_at_a_time(SimIndex.commit)
    sync = _one_at_a_time(SimIndex.sync)
    replace_locations = _one_at_a_time(SimIndex.replace_locations)
    set_fenced = _one_at_a_time(SimIndex.set_fenced)
    close = _one_at_a_time(SimIndex.close)

    @property
    def position(self) -> int:
        return self.index.position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
