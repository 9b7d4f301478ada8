"""What happens to a simulated cluster while its clients work: one fault after the other, as the seed has it."""

import asyncio

from quire.testing import SimBookie
from quire.types import bookie_id
from tests.simulation.ledgers.plan import Fault
from tests.simulation.ledgers.world import FREE_BYTES_MIN, World


def slow_links(world: World, clients: list[str]) -> None:
    """Some bookies are far from some clients: entries are on some of them long before they are on others."""
    rng, plan = world.rng, world.plan
    for bookie in world.bookies:
        for client in clients:
            if rng.random() < plan.slow_chance:
                slow = rng.choice(plan.slow_s)
                for link in ((client, bookie.host.name), (bookie.host.name, client)):
                    world.sim.network.link_latency_s[link] = (slow / 4, slow)


async def trouble(world: World, until: asyncio.Event) -> None:
    rng, faults = world.rng, world.plan.faults
    if not faults:
        return
    kinds = list(faults)
    total = sum(faults.values())
    while not until.is_set():
        await asyncio.sleep(rng.random() * world.plan.fault_pause_s)
        dice = rng.random() * total
        for kind in kinds:
            dice -= faults[kind]
            if dice < 0:
                break
        await wreak(world, kind)
        for bookie in world.bookies:
            if not bookie.is_running and rng.random() < 0.3:
                await world.start(bookie)


async def wreak(world: World, kind: Fault) -> None:
    """Let one fault happen, to whomever the seed chooses."""
    sim, rng = world.sim, world.rng
    bookie = rng.choice(world.bookies)
    faults, name = bookie.host.disk.faults, bookie.host.name
    world.events[kind] += 1
    match kind:
        case "crash":
            if bookie.is_running:
                await world.crash(bookie, power_loss=rng.random() < 0.7)
            else:
                await world.start(bookie)
        case "blackout":
            await blackout(world, rng.sample(world.bookies, rng.randrange(2, len(world.bookies) + 1)))
        case "reset":
            sim.network.reset_all(name)
        case "partition":
            sim.network.partition(rng.choice(world.client_names or ["nobody"]), name, one_way=rng.random() < 0.5)
        case "heal":
            sim.network.heal()
        case "stall":
            world.tree.stall(anybody(world), rng.choice([0.02, 0.2, 1.0, 3.5]))
        case "expire":
            world.tree.expire_host(anybody(world))
        case "lose_answers":
            world.tree.lose_answers(anybody(world), rng.randrange(1, 3))
        case "slow_sync":
            faults.latency_by_operation_s["sync"] = (0.05, rng.choice([0.1, 0.5]))
        case "fast_sync":
            faults.latency_by_operation_s.clear()
        case "failing_sync":
            faults.fail_next("sync")
        case "fill":
            bookie.host.disk.fill(int(FREE_BYTES_MIN * rng.choice([0.5, 0.1, 0.003])))
        case "make_room":
            for each in world.bookies:
                each.host.disk.faults.foreign_bytes = 0
        case "wipe":
            if can_lose(world, bookie):
                await world.wipe(bookie)
        case "damage":
            if can_lose(world, bookie):
                damage_logs(world, bookie)
        case "crash_client":
            if world.client_names:
                await world.crash_client(rng.choice(world.client_names))


def anybody(world: World) -> str:
    """A bookie or a client: whoever uses the metadata."""
    return world.rng.choice([*(bookie.host.name for bookie in world.bookies), *world.client_names])


def can_lose(world: World, bookie: SimBookie) -> bool:
    """One bookie's data may be lost for good, if no entry was ever acknowledged by it alone."""
    return world.quorum.ack > 1 and world.lost <= {bookie_id(bookie.host.name)}


async def blackout(world: World, bookies: list[SimBookie]) -> None:
    """Power is lost in several places at the same moment."""
    await asyncio.gather(*(world.crash(bookie, power_loss=True) for bookie in bookies))
    await asyncio.sleep(world.rng.random() * 0.3)
    for bookie in bookies:
        await world.start(bookie)


def damage_logs(world: World, bookie: SimBookie) -> None:
    """Flip bits all over what a bookie has in its entry logs."""
    disk, rng = bookie.host.disk, world.rng
    world.lost.add(bookie_id(bookie.host.name))
    for path, size in disk.sizes("/data/entries").items():
        for offset in range(rng.randrange(100), size, 40):
            disk.flip_bit(path, offset)
            world.events["bits flipped"] += 1
