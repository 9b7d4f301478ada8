"""A whole bookie under everything that can happen to it: what it acknowledged is there afterwards, byte for byte.

The real bookie runs on a simulated disk, index and network. A client writes, fences and reads in both versions of the
protocol, while the machine loses power, the process is killed, the disk fails, fills up or flips bits, and connections
break. After each start, and at the end, everything acknowledged is read back through the protocol.
"""

import asyncio
import errno
import os
from dataclasses import dataclass, field

import pytest

from quire.codec.digest import Crc32cDigest, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import DEFERRED_SYNC
from quire.errors import (
    BookieFailed,
    BookieOutcomeUnknown,
    BookieUnavailable,
    Damaged,
    DiskFull,
    EntriesUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
    Refused,
    Unavailable,
)
from quire.metadata import Cluster
from quire.rpc import AddAnswers, BookieChannel, ChannelSettings
from quire.rpc.errors import status_error
from quire.runtime import Runtime
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum
from tests.support.tiers import one_in

KEY = master_key(b"")
LEDGERS = [LedgerId(number) for number in range(6)]
LIVES = 4
SEEDS = range(3000 if os.environ.get("QUIRE_TEST_LONG") else 200)
FLIP_SEEDS = range(2000 if os.environ.get("QUIRE_TEST_LONG") else 120)
SETTINGS = ChannelSettings(request_timeout_s=2.0)


@dataclass
class World:
    """What the bookie was asked for, and what it answered."""

    sent: dict[tuple[LedgerId, EntryId], bytes] = field(default_factory=dict)
    acknowledged: set[tuple[LedgerId, EntryId]] = field(default_factory=set)
    deferred: set[tuple[LedgerId, EntryId]] = field(default_factory=set)  # Acknowledged, and not promised yet.
    fenced: set[LedgerId] = field(default_factory=set)
    next_entry: int = 0
    checked: int = 0
    faults: list[str] = field(default_factory=list)


class Sink:
    """Hears of the adds of one ledger."""

    def __init__(self, world: World, ledger_id: LedgerId, *, deferred: bool = False) -> None:
        self._world, self._ledger_id, self._deferred = world, ledger_id, deferred

    def on_add_answers(self, answers: AddAnswers) -> None:
        for status, entry_ids in answers:
            if status is Status.EOK:
                target = self._world.deferred if self._deferred else self._world.acknowledged
                target.update((self._ledger_id, entry_id) for entry_id in entry_ids)
            else:
                allowed = {Status.EFENCED, Status.EIO, Status.EREADONLY, Status.ETOOMANYREQUESTS}
                assert status in allowed, f"an add was answered with {status.name}"

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        pass  # They may be stored or not.


class Client:
    """Does random things to one bookie, in one version of the protocol."""

    def __init__(self, world: World, channel: BookieChannel, runtime: Runtime, version: int) -> None:
        self._world, self._channel, self._rng, self._version = world, channel, runtime.rng, version

    async def work(self) -> None:
        while True:
            kind = self._rng.random()
            if kind < 0.6:
                self._add(self._rng.choice(LEDGERS))
            elif kind < 0.65:
                await self._fence(self._rng.choice(LEDGERS))
            elif kind < 0.7 and self._version == 3:
                await self._force(self._rng.choice(LEDGERS))
            elif kind < 0.9 and self._world.acknowledged:
                await self._read(*self._rng.choice(sorted(self._world.acknowledged)))
            await asyncio.sleep(self._rng.random() * 0.01)

    def _add(self, ledger_id: LedgerId) -> None:
        world = self._world
        entry_id = EntryId(world.next_entry)
        world.next_entry += 1
        payload = self._rng.bytes(self._rng.randrange(1500))
        prefix = EntryCodec(ledger_id, Crc32cDigest()).prefix(entry_id, payload, lac=NO_ENTRY, length=0)
        world.sent[ledger_id, entry_id] = prefix + payload
        recovery = self._rng.random() < 0.1
        if self._version == 2:
            flags = v2.RECOVERY_ADD if recovery else 0
            head = v2.add_request_prefix(KEY, entry_bytes=len(prefix) + len(payload), flags=flags)
            self._channel.send_adds(ledger_id, (head, prefix, payload), (entry_id,), Sink(world, ledger_id))
        else:
            deferred = not recovery and self._rng.random() < 0.2
            self._channel.send_add_v3(
                ledger_id,
                entry_id,
                KEY,
                (prefix, payload),
                Sink(world, ledger_id, deferred=deferred),
                recovery=recovery,
                write_flags=DEFERRED_SYNC if deferred else 0,
            )

    async def _fence(self, ledger_id: LedgerId) -> None:
        if len(self._world.fenced) >= len(LEDGERS) // 2 and ledger_id not in self._world.fenced:
            return  # Some are to stay open.
        try:
            await self._channel.read(ledger_id, NO_ENTRY, version=3 if self._version == 3 else 2, master_key=KEY)
        except NoSuchEntry:
            pass  # Also this answer means that the fence is durable.
        self._world.fenced.add(ledger_id)

    async def _force(self, ledger_id: LedgerId) -> None:
        before = {each for each in self._world.deferred if each[0] == ledger_id}
        await self._channel.force(ledger_id)
        self._world.acknowledged |= before
        self._world.deferred -= before

    async def _read(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        answer = await self._channel.read(ledger_id, entry_id, version=3 if self._version == 3 else 2)
        assert answer.body == self._world.sent[ledger_id, entry_id]


async def use(world: World, bookie: SimBookie, runtime: Runtime, version: int) -> None:
    """Work with the bookie, over one connection after the other, until cancelled."""
    while True:
        try:
            channel = await BookieChannel.connect(runtime, bookie.host.name, bookie.port, SETTINGS)
        except BookieUnavailable:
            return
        try:
            await Client(world, channel, runtime, version).work()
        except (Unavailable, EntriesUnknown, Refused):
            await asyncio.sleep(0.05)  # The bookie, its disk or the connection failed: try again.
        finally:
            await channel.aclose()


async def check(world: World, bookie: SimBookie, runtime: Runtime, *, damaged: bool = False) -> None:
    """Everything acknowledged is there, and nothing fenced is open. With damage, it may be unknown, and never "no"."""
    async with await BookieChannel.connect(runtime, bookie.host.name, bookie.port, SETTINGS) as channel:
        ids = list(world.sent)
        reads = [channel.read(ledger_id, entry_id, version=3) for ledger_id, entry_id in ids]
        for (ledger_id, entry_id), found in zip(ids, await asyncio.gather(*reads, return_exceptions=True), strict=True):
            is_acknowledged = (ledger_id, entry_id) in world.acknowledged
            if isinstance(found, NoSuchEntry | NoSuchLedger):
                assert not is_acknowledged, f"entry {ledger_id}:{entry_id} was acknowledged and is lost: {found}"
            elif isinstance(found, EntriesUnknown | BookieFailed):
                assert damaged, f"entry {ledger_id}:{entry_id} cannot be read: {found}"
            elif isinstance(found, BaseException):
                raise found
            else:
                assert found.body == world.sent[ledger_id, entry_id]
                world.checked += is_acknowledged
        for ledger_id in world.fenced:
            status = await add_late(channel, ledger_id)
            refused = (Status.EFENCED, Status.EUA) if damaged else (Status.EFENCED,)
            assert status in refused, f"the fence of ledger {ledger_id} is forgotten: {status}"


async def add_late(channel: BookieChannel, ledger_id: LedgerId) -> Status:
    answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()

    class Late:
        def on_add_answers(self, answers: AddAnswers) -> None:
            answer.set_result(answers[0][0])

        def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
            answer.set_exception(error)

    prefix = EntryCodec(ledger_id, Crc32cDigest()).prefix(EntryId(10**9), lac=NO_ENTRY, length=0)
    channel.send_add_v3(ledger_id, EntryId(10**9), KEY, (prefix,), Late())
    return await answer


async def make_ledgers(cluster: Cluster) -> None:
    """A ledger is in the metadata before its first entry; else garbage collection would take it away."""
    for ledger_id in LEDGERS:
        metadata = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("b1"),)),))
        await cluster.ledgers.create(metadata, with_id=ledger_id)


async def go_wrong(sim: Simulation, bookie: SimBookie, world: World) -> None:
    """Something fails, at some moment."""
    rng, faults = sim.rng, bookie.host.disk.faults
    await asyncio.sleep(rng.random() * 1.5)
    kind = rng.choice(["sync", "write", "index", "full", "read", "cut", "cut", "create", "nothing", "nothing"])
    world.faults.append(kind)
    if kind == "cut":
        sim.network.reset_all("client")
    elif kind == "full":
        bookie.host.disk.faults.capacity_bytes = 0
    elif kind == "index":
        bookie.index.faults.fail_next(rng.choice(["commit", "sync"]))
    elif kind != "nothing":
        faults.fail_next(kind, code=errno.EIO if kind != "create" else errno.ENOSPC)  # type: ignore[arg-type]


async def start(bookie: SimBookie) -> None:
    """Start it. Left-over faults may make that fail, with a typed error, a few times."""
    for _ in range(5):
        try:
            await bookie.start()
            return
        except (BookieFailed, DiskFull):
            await bookie.crash(power_loss=False)
            bookie.host.disk.faults.repair()
            bookie.index.faults.repair()
            bookie.host.disk.faults.capacity_bytes = 1 << 40
    raise AssertionError("the bookie does not start on a disk that works")


async def live_and_die(sim: Simulation) -> World:
    world = World()
    async with sim_cluster(sim) as cluster:
        await make_ledgers(cluster)
        bookie = SimBookie(sim, "b1", cluster, journals=sim.rng.choice([1, 1, 2]))
        bookie.host.disk.faults.latency_by_operation_s["sync"] = (0.001, 0.02)
        for _ in range(LIVES):
            await start(bookie)
            runtime = sim.host("client").runtime
            await check(world, bookie, runtime)
            users = [asyncio.create_task(use(world, bookie, runtime, version)) for version in (2, 3)]
            trouble = asyncio.create_task(go_wrong(sim, bookie, world))
            await asyncio.sleep(sim.rng.random() * 3)
            end = sim.rng.random()
            if end < 0.2 and bookie.is_running and bookie.bookie.failure is None:
                try:
                    await bookie.stop()
                except (BookieFailed, DiskFull):
                    await bookie.crash(power_loss=False)
            else:
                await bookie.crash(power_loss=end < 0.7)
            for task in (*users, trouble):
                task.cancel()
            for done in await asyncio.gather(*users, trouble, return_exceptions=True):
                if isinstance(done, AssertionError):
                    raise done
            bookie.host.disk.faults.repair()
            bookie.index.faults.repair()
            bookie.host.disk.faults.capacity_bytes = 1 << 40
            world.deferred.clear()  # Lost with whatever ended this life, perhaps.
        await start(bookie)
        await check(world, bookie, sim.host("client").runtime)
        await bookie.stop()
    return world


@pytest.mark.parametrize("seed", one_in(20, SEEDS))
def test_what_was_acknowledged_survives(seed: int) -> None:
    simulate(seed, live_and_die)


@pytest.mark.extended
def test_the_workload_is_worth_something() -> None:
    """Many entries are checked, and every kind of trouble comes up."""
    worlds = [simulate(seed, live_and_die) for seed in range(15)]
    assert sum(world.checked for world in worlds) > 3_000
    assert {fault for world in worlds for fault in world.faults} >= {"sync", "write", "index", "full", "read", "cut"}


@pytest.mark.parametrize("seed", one_in(20, FLIP_SEEDS))
def test_a_flipped_bit_is_never_a_missing_entry(seed: int) -> None:
    """One bit of any file, after any end: the bookie refuses to start, or what it acknowledged is right or unknown."""

    async def main(sim: Simulation) -> None:
        world = World()
        async with sim_cluster(sim) as cluster:
            await make_ledgers(cluster)
            bookie = SimBookie(sim, "b1", cluster, journals=sim.rng.choice([1, 2]))
            await bookie.start()
            runtime = sim.host("client").runtime
            users = [asyncio.create_task(use(world, bookie, runtime, version)) for version in (2, 3)]
            await asyncio.sleep(0.5 + sim.rng.random() * 2)
            if sim.rng.random() < 0.3:
                await bookie.stop()
            await bookie.crash(power_loss=sim.rng.random() < 0.5)
            for task in users:
                task.cancel()
            await asyncio.gather(*users, return_exceptions=True)
            world.deferred.clear()
            await flip(sim, bookie)
            try:
                await bookie.start()
            except (Damaged, Refused):
                return
            await check(world, bookie, sim.host("client").runtime, damaged=True)

    simulate(seed, main)


@pytest.mark.parametrize("seed", range(5))
def test_a_bookie_listens_when_it_can_answer(seed: int) -> None:
    """Until then clients are refused, as if there were no bookie: none is let in and closed, or left waiting."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            bookie = SimBookie(sim, "b1", cluster)
            bookie.host.disk.faults.latency_by_operation_s["sync"] = (0.01, 0.1)
            starting = asyncio.create_task(bookie.start())
            runtime, refused = sim.host("client").runtime, 0
            while True:
                try:
                    channel = await BookieChannel.connect(runtime, "b1", bookie.settings.port, SETTINGS)
                    break
                except BookieUnavailable:
                    refused += 1
                    await asyncio.sleep(0.001)
            async with channel:
                with pytest.raises(NoSuchLedger):
                    await channel.read(LedgerId(99), EntryId(0), version=3)
            assert refused > 10
            await starting
            await bookie.stop()

    simulate(seed, main)


async def flip(sim: Simulation, bookie: SimBookie) -> None:
    disk = bookie.host.disk
    kinds: dict[str, list[str]] = {}
    for folder in ("/data", "/data/entries", *bookie.settings.folders.journals):
        for name in await disk.listdir(folder):
            path = f"{folder}/{name}"
            if "." in name or name in ("checkpoint", "VERSION"):
                kinds.setdefault(path.rpartition(".")[2], []).append(path)
    path = sim.rng.choice(kinds[sim.rng.choice(sorted(kinds))])
    async with await disk.open(path) as file:
        size = await file.size()
    if size:
        disk.flip_bit(path, sim.rng.randrange(size))


def test_errors_of_the_protocol_have_a_type() -> None:
    """What `check` relies on: an answer that says "no" is told from one that says "unknown"."""
    kinds = {status: type(status_error(status, bookie="b1", ledger_id=LEDGERS[0])) for status in Status if status}
    assert kinds[Status.ENOENTRY] is NoSuchEntry
    assert kinds[Status.EUNKNOWNLEDGERSTATE] is EntriesUnknown
    assert kinds[Status.EFENCED] is LedgerFenced
    assert issubclass(BookieOutcomeUnknown, Unavailable)
