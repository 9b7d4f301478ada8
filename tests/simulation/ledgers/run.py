"""One simulated run: start, trouble, repair, proof."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from quire.testing import Simulation, sim_cluster, simulate
from tests.simulation.clusters.faults import slow_links, trouble, wreak
from tests.simulation.ledgers.clients import copy_fragments, recover_sometime, rival, tail, write
from tests.simulation.ledgers.plan import Plan
from tests.simulation.ledgers.world import World
from tests.support.ledgers.history import check

Workload = Callable[[Simulation], Coroutine[Any, Any, World]]

TIME_LIMIT_S = 600.0
_END_S = 200.0


def run(seed: int, workload: Workload) -> World:
    """Run one seed. Raises what proves that a promise was broken; every failure names the seed."""
    return simulate(seed, workload, time_limit_s=TIME_LIMIT_S)


def mixed(plan: Plan) -> Workload:
    """All kinds of clients and faults, as the plan says."""
    return functools.partial(live, plan=plan)


async def live(sim: Simulation, plan: Plan) -> World:
    async with sim_cluster(sim) as cluster:
        world = World(sim, plan, cluster)
        for bookie in world.bookies:
            await bookie.start()
        await _act(world)
        for bookie in world.bookies:
            if bookie.is_running:
                await bookie.stop()
    return world


async def _act(world: World) -> None:
    plan, enough = world.plan, asyncio.Event()
    cast: dict[str, Callable[[World, str], Coroutine[Any, Any, None]]] = {"writer": write}
    for kind, count, role in (
        ("recoverer", plan.recoverers, recover_sometime),
        ("rival", plan.rivals, rival),
        ("tailer", plan.tailers, tail),
        ("copier", plan.copiers, copy_fragments),
    ):
        cast |= {f"{kind}{number}": role for number in range(count)}
    slow_links(world, list(cast))
    for name, act in cast.items():
        world.spawn(name, act(world, name))
    troubling = asyncio.create_task(trouble(world, plan.faults, functools.partial(wreak, world), enough))
    await asyncio.sleep(world.rng.random() * plan.lasts_s)
    enough.set()
    await troubling
    await world.repair()
    await _end(world)


async def _end(world: World) -> None:
    """Writers are closed, or die, or go on until the proof recovers their ledgers from under them."""
    writers = [name for name in world.client_names if name.startswith(("writer", "rival"))]
    ending = world.rng.choice(world.plan.endings)
    for name in writers:
        if ending == "cancel":
            await world.end_client(name)
        elif ending == "crash":
            await world.crash_client(name)
    if ending == "go on":
        await world.answered()
    others = [name for name in world.client_names if name not in writers]
    await world.end_clients(others, within_s=_END_S)
    async with world.ledgers("checker") as ledgers:
        if ending == "go on":
            for history in world.histories:
                await ledgers.recover(history.ledger_id)
            await asyncio.sleep(world.rng.random() * 0.2)
            for name in writers:
                await world.end_client(name)
        for history in world.histories:
            await check(ledgers, history, excused=world.lost)
