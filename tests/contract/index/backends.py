"""Every implementation of `Index`, each with a folder that outlives the processes which open it."""

from pathlib import Path
from typing import Protocol

from quire.bookie.index import Index
from quire.bookie.rocks_index import RocksIndex
from quire.testing.memory_index import MemoryIndexFolder
from quire.testing.sim_index import SimIndexFolder
from quire.testing.sim_rng import SimRng

SMALL_MEMTABLE_BYTES = 64 << 10  # RocksDB's least: some thousand entries already reach files and are compacted.


class Backend(Protocol):
    def open(self, *, create: bool = True, position_min: int | None = None) -> Index: ...


class RocksBackend:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "index"

    def open(self, *, create: bool = True, position_min: int | None = None) -> Index:
        return RocksIndex.open(
            self.folder, create=create, position_min=position_min, memtable_bytes=SMALL_MEMTABLE_BYTES
        )


class SimBackend:
    def __init__(self, seed: int = 1) -> None:
        self.folder = SimIndexFolder(SimRng(seed))

    def open(self, *, create: bool = True, position_min: int | None = None) -> Index:
        return self.folder.open(create=create, position_min=position_min)


class MemoryBackend:
    def __init__(self) -> None:
        self.folder = MemoryIndexFolder()

    def open(self, *, create: bool = True, position_min: int | None = None) -> Index:
        return self.folder.open(create=create, position_min=position_min)
