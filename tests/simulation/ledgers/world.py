"""The stage of a simulation of ledgers, and the histories of all ledgers that were written on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster
from quire.testing import Simulation
from tests.simulation.clusters.stage import STORE_SETTINGS, URI, Stage
from tests.simulation.ledgers.plan import Plan
from tests.support.ledgers.history import LedgerHistory

SETTINGS = LedgerSettings(
    window_entries_max=50, read_timeout_s=2.0, speculative_read_s=0.5, change_timeout_s=10.0, replica_bytes_max=200_000
)


class World(Stage):
    """One run."""

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster) -> None:
        super().__init__(sim, plan, cluster)
        self.plan = plan
        self.histories: list[LedgerHistory] = []

    @asynccontextmanager
    async def ledgers(self, name: str) -> AsyncIterator[LedgerClient]:
        runtime = self.sim.host(name).runtime
        async with open_ledgers(URI, settings=SETTINGS, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers:
            yield ledgers
