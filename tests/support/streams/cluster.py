"""A simulated cluster with a namespace on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from quire.bookie.bookie import BookieSettings
from quire.bookie.identity import BookieFolders
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.cold import ColdStores
from quire.cold.blocking import at_once
from quire.ledger.client import open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, StoreSettings, open_store
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.settings import StreamSettings
from quire.testing import SimBookie, Simulation, sim_cluster

URI = "memory:simulated"
NAMESPACE = "/ns"
STORE_SETTINGS = StoreSettings(operation_timeout_s=3.0, session_timeout_s=4.0)
SETTINGS = StreamSettings(lock_timeout_s=5.0, call_timeout_s=20.0)
LEDGER_SETTINGS = LedgerSettings(read_timeout_s=2.0, speculative_read_s=0.5, change_timeout_s=10.0, call_timeout_s=20.0)

# Room for the largest record, and little enough that nobody waits for simulated disks to grow.
_STORAGE = StorageSettings(
    cache_bytes_max=8 << 20,
    log_bytes_max=8 << 20,
    journal=JournalSettings(file_bytes_max=4 << 20, preallocate_bytes=64 << 10),
)
_SPACE = SpaceSettings(reserve_bytes=0)


@dataclass(frozen=True, slots=True)
class StreamCluster:
    """Bookies that run, metadata, and hosts to use them from."""

    sim: Simulation
    cluster: Cluster
    bookies: list[SimBookie]
    cold: ColdStores = field(default_factory=lambda: ColdStores(run=at_once, memory={}))

    @asynccontextmanager
    async def context(self, host: str = "client", *, encode_region: bool = False) -> AsyncIterator[StreamContext]:
        """The namespace as a program on this host has it open."""
        runtime = self.sim.host(host).runtime
        async with (
            open_store(URI, settings=STORE_SETTINGS, runtime=runtime) as store,
            open_ledgers(URI, settings=LEDGER_SETTINGS, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers,
        ):
            binding = NamespaceBinding("local", "/ledgers", encode_region=encode_region).resolved("local")
            yield StreamContext(runtime, store, ledgers, NAMESPACE, binding, host, self.cold)

    def nodes(self, context: StreamContext, stream: str) -> StreamNodes:
        return StreamNodes(context.store, context.paths(stream))


@asynccontextmanager
async def stream_cluster(sim: Simulation, *, bookies: int = 3) -> AsyncIterator[StreamCluster]:
    async with sim_cluster(sim) as cluster:
        settings = BookieSettings(
            BookieFolders("/data", ("/journal",)), checkpoint_interval_s=0.5, storage=_STORAGE, space=_SPACE
        )
        running = [SimBookie(sim, f"b{number}", cluster, settings=settings) for number in range(bookies)]
        for bookie in running:
            await bookie.start()
        await cluster.store.create(NAMESPACE)
        yield StreamCluster(sim, cluster, running)
        for bookie in running:
            if bookie.is_running:
                await bookie.stop()
