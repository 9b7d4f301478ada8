"""The stage: a cluster with one stream, and all that sinks ever tried to put into it.

An attempt is one try of one batch: its payloads say so, hence each record of the stream tells where it comes from.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.codec.stream_metadata.sinks import decode_staged
from quire.codec.stream_metadata.tree import StreamPaths
from quire.ledger.client import open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, Create, open_store
from quire.metadata.driver import Op, SessionId, Written
from quire.stream.context import StreamContext
from quire.stream.settings import StreamSettings
from quire.testing import Simulation
from quire.types import LedgerId, Quorum
from tests.simulation.clusters.stage import STORE_SETTINGS, URI, Stage
from tests.simulation.streams.changes import MetadataChanges
from tests.support.streams.history import StreamHistory

NAMESPACE, STREAM = "/ns", "s"
_LEDGERS = LedgerSettings(
    window_entries_max=50,
    read_timeout_s=1.0,
    speculative_read_s=0.3,
    change_timeout_s=6.0,
    append_timeout_s=8.0,
    call_timeout_s=8.0,
)
SETTINGS = StreamSettings(lock_timeout_s=6.0, call_timeout_s=8.0, commit_delay_s=0.005, entry_bytes=60)


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of run. Times are upper limits: the seed chooses."""

    faults: dict[str, float] = field(default_factory=dict)
    quorums: tuple[Quorum, ...] = (Quorum(3, 3, 2), Quorum(2, 2, 2))
    bookies: int = 3
    lasts_s: float = 3.0
    fault_pause_s: float = 0.4
    slow_chance: float = 0.2
    slow_s: tuple[float, ...] = (0.02, 0.1)
    sync_s: tuple[float, float] | None = None
    sinks: int = 2
    doubles: int = 0
    """Further drivers of the first sink, which believe to be the only one: whoever killed them did not wait."""
    writers: int = 1
    sweepers: int = 1
    inline_chance: float = 0.3
    forgets_chance: float = 0.3
    """That a driver forgets a commit which it was told of: Spark died before it noted it."""
    dies_at_note_chance: float = 0.0
    """That a driver dies right after the entry of a small batch, before the sink's node tells of it."""
    sweeps_at_commits: bool = False
    """Whether ledgers are swept in the very moment at which somebody is about to publish them."""


class World(Stage):
    """One run. `attempts` has the ledgers of each try that was staged as a whole."""

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster) -> None:
        super().__init__(sim, plan, cluster)
        self.plan = plan
        self.paths = StreamPaths(NAMESPACE, STREAM)
        self.history = StreamHistory()
        self.changes = MetadataChanges(self.tree, self.paths, self.history)
        self.attempts: dict[str, frozenset[LedgerId]] = {}
        self.sizes: dict[str, list[int]] = {}  # Records of each part of an attempt.
        self.staged: set[LedgerId] = set()  # All ledgers that were ever named.
        self.published: set[LedgerId] = set()
        self.told: dict[tuple[str, int], str] = {}  # Batches of which somebody was told that they are in the stream.
        self.next_batch: dict[str, int] = {}  # Where the checkpoint of a sink's query is.
        self.attempt_count = 0
        self.violations: list[str] = []
        self.dying: asyncio.Queue[str] = asyncio.Queue()  # Drivers that are about to crash, and do nothing more.
        self.restarting: set[asyncio.Task[None]] = set()
        self.settings = replace(
            SETTINGS, ensemble=self.quorum.ensemble, write_quorum=self.quorum.write, ack_quorum=self.quorum.ack
        )

    @asynccontextmanager
    async def context(self, name: str) -> AsyncIterator[StreamContext]:
        """The namespace as a program on this host has it open."""
        runtime = self.sim.host(name).runtime
        async with (
            open_store(URI, settings=STORE_SETTINGS, runtime=runtime) as store,
            open_ledgers(URI, settings=_LEDGERS, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers,
        ):
            binding = NamespaceBinding("local", "/ledgers").resolved("local")
            yield StreamContext(runtime, store, ledgers, NAMESPACE, binding, name)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """After each change of the metadata, every batch is in the stream as a whole, or not at all."""
        with self.changes.observed():
            commit = self.tree.commit

            def watched(ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
                try:
                    return commit(ops, session, now_ms)
                finally:
                    self._look(ops)

            with patch.object(self.tree, "commit", watched):
                yield

    def _look(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Create) and op.path.startswith(f"{self.paths.staged}/"):
                self.staged.add(decode_staged(op.data).ledger)
        if not any(op.path.startswith(f"{self.paths.segments}/") for op in ops):
            return
        segments = [change.segment for change in self.history.changes if change.segment is not None]
        self.published = {segment.ledger_id for segment in segments}
        for attempt, ledgers in self.attempts.items():
            there = ledgers & self.published
            if there and there != ledgers:
                self.violations.append(f"NeverHalf: {attempt}: {len(there)} of {len(ledgers)} segments")

    async def repair(self) -> None:
        self.changes.repair()
        await super().repair()
        if self.restarting:
            await asyncio.wait(self.restarting)
