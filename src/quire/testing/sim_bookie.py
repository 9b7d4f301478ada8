"""A whole bookie in a simulation: the real one, on a simulated disk, index and network, with metadata in memory.

    async with sim_cluster(sim) as cluster:                       # metadata, and nothing else yet
        bookie = SimBookie(sim, "b1", cluster)
        await bookie.start()
        channel = await BookieChannel.connect(sim.host("client").runtime, "b1", bookie.port)
        ...
        await bookie.crash()                                      # power loss; or `stop()`
        await bookie.start()                                      # on what its disk has kept

A bookie that fails by itself, because its disk did, is to be found in `failure`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.errors import InvariantBroken
from quire.metadata import Cluster, init_cluster, open_cluster, open_store, parse_uri
from quire.testing.sim_index import SimIndexFolder
from quire.testing.sim_metadata import SimTree
from quire.testing.simulation import Simulation
from quire.types import bookie_id

# Small numbers, so that files roll, caches fill and checkpoints happen within a simulation.
SMALL_STORAGE = StorageSettings(
    cache_bytes_max=60_000,
    read_cache_bytes_max=20_000,
    ledgers_cached_max=3,
    log_bytes_max=40_000,
    journal=JournalSettings(
        file_bytes_max=20_000, preallocate_bytes=4_096, group_bytes_max=6_000, queue_bytes_max=30_000
    ),
)


@asynccontextmanager
async def sim_cluster(sim: Simulation, name: str = "simulated") -> AsyncIterator[Cluster]:
    """Metadata in memory, for all bookies and clients of a simulation while the block runs. See `sim_tree`."""
    uri, runtime = parse_uri(f"memory:{name}"), sim.host("metadata").runtime
    SimTree(name)  # Before the first handle, which would make a plain one.
    async with open_store(uri, runtime=runtime) as store:
        yield await init_cluster(store, uri, runtime)


class SimBookie:
    """One bookie and its host. Its disk and its index outlive the lives of the bookie."""

    def __init__(
        self, sim: Simulation, name: str, cluster: Cluster, *, journals: int = 1, settings: BookieSettings | None = None
    ) -> None:
        self.host, self._uri = sim.host(name), cluster.uri
        folders = BookieFolders("/data", tuple(f"/journal{number}" for number in range(journals)))
        settings = settings or BookieSettings(
            folders, checkpoint_interval_s=0.5, storage=SMALL_STORAGE, space=SpaceSettings(reserve_bytes=0)
        )
        self.settings = replace(settings, host=name, bookie_id=settings.bookie_id or bookie_id(name))
        self.index = SimIndexFolder(self.host.rng)
        self._life: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._bookie: Bookie | None = None
        self.failure: Exception | None = None

    @property
    def bookie(self) -> Bookie:
        """The one that runs now."""
        if self._bookie is None:
            raise InvariantBroken(f"bookie {self.host.name} does not run")
        return self._bookie

    @property
    def port(self) -> int:
        return self.bookie.address[1]

    @property
    def is_running(self) -> bool:
        return self._life is not None and not self._life.done()

    async def start(self) -> Bookie:
        """Return when it serves, or raise why it does not."""
        self._stopping = asyncio.Event()
        self.failure = None
        ready: asyncio.Future[Bookie] = asyncio.get_running_loop().create_future()
        self._life = self.host.spawn(self._live(ready), name=f"bookie {self.host.name}")
        either: list[asyncio.Future[Any]] = [self._life, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            self._life.result()
            raise InvariantBroken("a bookie ended before it was ready, without an error")
        self._bookie = ready.result()
        return self._bookie

    async def _live(self, ready: "asyncio.Future[Bookie]") -> None:
        runtime = self.host.runtime
        async with (
            open_cluster(self._uri, runtime=runtime) as cluster,
            Bookie(
                runtime,
                cluster,
                self.settings,
                open_index=lambda position: self.index.open(create=position is None, position_min=position),
            ) as bookie,
        ):
            ready.set_result(bookie)
            failed = asyncio.create_task(bookie.wait_failed())
            stopped = asyncio.create_task(self._stopping.wait())
            await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            failed.cancel()
            await asyncio.wait([failed, stopped])
            if not failed.cancelled():
                error = failed.exception()
                self.failure = error if isinstance(error, Exception) else None

    async def stop(self) -> None:
        """An orderly end. Raises what goes wrong at it."""
        self._stopping.set()
        if self._life is not None:
            await self._life
        self.index.kill()  # Closed by now; whatever is left of the process is gone.

    async def crash(self, *, power_loss: bool = True) -> None:
        """The machine loses power, or else only the process is killed."""
        # The index first: the dying bookie makes a checkpoint, which must not reach what it leaves behind.
        if power_loss:
            self.index.crash()
        else:
            self.index.kill()
        await self.host.crash(power_loss=power_loss)
        self._life = self._bookie = None

    def wipe(self) -> None:
        """Put an empty disk in the place of the bookie's. It must not run meanwhile."""
        if self.is_running:
            raise InvariantBroken(f"bookie {self.host.name} runs, its disk cannot be changed")
        self.host.disk.wipe()
        self.index = SimIndexFolder(self.host.rng)
