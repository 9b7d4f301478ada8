"""What happens to those who write a stream, beside what happens to any cluster."""

import asyncio

from tests.simulation.clusters import faults as of_clusters
from tests.simulation.streams import clients
from tests.simulation.streams.world import World


async def wreak(world: World, kind: str) -> None:
    """Let one fault happen, to whomever the seed chooses."""
    rng = world.rng
    writers = [name for name in world.client_names if name.startswith(("writer", "rival"))]
    if kind == "isolate":
        if world.client_names:
            world.events[kind] += 1
            # Readers are cut off too, but writers that go on without knowing are what this is about.
            isolate(world, rng.choice(writers * 3 + world.client_names), rng.choice([0.3, 1.0, 3.0, 4.5]))
        return
    if not kind.endswith(("_writer", "_writer_answers", "_writer_requests")):
        await of_clusters.wreak(world, kind)
        return
    if not writers:
        return
    world.events[kind] += 1
    name = rng.choice(writers)
    match kind:
        case "stall_writer":
            world.tree.stall(name, rng.choice([0.05, 0.3, 1.0, 4.5]))
        case "expire_writer":
            world.tree.expire_host(name)
        case "lose_writer_answers":
            world.tree.lose_answers(name, rng.randrange(1, 3))
        case "lose_writer_requests":
            world.changes.lose_requests(name, rng.randrange(1, 3))
        case "delay_writer_requests":
            world.changes.delay_requests(name, rng.randrange(1, 3), rng.random() * 0.4)
        case "crash_writer":
            await restart(world, name)
        case _:
            raise AssertionError(f"there is no fault {kind!r}")


def isolate(world: World, name: str, seconds: float) -> None:
    """Nothing gets through between a client and all others, for a while."""
    network, loop = world.sim.network, asyncio.get_running_loop()
    world.tree.stall(name, seconds)
    for bookie in world.bookies:
        network.partition(name, bookie.host.name)
        loop.call_later(seconds, network.heal, name, bookie.host.name)


async def restart(world: World, name: str) -> None:
    """The host of a writer dies. Sometime later it runs again."""
    await world.crash_client(name)

    async def start_later() -> None:
        await world.pause(world.rng.random() * 0.5)
        world.spawn(name, clients.write(world, name))

    task = asyncio.create_task(start_later(), name=f"restart of {name}")
    world.restarting.add(task)
    task.add_done_callback(world.restarting.discard)
