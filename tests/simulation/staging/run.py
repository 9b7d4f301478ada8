"""One simulated run of sinks: start, trouble, repair, proof.

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
from quire.stream.ownership import open_stream_writer
from quire.stream.staging import sweep
from quire.testing import Simulation
from tests.simulation.staging.clients import clean, drive, write
from tests.simulation.staging.plan import Plan
from tests.simulation.staging.world import SinkWorld
from tests.simulation.streams.faults import wreak_on
from tests.simulation.streams.world import STREAM
from tests.support.simulation.faults import slow_links, trouble, wreak
from tests.support.streams.stored import last_known, read_stored

_BACK_WITHIN_S = 0.3


async def live(sim: Simulation, plan: Plan) -> SinkWorld:
    async with SinkWorld.open(sim, plan) as world:
        with world.observed():
            await _act(world)
    return world


async def _act(world: SinkWorld) -> None:
    plan = world.plan
    cast: dict[str, Callable[[SinkWorld, str], Coroutine[Any, Any, None]]] = {}
    cast |= {f"driver-{number}": drive for number in range(plan.sinks)}
    cast |= {f"double{number}-0": drive for number in range(plan.doubles)}
    cast |= {f"writer-{number}": write for number in range(plan.writers)}
    cast |= {f"sweeper-{number}": clean for number in range(plan.sweepers)}
    slow_links(world, list(cast))
    await world.found()
    for name, act in cast.items():
        world.spawn(name, act(world, name))
    async with trouble(world, plan.faults, functools.partial(_wreak, world)):
        burying = asyncio.create_task(_bury(world))
        await asyncio.sleep((0.5 + 0.5 * world.rng.random()) * plan.lasts_s)
    world.over.set()
    await world.dying.join()  # Who was about to die does so now.
    await world.repair()
    await world.end_clients(world.client_names, within_s=200.0)
    burying.cancel()
    await asyncio.wait([burying])
    assert not world.violations, world.violations[0]
    await _prove(world)


async def _wreak(world: SinkWorld, kind: str) -> None:
    if "_driver" in kind:
        drivers = [name for name in world.client_names if name.startswith("d")]
        await wreak_on(world, kind, drivers, drive, answers_max=3, back_within_s=_BACK_WITHIN_S)
    else:
        await wreak(world, kind)


async def _bury(world: SinkWorld) -> None:
    """Crash those who wait for it."""
    while True:
        name = await world.dying.get()
        if name in world.client_names:
            await world.restart(name, drive, within_s=_BACK_WITHIN_S)
        world.dying.task_done()


# --- The proof


async def _prove(world: SinkWorld) -> None:
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
                places = [record.position for record in seen]
                assert places == [*range(1, len(seen) + 1)], f"ChainIsSound: segment {lssn} has records at {places}"
        starts = [(segment.start_sequence_id, segment.completion) for segment in stored.segments.values()]
        for (start, done), (after, _) in itertools.pairwise(starts):
            assert done is not None
            assert after == start + done.record_count, "ChainIsSound: sequence ids have gaps"
        txids = [record.txid for record in stored.records]
        assert txids == sorted(txids), "TxidsInOrder: txids decrease along the stream"
        ledgers = {segment.ledger_id for segment in stored.segments.values()}
        left = {ledger async for ledger in context.ledgers.scan()} & world.staged
        assert left <= ledgers, f"NoneLeaked: staged ledgers {left - ledgers} are left"


def _prove_records(world: SinkWorld, records: list[LogRecord]) -> None:
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
