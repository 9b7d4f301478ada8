"""Operators at work while writers write, readers read, repairs go on, and bookies tidy up behind all of them.

`operations`   everything at once, with everything that can go wrong.
`growing`      bookies come, and ledgers are moved to them; nothing goes wrong but for the rebalancing itself, which is
               killed again and again. So every read must succeed.
`leaving`      bookies are drained, stopped and decommissioned, and new ones come. Nothing else goes wrong.
`nowhere`      a bookie is to leave, and there is no other for what it has, until one comes.
`lost_lock`    a worker loses the lock of a ledger while it copies, and the taker tidies up what is there by then.

A rebalancer makes a plan, carries it out, and goes on with the same plan wherever it was interrupted. A decommissioner
wants to be rid of the bookies that are leaving, and says so when it is.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from quire.app.decommission import decommission
from quire.app.inventory import Operations, Target, open_operations
from quire.app.rebalance import make_plan, read_plan, run_plan, write_plan
from quire.errors import InvalidArgument, NoSuchEntry, NoSuchLedger, QuireError
from quire.ledger.client import LedgerClient
from quire.testing import Simulation
from quire.types import LedgerState
from tests.simulation.ledgers.clients import tail
from tests.simulation.replication.operations_world import OperationsWorld
from tests.simulation.replication.races import closed
from tests.simulation.replication.run import (
    TAIL_PAUSE_S,
    RepairPlan,
    delete_now_and_then,
    keep_writing,
    lose,
    wreak_on_repairs,
)
from tests.support.ledgers.history import LedgerHistory
from tests.support.simulation.faults import slow_links, trouble
from tests.support.simulation.ledgers import Plan
from tests.support.simulation.repairs import HOSTS, REPAIR
from tests.support.simulation.world import URI, name_of

REBALANCERS = ("rebalancer0", "rebalancer1")
DECOMMISSIONER = "decommissioner"
_TARGET = Target(URI, timeout_s=4.0)
_BYTES_PER_S = (0.0, 2000.0, 300.0, 60.0)  # Slow ones are at one ledger for many rounds of garbage collection.


@dataclass(frozen=True, slots=True)
class OperationsPlan(RepairPlan):
    """What a run is made of. Faults are as for repairs, and those of `_FAULTS`."""

    lasts_s: float = 5.0
    reads_succeed: bool = False
    """Whether nothing goes wrong that is an excuse for a read."""


OPERATIONS = OperationsPlan(
    {
        "crash": 2,
        "blackout": 0.3,
        "reset": 1,
        "partition": 1,
        "heal": 2,
        "stall": 1,
        "expire": 1.5,
        "lose_answers": 1.5,
        "fill": 0.5,
        "make_room": 1,
        "failing_sync": 0.3,
        "crash_repairs": 1,
        "crash_operator": 1.5,
        "grow": 1,
        "drain": 0.7,
        "leave": 1.5,
        "lose": 0.7,
    }
)
GROWING = OperationsPlan(
    {"crash_operator": 2, "grow": 2, "expire_operator": 1},
    slow_chance=0.0,
    reads_succeed=True,
)
LEAVING = OperationsPlan(
    {"crash_operator": 0.5, "grow": 1, "drain": 0.5, "leave": 2},
    slow_chance=0.0,
    reads_succeed=True,
)


async def live(sim: Simulation, plan: OperationsPlan) -> OperationsWorld:
    async with OperationsWorld.open(sim, plan) as world:
        with TemporaryDirectory() as folder:
            await _act(world, plan, Path(folder))
    return world


async def _act(world: OperationsWorld, plan: OperationsPlan, folder: Path) -> None:
    writers = [f"writer{number}" for number in range(plan.writers)]
    readers = ["tailer", "reader0", "reader1"]
    slow_links(world, [*writers, *readers, *HOSTS, *REBALANCERS])
    world.start_repairs()
    for name in writers:
        world.spawn(name, keep_writing(world, name))
    world.spawn("tailer", tail(world, "tailer", pause_s=TAIL_PAUSE_S))
    for name in readers[1:]:
        world.spawn(name, _read_at_random(world, plan, name))
    world.spawn("deleter", delete_now_and_then(world))
    start_operators = functools.partial(_start_operators, world, folder)
    start_operators()
    await _cause_trouble(world, plan, start_operators)
    await world.mend()
    world.start_repairs()
    start_operators()
    await world.wait_left()
    await world.wait_whole()
    await world.settle()
    await world.repair()
    for name in [*writers, "deleter", *REBALANCERS, DECOMMISSIONER]:
        await world.end_client(name)
    await world.end_clients(readers, within_s=200.0)
    await world.prove()
    await world.wait_tidy()
    await world.prove()  # Once more, with nothing left of old copies.
    await world.settle()


async def _cause_trouble(world: OperationsWorld, plan: OperationsPlan, start_operators: Callable[[], None]) -> None:
    """Trouble, with operators in the middle of it."""
    if len(world.alive) < plan.bookies + 2:
        await world.add_bookie()
    faults = {kind: functools.partial(each, world, plan) for kind, each in _FAULTS.items()}

    async def wreak_here(kind: str) -> None:
        if kind in faults:
            world.events[kind] += 1
            await faults[kind]()
        else:
            await wreak_on_repairs(world, kind)
        if world.rng.random() < 0.5:
            start_operators()

    async with trouble(world, plan.faults, wreak_here):
        await asyncio.sleep((0.3 + world.rng.random()) * plan.lasts_s)


async def nowhere(sim: Simulation) -> OperationsWorld:
    """Until there is a bookie for the copies nobody says that the one that leaves is needed no more; then it goes."""
    async with OperationsWorld.open(sim, Plan(bookies=3).having((3, 3, 2), (3, 2, 2), (3, 3, 3))) as world:
        world.start_repairs()
        for number in range(world.rng.randrange(1, 4)):
            await closed(world, f"writer{number}", world.rng.randrange(1, 12))
        await world.begin_to_leave(world.rng.choice(world.bookies))
        world.spawn(DECOMMISSIONER, _decommission(world))
        await asyncio.sleep(world.rng.random() * 120)
        await world.settle()
        await world.add_bookie()
        await world.wait_left()
        await world.repair()
        await world.prove()
        await world.settle()
    return world


async def lost_lock(sim: Simulation) -> OperationsWorld:
    """Somebody removes the lock, its session still lives. What was copied may be gone: the metadata must not say that
    it is there."""
    plan, slow = Plan(bookies=4).having((3, 3, 2), (3, 2, 2), (2, 2, 2)), replace(REPAIR, bytes_per_s=30.0)
    async with OperationsWorld.open(sim, plan, settings=slow) as world:
        history = await closed(world, "writer", world.rng.randrange(20, 60))
        metadata = world.metadata_of(history.ledger_id)
        assert metadata is not None
        members = [each for each in world.bookies if name_of(each) in metadata.fragments[0].bookies]
        await world.wipe(world.rng.choice(members))
        world.start_repairs(["autorecovery0"])
        await world.remove_lock(history.ledger_id, after_s=world.rng.random() * 3)
        await asyncio.sleep(world.rng.random() * 20)
        await world.repair()
        await world.prove()
        await world.settle()
    return world


# --- What happens


async def _crash_operator(world: OperationsWorld, plan: OperationsPlan) -> None:
    name = world.rng.choice([*REBALANCERS, DECOMMISSIONER])
    if name in world.client_names:
        await world.crash_client(name)


async def _expire_operator(world: OperationsWorld, plan: OperationsPlan) -> None:
    world.tree.expire_host(world.rng.choice([*REBALANCERS, DECOMMISSIONER]))


async def _grow(world: OperationsWorld, plan: OperationsPlan) -> None:
    if len(world.alive) < plan.bookies + 3:
        await world.add_bookie()


async def _drain(world: OperationsWorld, plan: OperationsPlan) -> None:
    try:
        await world.drain(world.rng.choice(world.alive))
    except (QuireError, OSError) as error:
        world.events[f"drain: {type(error).__name__}"] += 1


async def _leave(world: OperationsWorld, plan: OperationsPlan) -> None:
    """A bookie is stopped for good, drained or not, if there are enough others to take what it has. One at a time, or
    the two might have all copies of a ledger."""
    await world.stop_leaving()
    if not world.leaving and len(world.alive) > world.quorum.ensemble + 1:
        bookie = world.rng.choice(world.alive)
        if world.rng.random() < 0.5:
            await _drain(world, plan)
        await world.begin_to_leave(bookie)


async def _lose(world: OperationsWorld, plan: OperationsPlan) -> None:
    """One disk: what is lost must be repaired before more is."""
    if not world.has_lost:
        world.has_lost = True
        await lose(world, plan)


_FAULTS: dict[str, Callable[[OperationsWorld, OperationsPlan], Coroutine[Any, Any, None]]] = {
    "crash_operator": _crash_operator,
    "expire_operator": _expire_operator,
    "grow": _grow,
    "drain": _drain,
    "leave": _leave,
    "lose": _lose,
}


# --- Operators


def _start_operators(world: OperationsWorld, folder: Path) -> None:
    """Whoever is not at work begins, or goes on."""
    if world.over.is_set():
        return
    for name in REBALANCERS:
        if name not in world.client_names:
            world.spawn(name, _rebalance(world, name, folder))
    if DECOMMISSIONER not in world.client_names:
        world.spawn(DECOMMISSIONER, _decommission(world))


async def _operate(world: OperationsWorld, name: str, work: Callable[[Operations], Coroutine[Any, Any, None]]) -> None:
    """Do something again and again, from the start after each error."""
    while not world.over.is_set():
        try:
            async with open_operations(_TARGET, runtime=world.sim.host(name).runtime) as operations:
                while not world.over.is_set():
                    await asyncio.sleep(world.rng.random() * 2)
                    await work(operations)
        except QuireError as error:
            world.note(name, error)
            await asyncio.sleep(0.5)
    await asyncio.Event().wait()


async def _rebalance(world: OperationsWorld, name: str, folder: Path) -> None:
    """One plan after the other, each to its end, whoever began it. Two rebalancers may be at the same plan."""
    path = folder / world.rng.choice(["moves", name])

    async def work(operations: Operations) -> None:
        if not path.exists():
            plan = await make_plan(operations, tolerance=0.0)
            if plan.moves:
                await write_plan(operations, plan, path)
            return
        made = await run_plan(
            operations, await read_plan(operations, path), path, bytes_per_s=world.rng.choice(_BYTES_PER_S)
        )
        for each in made:
            world.events["moves made" if each.told == "moved" else "moves passed by"] += 1
        world.events["plans carried out"] += 1
        for each_path in (path, path.with_name(f"{path.name}.done")):
            each_path.unlink(missing_ok=True)

    await _operate(world, name, work)


async def _decommission(world: OperationsWorld) -> None:
    async def work(operations: Operations) -> None:
        for bookie in list(world.leaving):
            settled = world.settled
            try:
                done = await decommission(operations, name_of(bookie), bytes_per_s=world.rng.choice(_BYTES_PER_S))
            except InvalidArgument:
                await world.on_left(bookie, settled)  # It was told that the cookie is gone, but did not hear it.
                continue
            world.events["decommissions"] += 1
            if not done.left:
                await world.on_left(bookie, settled)

    await _operate(world, DECOMMISSIONER, work)


# --- Readers


async def _read_at_random(world: OperationsWorld, plan: OperationsPlan, name: str) -> None:
    """Read entries that were acknowledged, of closed ledgers, over handles that are kept for long."""
    async with world.ledgers(name) as ledgers:
        while not world.over.is_set():
            await asyncio.sleep(world.rng.random() * 0.5)
            kept = [each for each in world.kept if each.acknowledged]
            if kept:
                await _read_for_long(world, plan, ledgers, world.rng.choice(kept))


async def _read_for_long(
    world: OperationsWorld, plan: OperationsPlan, ledgers: LedgerClient, history: LedgerHistory
) -> None:
    metadata = world.metadata_of(history.ledger_id)
    if metadata is None or metadata.state is not LedgerState.CLOSED:
        return
    try:
        async with ledgers.open(history.ledger_id, recover=False) as reader:
            for _ in range(world.rng.randrange(1, 6)):
                await asyncio.sleep(world.rng.random() * 3)
                entry_id = world.rng.choice(list(history.acknowledged))
                entry = await reader.read_entry(entry_id)
                assert entry.payload == history.acknowledged[entry_id]
                world.events["read at random"] += 1
    except QuireError as error:
        world.note("reader", error)
        is_there = history.ledger_id not in world.deleted
        if is_there and (plan.reads_succeed or isinstance(error, NoSuchEntry | NoSuchLedger)):
            world.violations.append(f"ledger {history.ledger_id} could not be read: {error!r}")
