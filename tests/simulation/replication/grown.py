"""Three bookies that are full of data become five: everything is moved for real, and counted, while readers read.

Real writers fill three bookies; two empty ones come; the real rebalancing makes a plan and carries it out, and is
killed in the middle. Readers read entries at random all the time, over handles that they keep, until the old copies are
gone: none may fail. Every copy is counted when the metadata come to name its bookie (`watching.Claims`), and at the end
each one is read from its own bookie and compared.

Entries are large, and end with one of a few bodies that disks keep once (`shared_content`): so the amount of data has
its limit in time, not in memory. Every byte goes through writers, wires, checksums, journals and logs nevertheless.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from quire.app.inventory import Target, open_operations
from quire.app.rebalance import Made, make_plan, read_plan, run_plan, write_plan
from quire.bookie.garbage import GarbageSettings
from quire.bookie.settings import StorageSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.repair.fragment_check import members_of
from quire.ledger.repair.replica_reads import check_replicas
from quire.metadata import Cluster
from quire.testing import SimBookie, Simulation
from quire.types import EntryId, LedgerId
from tests.simulation.replication.operations_world import OperationsWorld
from tests.simulation.replication.shared_content import SharedContent, make_bodies
from tests.support.ledgers.history import LedgerHistory
from tests.support.simulation.ledgers import Plan
from tests.support.simulation.world import URI

COPIES = 3
_LABEL_BYTES = 64
_BODIES = 5
_BATCH_BYTES = 16 << 20
_WINDOW_BYTES = 4 << 20  # A fast network: pieces of a wire are fewer then, and larger.
_GARBAGE_S = 30.0
_RUNS_MAX = 20
_TARGET = Target(URI)


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is: `total_bytes` of payload, all copies counted."""

    total_bytes: int
    ledger_bytes: int
    entry_bytes: int

    @property
    def entries(self) -> int:
        """Of a ledger."""
        return self.ledger_bytes // self.entry_bytes

    @property
    def ledgers(self) -> int:
        return -(-self.total_bytes // (COPIES * self.entries * self.entry_bytes))

    @property
    def copies(self) -> int:
        return COPIES * self.ledgers * self.entries


@dataclass
class Report:
    """What came of it."""

    moves: int = 0
    named_entries: int = 0
    """Copies that a bookie had when the metadata came to name it for them."""

    copied_bytes: int = 0
    """What the moves that were made to their end say of themselves."""

    made_before_kill: int = 0
    reads: int = 0
    reads_while_moving: int = 0
    copies: Counter[str] = field(default_factory=Counter)
    """Entries of each bookie at the end, each one read there."""

    own_bytes: int = 0
    """What all disks take in memory."""


class GrownWorld(OperationsWorld):
    """One run. Bookies have their usual settings, and disks that are large enough."""

    def __init__(self, sim: Simulation, size: Size, cluster: Cluster) -> None:
        self.size = size
        sim.network.window_bytes = _WINDOW_BYTES
        self._bodies = make_bodies(_BODIES, size.entry_bytes - _LABEL_BYTES)
        super().__init__(sim, Plan(bookies=3).having((COPIES, COPIES, 2)), cluster)

    def _bookie(self, name: str) -> SimBookie:
        bookie = super()._bookie(name)
        # Logs without anything alive go; what is left in others is not copied: compaction is not what this is about.
        garbage = GarbageSettings(
            interval_s=_GARBAGE_S, moved_interval_s=_GARBAGE_S, minor_live_ratio_max=0.0, major_live_ratio_max=0.0
        )
        bookie.settings = replace(bookie.settings, storage=StorageSettings(), garbage=garbage)
        bookie.host.disk.content = partial(SharedContent, self._bodies)
        bookie.host.disk.faults.capacity_bytes = 2 * self.size.total_bytes
        return bookie

    @asynccontextmanager
    async def ledgers(self, name: str) -> AsyncIterator[LedgerClient]:
        async with open_ledgers(URI, runtime=self.sim.host(name).runtime) as ledgers:
            yield ledgers

    # --- Payloads: each entry has its own, which can be told without keeping any

    def _parts(self, ledger_id: LedgerId, number: int) -> tuple[bytes, bytes]:
        return (b"%d/%d" % (ledger_id, number)).ljust(_LABEL_BYTES), self._bodies[(ledger_id + number) % _BODIES]

    def payload_of(self, ledger_id: LedgerId, number: int) -> bytes:
        return b"".join(self._parts(ledger_id, number))

    def check_payload(self, ledger_id: LedgerId, number: int, payload: bytes) -> None:
        label, body = self._parts(ledger_id, number)
        is_right = len(payload) == self.size.entry_bytes and payload.startswith(label) and payload.endswith(body)
        assert is_right, f"entry {number} of ledger {ledger_id} is another one: {payload[:_LABEL_BYTES]!r}"


async def live(sim: Simulation, size: Size) -> Report:
    async with GrownWorld.open(sim, size) as world:
        with TemporaryDirectory() as folder:
            return await _act(world, Path(folder) / "moves")


async def _act(world: GrownWorld, path: Path) -> Report:
    report = Report()
    async with world.ledgers("writer") as ledgers:
        for _ in range(world.size.ledgers):
            await _fill(world, ledgers)
    for _ in range(2):
        await world.add_bookie()
    async with open_operations(_TARGET, runtime=world.sim.host("planner").runtime) as operations:
        plan = await make_plan(operations, tolerance=1e-6)
        await write_plan(operations, plan, path)
    report.moves = len(plan.moves)
    for name in ("reader0", "reader1"):
        world.spawn(name, _read_at_random(world, report))
    await _move_all(world, path, report)
    report.reads_while_moving = report.reads
    await world.settle()  # Whoever was named by the metadata had all that it was named for.
    report.named_entries = world.events["copies counted"]
    assert world.events["copies not counted"] == 0
    await world.pause(3 * _GARBAGE_S)
    await world.wait_tidy()
    world.over.set()
    await world.end_clients(["reader0", "reader1"], within_s=60.0)
    async with world.ledgers("checker") as ledgers:
        await _count_copies(world, ledgers, report)
    report.own_bytes = sum(_own_bytes(bookie) for bookie in world.bookies)
    await world.settle()
    return report


async def _fill(world: GrownWorld, ledgers: LedgerClient) -> None:
    entries, batch = world.size.entries, max(1, _BATCH_BYTES // world.size.entry_bytes)
    async with ledgers.create(ensemble=COPIES, write_quorum=COPIES, ack_quorum=2) as writer:
        for first in range(0, entries, batch):
            numbers = range(first, min(first + batch, entries))
            await writer.append_many([world.payload_of(writer.id, number) for number in numbers])
        world.histories.append(LedgerHistory(writer.id))


async def _move_all(world: GrownWorld, path: Path, report: Report) -> None:
    """Carry the plan out; the process dies when a third is done, and another one goes on. It passes the ledger by whose
    lock the dead one has, until that one's session is over, and is run again for it."""
    enough = asyncio.Event()

    def on_made(made: Made) -> None:
        report.copied_bytes += made.copied.written_bytes
        report.made_before_kill += not enough.is_set()
        if report.made_before_kill >= report.moves // 3:
            enough.set()

    async def rebalance() -> None:
        async with open_operations(_TARGET, runtime=world.sim.host("rebalancer0").runtime) as operations:
            plan = await read_plan(operations, path)
            for _ in range(_RUNS_MAX):
                made = await run_plan(operations, plan, path, bytes_per_s=0.0, on_made=on_made)
                if all(each.is_done for each in made):
                    return
            raise AssertionError(f"not moved: {made}")

    world.spawn("rebalancer0", rebalance())
    await enough.wait()
    await world.pause(world.rng.random())
    await world.crash_client("rebalancer0")
    world.spawn("rebalancer0", rebalance())
    await world.end_clients(["rebalancer0"], within_s=1e9)


async def _read_at_random(world: GrownWorld, report: Report) -> None:
    """Whatever a read raises fails the run."""
    async with world.ledgers("reader") as ledgers:
        while not world.over.is_set():
            history = world.rng.choice(world.histories)
            async with ledgers.open(history.ledger_id, recover=False) as reader:
                for _ in range(world.rng.choice([1, 50])):
                    await world.pause(world.rng.random() * 0.2)
                    number = world.rng.randrange(world.size.entries)
                    entry = await reader.read_entry(EntryId(number))
                    world.check_payload(history.ledger_id, number, entry.payload)
                    report.reads += 1
                    if world.over.is_set():
                        return


async def _count_copies(world: GrownWorld, ledgers: LedgerClient, report: Report) -> None:
    """Each copy of each entry, read from the very bookie that should have it."""
    end = EntryId(world.size.entries)
    for history in world.histories:
        stored = await ledgers.ledgers_metadata.read(history.ledger_id)
        checked = await check_replicas(ledgers, stored, EntryId(0), end, password=b"", timeout_s=60.0)
        assert checked.bad == (), checked.bad
        assert checked.copies == COPIES * world.size.entries
        for bookie in members_of(stored.metadata):
            report.copies[bookie] += world.size.entries


def _own_bytes(bookie: SimBookie) -> int:
    files = bookie.host.disk._names.files.values()
    return sum(each.visible.own_bytes for each in files if isinstance(each.visible, SharedContent))
