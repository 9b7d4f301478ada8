"""One simulated run of ledgers: start, trouble, repair, proof."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from quire.testing import Simulation
from tests.simulation.ledgers.clients import copy_fragments, recover_sometime, rival, tail, write
from tests.support.ledgers.history import check
from tests.support.simulation.faults import slow_links, trouble, wreak
from tests.support.simulation.ledgers import LedgerWorld, Plan

_END_S = 200.0


async def live(sim: Simulation, plan: Plan) -> LedgerWorld:
    """All kinds of clients and faults, as the plan says."""
    async with LedgerWorld.open(sim, plan) as world:
        await _act(world)
    return world


async def _act(world: LedgerWorld) -> None:
    plan = world.plan
    cast: dict[str, Callable[[LedgerWorld, str], Coroutine[Any, Any, None]]] = {"writer": write}
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
    async with trouble(world, plan.faults, functools.partial(wreak, world)):
        await asyncio.sleep(world.rng.random() * plan.lasts_s)
    await world.repair()
    await _end(world)


async def _end(world: LedgerWorld) -> None:
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
