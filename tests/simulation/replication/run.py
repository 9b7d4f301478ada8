"""One simulated run: trouble, a bookie that dies for good, repairs; and once more; then the proof."""

import asyncio
from dataclasses import dataclass

from quire.errors import QuireError
from quire.testing import Simulation
from quire.types import Quorum
from tests.simulation.ledgers.clients import tail, write_ledger
from tests.support.simulation.faults import damage_logs, delay_writes, slow_links, trouble, wreak
from tests.support.simulation.ledgers import Plan
from tests.support.simulation.repairs import HOSTS, RepairWorld
from tests.support.simulation.world import name_of

TAIL_PAUSE_S = 0.8


@dataclass(frozen=True, slots=True)
class RepairPlan(Plan):
    """What a run is made of. Faults are as in `tests.support.simulation.faults`, and those of `wreak_on_repairs`."""

    quorums: tuple[Quorum, ...] = tuple(
        Quorum(*each) for each in [(3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (2, 2, 2)]
    )
    bookies: int = 5
    lasts_s: float = 3.0
    fault_pause_s: float = 0.6
    appenders: int = 2
    append_pause_s: float = 0.5
    writers: int = 2
    losses: int = 2
    """Bookies that die for good, or whose logs go bad, one after the other: each when the one before is repaired."""

    damage_chance: float = 0.3


EVERYTHING = RepairPlan(
    {
        "crash": 3,
        "blackout": 0.4,
        "reset": 1,
        "partition": 1,
        "heal": 2,
        "stall": 1,
        "expire": 1,
        "lose_answers": 1,
        "fill": 0.7,
        "make_room": 1,
        "failing_sync": 0.3,
        "crash_repairs": 1,
    }
)


LATE_WRITES = RepairPlan(
    {"delay_repairs": 10, "delay_writes": 1, "crash": 2, "fill": 0.5, "make_room": 1, "stall": 0.5}
)
"""Metadata writes, above all those of repairs, happen long after it was asked whether they had."""


async def live(sim: Simulation, plan: RepairPlan) -> RepairWorld:
    async with RepairWorld.open(sim, plan) as world:
        await _act(world, plan)
    return world


async def _act(world: RepairWorld, plan: RepairPlan) -> None:
    writers = [f"writer{number}" for number in range(plan.writers)]
    tailers = [f"tailer{number}" for number in range(plan.tailers)]
    slow_links(world, [*writers, *tailers, *HOSTS])
    world.start_repairs()
    for name in writers:
        world.spawn(name, keep_writing(world, name))
    for name in tailers:
        world.spawn(name, tail(world, name, pause_s=TAIL_PAUSE_S))
    world.spawn("deleter", delete_now_and_then(world))
    for _ in range(plan.losses):
        await _lose_one(world, plan)
        await world.mend()
        world.start_repairs()
        await world.wait_whole()
    await world.repair()
    for name in [*writers, "deleter"]:
        await world.end_client(name)
    await world.end_clients(tailers, within_s=200.0)
    await world.prove()


async def _lose_one(world: RepairWorld, plan: RepairPlan) -> None:
    """Some trouble, in the middle of which a disk is lost, and perhaps a new bookie comes."""
    rng = world.rng
    until_loss = [rng.randrange(4)]  # Faults come one at a time, and so does this.

    async def wreak_or_lose(kind: str) -> None:
        until_loss[0] -= 1
        if until_loss[0] == -1:
            await lose(world, plan)
        await wreak_on_repairs(world, kind)

    async with trouble(world, plan.faults, wreak_or_lose):
        await asyncio.sleep(rng.random() * plan.lasts_s)
    if until_loss[0] >= 0:
        await lose(world, plan)


async def lose(world: RepairWorld, plan: RepairPlan) -> None:
    # A damaged bookie that serves may stay down the next time: then what it was given since is lost, too.
    damaged = [bookie for bookie in world.bookies if name_of(bookie) in world.damaged]
    victim = world.rng.choice(damaged or world.alive)
    if not damaged and world.rng.random() < plan.damage_chance:
        damage_logs(world, victim)
        world.events["damaged"] += 1
    else:
        await world.wipe(victim)
    if len(world.alive) < plan.bookies or world.rng.random() < 0.3:
        await world.add_bookie()


async def wreak_on_repairs(world: RepairWorld, kind: str) -> None:
    if kind == "delay_repairs":
        world.events[kind] += 1
        delay_writes(world.tree, world.rng, world.rng.choice(HOSTS))
    elif kind == "crash_repairs":
        name = world.rng.choice(HOSTS)
        world.events[kind] += 1
        if name in world.client_names:
            await world.crash_client(name)
        else:
            world.start_repairs([name])
    else:
        await wreak(world, kind)


# --- Clients


async def keep_writing(world: RepairWorld, name: str) -> None:
    """One ledger after the other: each until it is time to close it, or it may not be written any more."""
    async with world.ledgers(name) as ledgers:
        while not world.over.is_set():
            try:
                async with asyncio.timeout(0.5 + world.rng.random() * 4):
                    await write_ledger(world, name, ledgers)
            except TimeoutError:
                world.events["closed"] += 1
            await asyncio.sleep(world.rng.random() * 1.5)
        await asyncio.Event().wait()


async def delete_now_and_then(world: RepairWorld) -> None:
    """Now and then a ledger is not needed any more, perhaps while it is being repaired."""
    async with world.ledgers("deleter") as ledgers:
        while not world.over.is_set():
            await asyncio.sleep(1 + world.rng.random() * 6)
            kept = [each.ledger_id for each in world.kept]
            if len(kept) > 3:
                chosen = world.rng.choice(kept[:-2])
                try:
                    await ledgers.delete(chosen)
                except QuireError as error:
                    world.note("deleter", error)
                world.deleted.add(chosen)  # Perhaps it was: nobody relies on it any more.
                world.events["deleted"] += 1
