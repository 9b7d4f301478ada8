"""Autorecovery of one process: a candidate for the auditor, and a worker, over sessions of their own.

    async with open_autorecovery("zk://…/ledgers", name="host-1") as autorecovery:
        await autorecovery.run()                # until it is cancelled

Any number of processes may do so: one of them is the auditor, and all of them repair.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, StoreSettings, open_cluster
from quire.metadata.underreplication import Underreplication
from quire.protocol.placement import Placement
from quire.replication.auditor import Auditor
from quire.replication.metrics import AutorecoveryMetrics
from quire.replication.settings import AutorecoverySettings
from quire.replication.worker import Worker
from quire.runtime import Runtime, real_runtime
from quire.values import dataclass

_DEFAULTS: Final = AutorecoverySettings()
_LEDGER_DEFAULTS: Final = LedgerSettings()


@dataclass(frozen=True, slots=True)
class Roles:
    """What a process does."""

    audits: bool = True
    repairs: bool = True


class Autorecovery:
    """Made by `open_autorecovery`."""

    def __init__(
        self,
        client: LedgerClient,
        cluster: Cluster,
        runtime: Runtime,
        name: str,
        settings: AutorecoverySettings,
        roles: Roles,
    ) -> None:
        self.client, self.cluster = client, cluster
        self.marks = Underreplication(cluster.store, cluster.uri.root, runtime, name)
        self.metrics = AutorecoveryMetrics(runtime.clock.monotonic)
        parts = (client, cluster, self.marks, runtime.clock, settings, self.metrics)
        self._tasks = []
        if roles.audits:
            self._tasks.append(Auditor(*parts).run)
        if roles.repairs:
            self._tasks.append(Worker(*parts).run)

    async def run(self) -> None:
        """Audit and repair until cancelled. Raises only what is a bug, or cannot be mended by waiting."""
        async with asyncio.TaskGroup() as group:
            for work in self._tasks:
                group.create_task(work())


@asynccontextmanager
async def open_autorecovery(
    uri: str,
    *,
    name: str,
    settings: AutorecoverySettings = _DEFAULTS,
    roles: Roles | None = None,
    ledger_settings: LedgerSettings = _LEDGER_DEFAULTS,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
) -> AsyncIterator[Autorecovery]:
    """Autorecovery of the cluster whose metadata is at `uri`. `name` is what others read of us in locks and votes."""
    runtime = runtime or real_runtime()
    async with (
        open_cluster(uri, settings=store_settings, runtime=runtime) as cluster,
        open_ledgers(
            uri,
            settings=ledger_settings,
            placement=placement,
            store_settings=store_settings,
            tls=tls,
            runtime=runtime,
        ) as client,
    ):
        yield Autorecovery(client, cluster, runtime, name, settings, roles or Roles())
