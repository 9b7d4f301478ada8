"""One simulated run: start, trouble, repair, proof.

What is proven: a batch of which somebody was told is in the stream. No batch is there twice, or half. Records of a
batch stand together, in their order, and batches of a sink in theirs. No segment lacks its ledger, and after a sweep no
staged ledger is left that is no segment.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from quire.codec.stream.records import LogRecord
from quire.stream.creation import create_stream
from quire.stream.ownership import open_stream_writer
from quire.stream.staging import sweep
from quire.testing import Simulation, sim_cluster, simulate
from tests.simulation.clusters.faults import slow_links, trouble
from tests.simulation.clusters.faults import wreak as wreak_cluster
from tests.simulation.staging.clients import clean, drive, write
from tests.simulation.staging.world import NAMESPACE, STREAM, Plan, World
from tests.support.streams.stored import last_known, read_stored

Workload = Callable[[Simulation], Coroutine[Any, Any, World]]

_CALM = Plan(faults={})
WORKLOADS: dict[str, Plan] = {
    "calm": _CALM,
    "crashes": Plan(faults={"crash_driver": 3, "crash": 1}, forgets_chance=0.5),
    "doubles": Plan(faults={"crash_driver": 1, "stall_driver": 1}, sinks=1, doubles=2, writers=0),
    "lost_answers": Plan(faults={"lose_driver_answers": 3, "delay_driver_requests": 2, "lose_driver_requests": 1}),
    "inline": Plan(
        faults={"crash_driver": 2, "lose_driver_answers": 2, "stall_driver": 1, "expire_driver": 1},
        inline_chance=0.8,
        forgets_chance=0.5,
        dies_at_note_chance=0.1,
    ),
    "swept": Plan(faults={}, sinks=1, writers=0, sweepers=2, sweeps_at_commits=True, inline_chance=0.0),
    "everything": Plan(
        faults={
            "crash_driver": 2,
            "stall_driver": 2,
            "expire_driver": 1,
            "lose_driver_answers": 2,
            "delay_driver_requests": 2,
            "lose_driver_requests": 1,
            "crash": 1,
            "reset": 1,
            "partition": 1,
            "heal": 2,
        },
        doubles=1,
        sweepers=2,
        inline_chance=0.4,
    ),
}


def run(seed: int, plan: Plan) -> World:
    """Run one seed. Raises what proves that a promise was broken; every failure names the seed."""
    return simulate(seed, functools.partial(_live, plan=plan), time_limit_s=900.0, step_limit=300_000)


async def _live(sim: Simulation, plan: Plan) -> World:
    async with sim_cluster(sim) as cluster:
        world = World(sim, plan, cluster)
        await cluster.store.create(NAMESPACE)
        for bookie in world.bookies:
            await bookie.start()
        with world.observed():
            await _act(world)
        for bookie in world.bookies:
            if bookie.is_running:
                await bookie.stop()
    return world


async def _act(world: World) -> None:
    plan, enough = world.plan, asyncio.Event()
    cast: dict[str, Callable[[World, str], Coroutine[Any, Any, None]]] = {}
    cast |= {f"driver-{number}": drive for number in range(plan.sinks)}
    cast |= {f"double{number}-0": drive for number in range(plan.doubles)}
    cast |= {f"writer-{number}": write for number in range(plan.writers)}
    cast |= {f"sweeper-{number}": clean for number in range(plan.sweepers)}
    slow_links(world, list(cast))
    async with world.context("founder") as context:
        await create_stream(context.store, context.paths(STREAM))
    for name, act in cast.items():
        world.spawn(name, act(world, name))
    troubling = asyncio.create_task(trouble(world, plan.faults, functools.partial(_wreak, world), enough))
    burying = asyncio.create_task(_bury(world))
    await asyncio.sleep((0.5 + 0.5 * world.rng.random()) * plan.lasts_s)
    enough.set()
    await troubling
    world.over.set()
    await asyncio.sleep(0)  # Whoever was about to die does so now.
    await asyncio.sleep(0.1)
    await world.repair()
    await world.end_clients(world.client_names, within_s=200.0)
    burying.cancel()
    await asyncio.wait([burying])
    assert not world.violations, world.violations[0]
    await _prove(world)


async def _wreak(world: World, kind: str) -> None:
    rng = world.rng
    drivers = [name for name in world.client_names if name.startswith("d")]
    if "driver" not in kind:
        await wreak_cluster(world, kind)
        return
    if not drivers:
        return
    name = rng.choice(drivers)
    world.events[kind] += 1
    match kind:
        case "stall_driver":
            world.tree.stall(name, rng.choice([0.05, 0.3, 1.0, 4.5]))
        case "expire_driver":
            world.tree.expire_host(name)
        case "lose_driver_answers":
            world.tree.lose_answers(name, rng.randrange(1, 4))
        case "lose_driver_requests":
            world.changes.lose_requests(name, rng.randrange(1, 3))
        case "delay_driver_requests":
            world.changes.delay_requests(name, rng.randrange(1, 3), rng.random() * 0.4)
        case _:
            await _restart(world, name)


async def _restart(world: World, name: str) -> None:
    await world.crash_client(name)

    async def start_later() -> None:
        await world.pause(world.rng.random() * 0.3)
        world.spawn(name, drive(world, name))

    task = asyncio.create_task(start_later(), name=f"restart of {name}")
    world.restarting.add(task)
    task.add_done_callback(world.restarting.discard)


async def _bury(world: World) -> None:
    """Crash those who wait for it."""
    while True:
        name = await world.dying.get()
        if name in world.client_names:
            await _restart(world, name)


# --- The proof


async def _prove(world: World) -> None:
    async with world.context("checker") as context:
        async with open_stream_writer(context, STREAM, world.settings):
            pass  # Completes what others left.
        await sweep(context, STREAM, older_than_s=0)
        await context.runtime.clock.sleep(1.0)
        there, _ = last_known(world.history)
        stored = await read_stored(context.ledgers, there)
        assert not stored.unreadable, f"NoneDeleted: segments {stored.unreadable} have no ledgers"
        _prove_records(world, stored.records)
        for lssn, segment in stored.segments.items():
            done = segment.completion
            seen = [record for record in stored.records if record.dlsn.lssn == lssn]
            assert done is not None, f"ChainIsSound: segment {lssn} is in progress"
            if segment.ledger_id in world.staged:
                facts = len(seen), seen[-1].dlsn, seen[0].txid, seen[-1].txid
                told = done.record_count, done.last_dlsn, segment.first_txid, done.last_txid
                assert facts == told, f"ChainIsSound: segment {lssn} says {told}, and has {facts}"
        starts = [(segment.start_sequence_id, segment.completion) for segment in stored.segments.values()]
        for (start, done), (after, _) in itertools.pairwise(starts):
            assert done is not None
            assert after == start + done.record_count, "ChainIsSound: sequence ids have gaps"
        txids = [record.txid for record in stored.records]
        assert txids == sorted(txids), "TxidsInOrder: txids decrease along the stream"
        ledgers = {segment.ledger_id for segment in stored.segments.values()}
        left = {ledger async for ledger in context.ledgers.scan()} & world.staged
        assert left <= ledgers, f"NoneLeaked: staged ledgers {left - ledgers} are left"


def _prove_records(world: World, records: list[LogRecord]) -> None:
    found: dict[tuple[str, int], list[str]] = {}
    order: dict[str, list[int]] = {}
    texts = [record.payload.decode() for record in records]
    batches = itertools.groupby((text for text in texts), _attempt_of)
    for attempt, run in batches:
        if attempt is None:
            continue
        sink, number, _ = attempt.split("/")
        earlier = found.setdefault((sink, int(number)), [])
        assert not earlier, f"OnceOnly: {attempt} is in the stream, and {earlier} were"
        earlier.append(attempt)
        wanted = [f"{attempt}/{part}/{row}" for part, size in enumerate(world.sizes[attempt]) for row in range(size)]
        assert list(run) == wanted, f"NeverHalf: {attempt} is not in the stream as it was written"
        order.setdefault(sink, []).append(int(number))
    for sink, numbers in order.items():
        assert numbers == sorted(numbers), f"InOrder: batches of {sink} came as {numbers}"
    for (sink, batch), attempt in world.told.items():
        winners = found.get((sink, batch), [])
        is_empty = any(not sum(sizes) for name, sizes in world.sizes.items() if name.startswith(f"{sink}/{batch}/"))
        assert winners or is_empty, f"ToldIsThere: {attempt} was told to be in the stream"


def _attempt_of(text: str) -> str | None:
    parts = text.split("/")
    return "/".join(parts[:3]) if len(parts) == 5 else None
