"""What happens to those who write a stream, beside what happens to any cluster."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.streams import clients
from tests.simulation.streams.world import OneStream, StreamWorld
from tests.support.simulation import faults as of_clusters


async def wreak(world: StreamWorld, kind: str) -> None:
    """Let one fault happen, to whomever the seed chooses."""
    rng = world.rng
    writers = [name for name in world.client_names if name.startswith(("writer", "rival"))]
    if kind == "isolate":
        if world.client_names:
            world.events[kind] += 1
            # Readers are cut off too, but writers that go on without knowing are what this is about.
            isolate(world, rng.choice(writers * 3 + world.client_names), rng.choice([0.3, 1.0, 3.0, 4.5]))
    elif "_writer" in kind:
        await wreak_on(world, kind, writers, clients.write, answers_max=2, back_within_s=0.5)
    else:
        await of_clusters.wreak(world, kind)


async def wreak_on(
    world: OneStream[Any],
    kind: str,
    names: list[str],
    work: Callable[[Any, str], Coroutine[Any, Any, None]],
    *,
    answers_max: int,
    back_within_s: float,
) -> None:
    """Let one fault happen to one of these clients. If it dies it begins again with `work`."""
    if not names:
        return
    rng, tree, changes = world.rng, world.tree, world.changes
    world.events[kind] += 1
    name = rng.choice(names)
    match kind.split("_"):
        case ["stall", _]:
            tree.stall(name, rng.choice([0.05, 0.3, 1.0, 4.5]))
        case ["expire", _]:
            tree.expire_host(name)
        case ["lose", _, "answers"]:
            tree.lose_answers(name, rng.randrange(1, answers_max + 1))
        case ["lose", _, "requests"]:
            changes.lose_requests(name, rng.randrange(1, 3))
        case ["delay", _, "requests"]:
            changes.delay_requests(name, rng.randrange(1, 3), rng.random() * 0.4, is_first=rng.random() < 0.5)
        case ["stop", _]:
            changes.stop_behind(name, rng.choice([0.5, 1.0, 2.0]))
        case ["crash", _]:
            await world.restart(name, work, within_s=back_within_s)
        case _:
            raise AssertionError(f"there is no fault {kind!r}")


def isolate(world: StreamWorld, name: str, seconds: float) -> None:
    """Nothing gets through between a client and all others, for a while."""
    network, loop = world.sim.network, asyncio.get_running_loop()
    world.tree.stall(name, seconds)
    for bookie in world.bookies:
        network.partition(name, bookie.host.name)
        loop.call_later(seconds, network.heal, name, bookie.host.name)
