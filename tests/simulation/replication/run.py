"""One simulated run: trouble, a bookie that dies for good, repairs; and once more; then the proof."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from quire.errors import QuireError
from quire.ledger.client import LedgerClient
from quire.testing import Simulation, sim_cluster, simulate
from tests.simulation.clusters.faults import damage_logs, slow_links, trouble, wreak
from tests.simulation.ledgers.clients import follow, write_ledger
from tests.simulation.ledgers.plan import Plan
from tests.simulation.replication.world import HOSTS, RepairWorld
from tests.support.ledgers.history import LedgerHistory

Workload = Callable[[Simulation], Coroutine[Any, Any, RepairWorld]]

TIME_LIMIT_S = 2000.0


def run(seed: int, workload: Workload) -> RepairWorld:
    """Run one seed. Raises what proves that a promise was broken; every failure names the seed."""
    return simulate(seed, workload, time_limit_s=TIME_LIMIT_S)


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a run is made of. Faults are as in `tests.simulation.clusters.faults`, and `crash_repairs`."""

    faults: dict[str, float] = field(default_factory=dict)
    losses: int = 2
    """Bookies that die for good, or whose logs go bad, one after the other: each when the one before is repaired."""

    damage_chance: float = 0.3
    lasts_s: float = 3.0
    writers: int = 2
    tailers: int = 1
    deletes: bool = True
    bookies: int = 5
    stage: Plan = field(
        default_factory=lambda: Plan(bookies=5, appenders=2, append_pause_s=0.5, ledgers=1, fault_pause_s=0.6).having(
            (3, 3, 2), (3, 2, 2), (3, 3, 3), (4, 3, 2), (2, 2, 2)
        )
    )


def mixed(plan: RepairPlan) -> Workload:
    return functools.partial(live, plan=plan)


async def live(sim: Simulation, plan: RepairPlan) -> RepairWorld:
    async with sim_cluster(sim) as cluster:
        world = RepairWorld(sim, plan.stage, cluster)
        for bookie in world.bookies:
            await bookie.start()
        await _act(world, plan)
        for name in world.client_names:
            await world.end_client(name)
        for bookie in world.bookies:
            if bookie.is_running:
                await bookie.stop()
    return world


async def _act(world: RepairWorld, plan: RepairPlan) -> None:
    writers = [f"writer{number}" for number in range(plan.writers)]
    tailers = [f"tailer{number}" for number in range(plan.tailers)]
    slow_links(world, [*writers, *tailers, *HOSTS])
    world.start_repairs()
    for name in writers:
        world.spawn(name, keep_writing(world, name))
    for name in tailers:
        world.spawn(name, tail(world, name))
    if plan.deletes:
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
    enough, rng = asyncio.Event(), world.rng
    until_loss = [rng.randrange(4)]  # Faults come one at a time, and so does this.

    async def wreak_or_lose(kind: str) -> None:
        until_loss[0] -= 1
        if until_loss[0] == -1:
            await lose(world, plan)
        await wreak_on_repairs(world, kind)

    troubling = asyncio.create_task(trouble(world, plan.faults, wreak_or_lose, enough))
    await asyncio.sleep(rng.random() * plan.lasts_s)
    enough.set()
    await troubling
    if until_loss[0] >= 0:
        await lose(world, plan)


async def lose(world: RepairWorld, plan: RepairPlan) -> None:
    victim = world.rng.choice(world.alive)
    if world.rng.random() < plan.damage_chance:
        damage_logs(world, victim)
        world.events["damaged"] += 1
    else:
        await world.wipe(victim)
    if len(world.alive) < plan.bookies or world.rng.random() < 0.3:
        await world.add_bookie()


async def wreak_on_repairs(world: RepairWorld, kind: str) -> None:
    if kind == "crash_repairs":
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
                    await write_ledger(world, name, ledgers)  # type: ignore[arg-type]
            except TimeoutError:
                world.events["closed"] += 1
            await asyncio.sleep(world.rng.random() * 1.5)
        await asyncio.Event().wait()


async def tail(world: RepairWorld, name: str) -> None:
    async with world.ledgers(name) as ledgers:
        read = 0
        while not world.over.is_set():
            await asyncio.sleep(world.rng.random() * 0.8)
            kept = [each for each in world.histories if each.ledger_id not in world.deleted]
            if kept:
                read += 1
                await _read(world, ledgers, world.rng.choice(kept), f"{name} for the {read}. time")


async def _read(world: RepairWorld, ledgers: LedgerClient, history: LedgerHistory, handle: str) -> None:
    try:
        async with asyncio.timeout(world.rng.random() * 2):
            await follow(world, ledgers, history, handle)  # type: ignore[arg-type]
    except TimeoutError:
        world.events["tail cut short"] += 1
    except QuireError as error:
        world.note("tailer", error)


async def delete_now_and_then(world: RepairWorld) -> None:
    """Now and then a ledger is not needed any more, perhaps while it is being repaired."""
    async with world.ledgers("deleter") as ledgers:
        while not world.over.is_set():
            await asyncio.sleep(1 + world.rng.random() * 6)
            kept = [each.ledger_id for each in world.histories if each.ledger_id not in world.deleted]
            if len(kept) > 3:
                chosen = world.rng.choice(kept[:-2])
                try:
                    await ledgers.delete(chosen)
                except QuireError as error:
                    world.note("deleter", error)
                world.deleted.add(chosen)  # Perhaps it was: nobody relies on it any more.
                world.events["deleted"] += 1
