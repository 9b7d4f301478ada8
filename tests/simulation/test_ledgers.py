"""Replicated ledgers while bookies crash, connections break and clients recover them from under their writers.

The real client and real bookies run in one thread. A writer appends until it is told that it may not; others open the
same ledger with recovery at some moment; bookies lose power and come back. Afterwards everything is repaired, the
ledger is recovered once more, and a checker proves what a ledger promises.
"""

import asyncio
import os
from dataclasses import dataclass, field

import pytest

from quire.errors import LedgerFenced, QuireError
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.writer import LedgerWriter
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import EntryId, LedgerId, LedgerState

SEEDS = range(5000 if os.environ.get("QUIRE_TEST_LONG") else 150)
BOOKIES = 5
APPENDERS = 6
QUORUMS = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3), (2, 2, 1), (5, 3, 3)]
SETTINGS = LedgerSettings(
    window_entries_max=50, read_timeout_s=2.0, speculative_read_s=0.5, change_timeout_s=10.0, replica_bytes_max=200_000
)
URI = "memory:simulated"
NO_LEDGER = LedgerId(-1)


@dataclass
class World:
    """What the writer sent and was told, and what recoveries found."""

    ledger_id: LedgerId = NO_LEDGER
    sent: set[bytes] = field(default_factory=set)  # Each payload is sent once.
    acknowledged: dict[EntryId, bytes] = field(default_factory=dict)
    ends: set[EntryId] = field(default_factory=set)  # Where clients were told that the ledger ends.
    fenced: bool = False
    events: list[str] = field(default_factory=list)


async def write(world: World, sim: Simulation, quorum: tuple[int, int, int], created: asyncio.Event) -> None:
    runtime = sim.host("writer").runtime
    ensemble, write_quorum, ack_quorum = quorum
    try:
        async with (
            open_ledgers(URI, settings=SETTINGS, runtime=runtime) as ledgers,
            ledgers.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum) as writer,
        ):
            world.ledger_id = writer.id
            created.set()
            appending = [append_for_ever(world, sim, writer, number) for number in range(APPENDERS)]
            await asyncio.gather(*appending)
    except LedgerFenced:
        world.fenced = True
    except QuireError as error:
        world.events.append(f"writer: {type(error).__name__}")
    finally:
        created.set()


async def append_for_ever(world: World, sim: Simulation, writer: LedgerWriter, appender: int) -> None:
    """Several of these run at once, so that there are always entries of which the writer does not know the fate."""
    rng, number = sim.rng, 0
    while True:
        payloads = [b"%d/%d:" % (appender, number + step) for step in range(rng.randrange(1, 4))]
        number += len(payloads)
        world.sent.update(payloads)
        entry_ids = await writer.append_many(payloads)
        world.acknowledged.update(zip(entry_ids, payloads, strict=True))
        await asyncio.sleep(rng.random() * 0.05)


def slow_links(sim: Simulation) -> None:
    """Some bookies are far from some clients: entries are on some of them long before they are on others."""
    for number in range(BOOKIES):
        for client in ("writer", "first", "second"):
            if sim.rng.random() < 0.4:
                slow = sim.rng.choice([0.05, 0.3, 1.0])
                for link in ((client, f"b{number}"), (f"b{number}", client)):
                    sim.network.link_latency_s[link] = (slow / 4, slow)


async def recover_sometime(world: World, sim: Simulation, name: str) -> None:
    runtime = sim.host(name).runtime
    await asyncio.sleep(sim.rng.random() * 4)
    async with open_ledgers(URI, settings=SETTINGS, runtime=runtime) as ledgers:
        try:
            async with ledgers.open(world.ledger_id) as reader:
                world.ends.add(reader.last_add_confirmed)
        except QuireError as error:
            world.events.append(f"{name}: {type(error).__name__}")


async def trouble(world: World, sim: Simulation, bookies: list[SimBookie], over: asyncio.Event) -> None:
    """Crashes, restarts, broken and blocked connections, as the seed has it."""
    rng = sim.rng
    while not over.is_set():
        await asyncio.sleep(rng.random() * 0.8)
        bookie, kind = rng.choice(bookies), rng.random()
        if kind < 0.35:
            if bookie.is_running:
                world.events.append(f"crash {bookie.host.name}")
                await bookie.crash(power_loss=rng.random() < 0.7)
            else:
                await start(bookie)
        elif kind < 0.6:
            sim.network.reset_all(bookie.host.name)
        elif kind < 0.8:
            client = rng.choice(["writer", "first", "second"])
            sim.network.partition(client, bookie.host.name, one_way=rng.random() < 0.5)
        else:
            sim.network.heal()
        for each in bookies:
            if not each.is_running and rng.random() < 0.3:
                await start(each)


async def start(bookie: SimBookie) -> None:
    if not bookie.is_running:
        await bookie.start()


async def check(world: World, sim: Simulation) -> None:
    """What a ledger promises, after everything was repaired."""
    async with open_ledgers(URI, settings=SETTINGS, runtime=sim.host("checker").runtime) as ledgers:
        entries, end = await read_all(ledgers, world)
        assert world.ends <= {end}, f"clients were told that the ledger ends at {world.ends}, and it ends at {end}"
        lost = {entry_id for entry_id in world.acknowledged if entry_id > end}
        assert not lost, f"acknowledged entries {sorted(lost)} are behind the end, {end}"
        for entry_id, payload in world.acknowledged.items():
            assert payload == entries[entry_id], f"entry {entry_id} is not what was acknowledged"
        assert set(entries.values()) <= world.sent
        assert len(set(entries.values())) == len(entries), "an entry is there twice"
        again, end_again = await read_all(ledgers, world)
        assert (again, end_again) == (entries, end), "two readers do not agree"
        metadata = (await ledgers.ledgers_metadata.read(world.ledger_id)).metadata
        assert metadata.state is LedgerState.CLOSED
        keys = [fragment.first_entry_id for fragment in metadata.fragments]
        assert keys == sorted(set(keys))
        assert metadata.length == sum(map(len, entries.values()))


async def read_all(ledgers: LedgerClient, world: World) -> tuple[dict[EntryId, bytes], EntryId]:
    async with ledgers.open(world.ledger_id) as reader:
        entries = {entry.entry_id: entry.payload async for entry in reader.read()}
        assert list(entries) == list(range(reader.last_add_confirmed + 1))
        return entries, reader.last_add_confirmed


async def live(sim: Simulation) -> World:
    world, created = World(), asyncio.Event()
    async with sim_cluster(sim) as cluster:
        bookies = [SimBookie(sim, f"b{number}", cluster) for number in range(BOOKIES)]
        for bookie in bookies:
            await bookie.start()
        slow_links(sim)
        writer = asyncio.create_task(write(world, sim, sim.rng.choice(QUORUMS), created))
        await created.wait()
        if world.ledger_id < 0:
            await writer
            raise AssertionError(f"the ledger could not be created: {world.events}")
        over = asyncio.Event()
        troubling = asyncio.create_task(trouble(world, sim, bookies, over))
        rivals = [asyncio.create_task(recover_sometime(world, sim, name)) for name in ("first", "second")]
        await asyncio.sleep(sim.rng.random() * 6)
        over.set()
        await troubling
        sim.network.heal()
        sim.network.link_latency_s.clear()
        for bookie in bookies:
            await start(bookie)
        writer.cancel()
        await asyncio.wait([*rivals, writer])
        for task in rivals:
            task.result()
        await check(world, sim)
        for bookie in bookies:
            await bookie.stop()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ledger_keeps_its_promises(seed: int) -> None:
    simulate(seed, live, time_limit_s=600)


def test_the_workload_is_worth_something() -> None:
    """Entries are acknowledged, writers are shut out, and bookies crash meanwhile."""
    worlds = [simulate(seed, live, time_limit_s=600) for seed in range(20)]
    assert sum(len(world.acknowledged) for world in worlds) > 1000
    assert sum(world.fenced for world in worlds) >= 3
    assert sum(event.startswith("crash") for world in worlds for event in world.events) > 10
