"""Real bookies in the test's own loop, with admin APIs, and with disks that are as small as a test wants them.

Files are real. Only the answer to how much room is left is another: the size that the disk is said to have, without
what the bookie holds in entry logs. Journals come and go with every checkpoint, and are left out.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from typer.testing import CliRunner

from quire.bookie.admin.status import serve_admin
from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.garbage import GarbageSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.cli.main import app
from quire.metadata import Cluster, init_cluster, open_store, parse_uri
from quire.runtime import AsyncioClock, AsyncioNetwork, DiskUsage, Runtime, StrPath, SystemRng
from quire.stream.binding import binding_for, write_binding
from quire.stream.uri import parse_stream_uri
from quire.testing.memory_index import MemoryIndexFolder
from quire.testing.unsynced_disk import UnsyncedDisk
from quire.types import bookie_id

_STORAGE = StorageSettings(
    cache_bytes_max=256 << 10,  # What is in it comes on top when a disk is full.
    read_cache_bytes_max=1 << 20,
    ledgers_cached_max=1000,
    log_bytes_max=1 << 20,
    journal=JournalSettings(
        file_bytes_max=1 << 20, preallocate_bytes=64 << 10, group_bytes_max=256 << 10, queue_bytes_max=1 << 20
    ),
)


class SmallDisk(UnsyncedDisk):
    """Says that the folders with a given name are on disks of a given size."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, int] = {}

    async def usage(self, path: StrPath) -> DiskUsage:
        folder = next((each for each in self.sizes if os.fspath(path).startswith(each)), None)
        if folder is None:
            return await super().usage(path)
        held = sum(each.stat().st_size for each in Path(folder).rglob("*.log"))
        return DiskUsage(self.sizes[folder], max(0, self.sizes[folder] - held))


class SmallCluster:
    """Bookies that can be started and stopped, by number from 1 on."""

    def __init__(self, folder: Path, runtime: Runtime, disk: SmallDisk, cluster: Cluster) -> None:
        self.folder, self.disk = folder, disk
        self._runtime, self._cluster = runtime, cluster
        self.metadata = f"sqlite:{quote(str(folder / 'metadata.db'))}"
        self.uri = f"distributedlog+{self.metadata}/default"
        self.running: dict[int, Bookie] = {}
        self._indexes: dict[int, MemoryIndexFolder] = {}

    async def start(self, number: int, *, disk_bytes: int | None = None) -> Bookie:
        folders = BookieFolders(str(self.folder / f"bookie-{number}"), moves_with=str(self.folder))
        if disk_bytes is not None:
            self.disk.sizes[folders.data] = disk_bytes
        index = self._indexes.setdefault(number, MemoryIndexFolder())
        own = BookieSettings(
            folders,
            port=0,
            bookie_id=bookie_id(f"bookie-{number}"),
            checkpoint_interval_s=0.2,
            storage=_STORAGE,
            space=SpaceSettings(free_bytes_min=1 << 20, reserve_bytes=0, check_interval_s=0.05),
            garbage=GarbageSettings(
                interval_s=0.2, minor_interval_s=0.3, major_interval_s=0.3, moved_interval_s=0.3, free_bytes_min=0
            ),
        )
        bookie = Bookie(
            self._runtime,
            self._cluster,
            own,
            open_index=lambda position: index.open(create=position is None, position_min=position),
            serve_admin=serve_admin,
        )
        self.running[number] = await bookie.__aenter__()
        return bookie

    async def stop(self, number: int) -> None:
        await self.running.pop(number).__aexit__(None, None, None)

    def forget_index(self, number: int) -> None:
        """As if the disk had been emptied: the index of these bookies is in memory."""
        self._indexes.pop(number, None)

    async def run(self, *options: str) -> tuple[int, dict[str, Any]]:
        """A command on this cluster, with its answer."""
        done = await asyncio.to_thread(CliRunner().invoke, app, [*options, "--metadata", self.metadata, "--json"])
        assert done.output, done.exception
        return done.exit_code, json.loads(done.output)


@asynccontextmanager
async def small_cluster(folder: Path, *, bookies: int) -> AsyncIterator[SmallCluster]:
    folder.mkdir()
    disk = SmallDisk()
    runtime = Runtime(clock=AsyncioClock(), disk=disk, network=AsyncioNetwork(), rng=SystemRng())
    metadata = parse_uri(f"sqlite:{quote(str(folder / 'metadata.db'))}")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(disk.aclose)
        store = await stack.enter_async_context(open_store(metadata, runtime=runtime))
        cluster = await init_cluster(store, metadata, runtime)
        running = SmallCluster(folder, runtime, disk, cluster)
        namespace = parse_stream_uri(running.uri)
        await write_binding(store, namespace.path, binding_for(namespace), create=True)
        try:
            for number in range(1, bookies + 1):
                await running.start(number)
            yield running
        finally:
            for number in list(running.running):
                await running.stop(number)
