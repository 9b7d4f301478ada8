"""A simulated world of one stream: its namespace, its history, and what clients may do with it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.codec.stream_metadata.tree import StreamPaths
from quire.cold import ColdStores
from quire.cold.blocking import at_once
from quire.ledger.client import open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, open_store
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.settings import StreamSettings
from quire.testing import Simulation
from quire.types import DLSN, LedgerId
from tests.simulation.streams.changes import MetadataChanges
from tests.simulation.streams.plan import Plan
from tests.support.simulation.world import STORE_SETTINGS, URI, PlanT, World
from tests.support.streams.history import StreamHistory

NAMESPACE, STREAM = "/ns", "s"
RETENTION_S = 1.5
SETTINGS = StreamSettings(
    lock_timeout_s=9.0, call_timeout_s=10.0, retention_s=0, commit_delay_s=0.005, idle_s=5.0, window_records_max=100
)


class OneStream(World[PlanT]):
    """A namespace with one stream in it, and all that ever happened to its metadata."""

    ledger_settings = LedgerSettings(
        window_entries_max=50,
        read_timeout_s=1.0,
        speculative_read_s=0.3,
        change_timeout_s=6.0,
        append_timeout_s=8.0,
        call_timeout_s=8.0,
    )
    changes_type = MetadataChanges

    def __init__(self, sim: Simulation, plan: PlanT, cluster: Cluster, *, retention_s: float = 0.0) -> None:
        super().__init__(sim, plan, cluster)
        self.paths = StreamPaths(NAMESPACE, STREAM)
        self.history = StreamHistory(retention_ms=round(retention_s * 1000))
        self.changes = self.changes_type(self.tree, self.paths, self.history)
        self.restarting: set[asyncio.Task[None]] = set()
        self.cold = ColdStores(run=at_once, memory={})

    async def begin(self) -> None:
        await self.cluster.store.create(NAMESPACE)
        await super().begin()

    async def finish(self) -> None:
        await super().finish()
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"NothingStays: tasks outlive the handles that they belong to: {left}"

    @asynccontextmanager
    async def context(self, name: str) -> AsyncIterator[StreamContext]:
        """The namespace as a program on this host has it open."""
        runtime = self.sim.host(name).runtime
        async with (
            open_store(URI, settings=STORE_SETTINGS, runtime=runtime) as store,
            open_ledgers(URI, settings=self.ledger_settings, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers,
        ):
            binding = NamespaceBinding("local", "/ledgers").resolved("local")
            yield StreamContext(runtime, store, ledgers, NAMESPACE, binding, name, self.cold)

    async def found(self) -> None:
        """Create the stream: readers need it to be there."""
        async with self.context("founder") as context:
            await create_stream(context.store, context.paths(STREAM), context.runtime.rng)

    async def restart(
        self, name: str, work: Callable[[Self, str], Coroutine[Any, Any, None]], *, within_s: float
    ) -> None:
        """The host of a client dies. Sometime later it runs again."""
        await self.crash_client(name)

        async def start_later() -> None:
            await self.pause(self.rng.random() * within_s)
            self.spawn(name, work(self, name))

        task = asyncio.create_task(start_later(), name=f"restart of {name}")
        self.restarting.add(task)
        task.add_done_callback(self.restarting.discard)

    async def repair(self) -> None:
        self.changes.repair()
        await super().repair()
        if self.restarting:
            await asyncio.wait(self.restarting)

    def tally(self) -> Counter[str]:
        return self.events + self.changes.met + self.tree.late


class StreamWorld(OneStream[Plan]):
    """One run."""

    ledger_settings = replace(OneStream.ledger_settings, poll_s=2.0, read_patience_s=6.0, replica_bytes_max=200_000)

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster) -> None:
        super().__init__(sim, plan, cluster, retention_s=RETENTION_S if plan.purges else 0.0)
        self.end: DLSN | None = None  # Behind the last record, once nobody writes any more.
        self.is_sealed = False
        self.ended = asyncio.Event()  # `end` is known.
        self._settings = self._drawn_settings()

    def _drawn_settings(self) -> StreamSettings:
        rng, plan, quorum = self.rng, self.plan, self.quorum
        by_size = rng.random() < plan.roll_chance
        return replace(
            SETTINGS,
            ensemble=quorum.ensemble,
            write_quorum=quorum.write,
            ack_quorum=quorum.ack,
            roll_interval_s=0 if by_size else 0.3 + rng.random(),
            roll_bytes=rng.choice(plan.roll_bytes),
            commit_delay_s=rng.choice([0.0, 0.005, 0.05]),
            entry_bytes=rng.choice([60, 200, 65_536]),
            in_flight_entries=rng.choice([1, 2, 8]),
            transmit=rng.choice(["immediate", "immediate", "periodic", "outstanding"]),
            flush_interval_s=0.02,
            buffer_bytes=rng.choice([0, 100]),
            compression=rng.choice(["none", "none", "lz4"]),
            keepalive_s=rng.choice([0.0, 0.0, 0.2]),
            retention_s=RETENTION_S if plan.purges else 0,
            truncated_only=plan.purges and rng.random() < 0.5,
        )

    def settings(self, *, write_lock: bool = True) -> StreamSettings:
        return replace(self._settings, write_lock=write_lock)

    @property
    def has_rivals(self) -> bool:
        """Whether there are writers without a lock. In the end there may be one in any case."""
        return self.plan.rivals > 0 or self.over.is_set()

    def more_roles(self) -> dict[str, Callable[["StreamWorld", str], Coroutine[Any, Any, None]]]:
        """Clients beside those of the plan."""
        return {}

    async def settled(self, context: StreamContext) -> None:
        """Nobody writes any more, and all segments are completed: the last chance to change something."""

    async def restore_ledger(self, ledger_id: LedgerId) -> None:
        """Bring back what the metadata said of a ledger that was deleted: bookies keep entries for some time."""
        path = self.cluster.ledgers.path(ledger_id)
        if await self.cluster.store.exists(path) is None:
            assert path in self.changes.deleted, f"ledger {ledger_id} never was"
            await self.cluster.store.create(path, self.changes.deleted[path], parents=True)

    def ledgers_left_max(self) -> int:
        """How many ledgers may be nobody's: one for each answer that was lost, since nothing is deleted in doubt."""
        return self.events["lose_answers"] + 2 * self.events["lose_writer_answers"] + sum(self.changes.met.values())

    def tally(self) -> Counter[str]:
        calls = self.history.calls
        told = {
            "acknowledged": sum(len(call.dlsns or ()) for call in calls),
            "outcome unknown": sum(call.dlsns is None and not call.refused for call in calls),
            "refused": sum(call.refused != "" for call in calls),
            "segments": len({change.lssn for change in self.history.changes}),
        }
        return super().tally() + Counter(told)
