"""A simulated world of ledgers: what a plan says of it, and the histories of all ledgers that were written."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Literal

from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import Cluster
from quire.testing import Simulation
from quire.types import Quorum
from tests.support.ledgers.history import LedgerHistory
from tests.support.simulation.world import STORE_SETTINGS, URI, Setting, World

SETTINGS = LedgerSettings(
    window_entries_max=50, read_timeout_s=2.0, speculative_read_s=0.5, change_timeout_s=10.0, replica_bytes_max=200_000
)


@dataclass(frozen=True, slots=True)
class Plan(Setting):
    """One kind of run."""

    quorums: tuple[Quorum, ...] = tuple(
        Quorum(*each) for each in [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3), (2, 2, 1), (5, 3, 3)]
    )
    bookies: int = 6
    lasts_s: float = 6.0
    fault_pause_s: float = 0.8
    appenders: int = 5
    append_pause_s: float = 0.05
    idle_chance: float = 0.05
    """That an appender does nothing for long after an append: what it wrote last is in the logs then."""

    ledgers: int = 2
    """Ledgers that one writer has open at the same time, over the same connections."""

    recoverers: int = 2
    recover_within_s: float = 4.0
    rivals: int = 1
    """Writers that recover what the first one wrote, and go on in a ledger of their own."""

    tailers: int = 1
    copiers: int = 1
    """Those who re-replicate old fragments."""

    slow_chance: float = 0.4
    slow_s: tuple[float, ...] = (0.05, 0.3, 1.0)
    endings: tuple[Literal["cancel", "crash", "go on"], ...] = ("cancel", "crash", "go on")
    """What becomes of the writers when everything was repaired."""

    def having(self, *quorums: tuple[int, int, int]) -> "Plan":
        return replace(self, quorums=tuple(Quorum(*each) for each in quorums))


class LedgerWorld(World[Plan]):
    """One run."""

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster) -> None:
        super().__init__(sim, plan, cluster)
        self.histories: list[LedgerHistory] = []
        self.deleted: set[int] = set()

    @property
    def kept(self) -> list[LedgerHistory]:
        """Those of ledgers that nobody has deleted."""
        return [history for history in self.histories if history.ledger_id not in self.deleted]

    @asynccontextmanager
    async def ledgers(self, name: str) -> AsyncIterator[LedgerClient]:
        runtime = self.sim.host(name).runtime
        async with open_ledgers(URI, settings=SETTINGS, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers:
            yield ledgers

    def create(self, ledgers: LedgerClient, ledger_id: int | None = None) -> AbstractAsyncContextManager[LedgerWriter]:
        """A ledger with the quorum of this run."""
        quorum = self.quorum
        return ledgers.create(
            ensemble=quorum.ensemble, write_quorum=quorum.write, ack_quorum=quorum.ack, ledger_id=ledger_id
        )

    @asynccontextmanager
    async def created(
        self, ledgers: LedgerClient, history: LedgerHistory, ledger_id: int | None = None
    ) -> AsyncIterator[LedgerWriter]:
        """The same, and its history is one of this run."""
        async with self.create(ledgers, ledger_id) as writer:
            history.ledger_id = writer.id
            self.histories.append(history)
            yield writer


async def append(history: LedgerHistory, writer: LedgerWriter, count: int, *, size: int = 0) -> None:
    """Append so many entries, one after the other."""
    for _ in range(count):
        payload = b"%d/%d:" % (writer.id, len(history.sent)) + bytes(size)
        history.on_sent([payload])
        history.on_acknowledged([await writer.append(payload)], [payload])
