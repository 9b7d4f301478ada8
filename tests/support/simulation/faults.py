"""What happens to a simulated cluster while its clients work: one fault after the other, as the seed has it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar

from quire.runtime import Rng
from quire.testing import SimBookie, SimTree
from tests.support.simulation.world import FREE_BYTES_MIN, World, name_of

Fault = Literal[
    "crash",  # One bookie stops, with or without its machine. If it is down it comes back.
    "blackout",  # Several bookies lose power at once, and come back.
    "reset",  # All connections of a bookie break.
    "partition",  # Nothing gets through between a client and a bookie, in one direction or both.
    "heal",
    "stall",  # Somebody cannot reach the metadata for a while.
    "expire",  # Somebody's metadata session is over.
    "lose_answers",  # Metadata writes happen, and whoever asked for them is told that nobody knows.
    "delay_writes",  # Nobody knows of metadata writes, and they happen some time later, or never.
    "slow_sync",  # A bookie's disk takes long to flush.
    "fast_sync",
    "failing_sync",  # A flush fails, and the bookie stops.
    "fill",  # A bookie's disk is nearly full: it turns read-only, or takes nothing at all.
    "make_room",
    "wipe",  # A bookie's disk is exchanged for an empty one: it must not start again. Once in a run.
    "damage",  # Bits flip in a bookie's entry logs. One bookie in a run.
    "collect",  # A bookie collects garbage and compacts its logs.
    "crash_client",  # The host of a client dies.
]
Kind = TypeVar("Kind", bound=str)


def slow_links(world: World[Any], clients: list[str]) -> None:
    """Some bookies are far from some clients: entries are on some of them long before they are on others."""
    rng, plan = world.rng, world.plan
    for bookie in world.bookies:
        for client in clients:
            if rng.random() < plan.slow_chance:
                slow = rng.choice(plan.slow_s)
                for link in ((client, bookie.host.name), (bookie.host.name, client)):
                    world.sim.network.link_latency_s[link] = (slow / 4, slow)


@asynccontextmanager
async def trouble(
    world: World[Any], faults: Mapping[Kind, float], wreak: Callable[[Kind], Awaitable[None]]
) -> AsyncIterator[None]:
    """Let faults happen during the block, each as often as its weight says."""
    enough = asyncio.Event()
    troubling = asyncio.create_task(_trouble(world, faults, wreak, enough))
    yield
    enough.set()
    await troubling


async def _trouble(
    world: World[Any], faults: Mapping[Kind, float], wreak: Callable[[Kind], Awaitable[None]], until: asyncio.Event
) -> None:
    rng = world.rng
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
        await wreak(kind)
        for bookie in world.bookies:
            if not bookie.is_running and rng.random() < 0.3:
                await world.start(bookie)


async def wreak(world: World[Any], kind: str) -> None:
    """Let one `Fault` happen, to whomever the seed chooses."""
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
        case "delay_writes":
            delay_writes(world.tree, rng, anybody(world))
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
        case "collect":
            collect_garbage(bookie)
        case "crash_client":
            if world.client_names:
                await world.crash_client(rng.choice(world.client_names))
        case _:
            raise AssertionError(f"there is no fault {kind!r}")


def delay_writes(tree: SimTree, rng: Rng, host: str) -> None:
    """The next metadata writes of a host come late, soon or after a while, or never."""
    seconds = rng.choice([0.002, 0.05, 1.0]) * rng.random()
    tree.delay_writes(host, rng.randrange(1, 3), seconds, is_first=rng.random() < 0.3)


def anybody(world: World[Any]) -> str:
    """A bookie or a client: whoever uses the metadata."""
    return world.rng.choice([*(bookie.host.name for bookie in world.bookies), *world.client_names])


def can_lose(world: World[Any], bookie: SimBookie) -> bool:
    """One bookie's data may be lost for good, if no entry was ever acknowledged by it alone."""
    return world.quorum.ack > 1 and world.lost <= {name_of(bookie)}


async def blackout(world: World[Any], bookies: list[SimBookie]) -> None:
    """Power is lost in several places at the same moment."""
    await asyncio.gather(*(world.crash(bookie, power_loss=True) for bookie in bookies))
    await asyncio.sleep(world.rng.random() * 0.3)
    for bookie in bookies:
        await world.start(bookie)


def collect_garbage(bookie: SimBookie) -> None:
    """Have a bookie delete what is gone and compact its logs, beside everything else that it does."""
    if bookie.is_running and (garbage := bookie.bookie.garbage) is not None:
        garbage.trigger(minor=True, major=True)


def damage_logs(world: World[Any], bookie: SimBookie) -> None:
    """Flip bits all over what a bookie has in its entry logs."""
    disk, rng = bookie.host.disk, world.rng
    world.lost.add(name_of(bookie))
    world.damaged.add(name_of(bookie))
    for path, size in disk.sizes("/data/entries").items():
        for offset in range(rng.randrange(100), size, 40):
            disk.flip_bit(path, offset)
            world.events["bits flipped"] += 1
