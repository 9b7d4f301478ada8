"""Runs that go straight for one situation, with everything else left to the seed.

`missed_fence` one bookie hears of a recovery only when it is asked for an entry that is on its way to it.
`new_fragment` a writer dies when it has just changed bookies: those who are asked know less than those who left.
`late_change`  a bookie is replaced, slowly, while entries become complete that have nothing to do with it.
`late_adds`    a ledger is recovered while entries are on their way to it, and each way has its own length.
`amnesia`      bookies lose power right after a recovery, and the writer, who was idle, tries to go on.
`compaction`   ledgers are recovered while bookies, on slow disks, compact; their writers, who were idle, try to go on.
`bad_disk`     one disk goes bad when everything is in the logs and the writer is gone; then the ledger is recovered.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.errors import LedgerFenced, QuireError
from quire.ledger.client import LedgerClient
from quire.testing import SimBookie, Simulation
from tests.simulation.ledgers.clients import recover
from tests.support.ledgers.history import LedgerHistory, check
from tests.support.simulation.faults import blackout, collect_garbage, damage_logs
from tests.support.simulation.ledgers import LedgerWorld, Plan, append

_FAST_S, _FAR_S, _SLOW_S = (0.001, 0.02), (0.1, 0.15), (0.1, 0.4, 1.2)
_BLOCKS_S = (0.0, 0.0, 0.0, 0.4, 0.5, 0.6, 0.7)
_COMMIT_S = (0.03, 0.2, 0.3)  # How long the index of a bookie takes at most.
_IN_LOGS_S = 3.0  # Until everything that was written is in the logs.
_ROUNDS, _LEDGERS = 5, 8  # More than a bookie keeps in memory.
_ANSWER_S = 60.0


async def late_adds(sim: Simulation) -> LedgerWorld:
    return await _recover_early(sim, Plan(bookies=4).having((3, 3, 2), (3, 3, 2), (4, 3, 2)), crash_chance=0.1)


async def late_adds_and_a_crash(sim: Simulation) -> LedgerWorld:
    return await _recover_early(sim, Plan(bookies=4).having((3, 3, 3), (3, 2, 2), (2, 2, 2)), crash_chance=0.9)


async def _recover_early(sim: Simulation, plan: Plan, *, crash_chance: float) -> LedgerWorld:
    async with _world(sim, plan) as world:
        rng, history, sent = world.rng, LedgerHistory(), asyncio.Event()
        world.spawn("writer", _write_late(world, history, sent))
        await sent.wait()
        recoverers = [f"recoverer{number}" for number in range(rng.randrange(1, 3))]
        _lengthen(world, recoverers)
        recovered = {name: asyncio.Event() for name in recoverers}
        for name in recoverers:
            world.spawn(name, _recover_soon(world, name, history, recovered[name]))
        if rng.random() < crash_chance:
            await asyncio.sleep(rng.random() * 0.4)
            await world.crash(rng.choice(world.bookies), power_loss=True)
        for name in recoverers:
            await recovered[name].wait()
            if rng.random() < 0.5:  # What it has sent and not waited for is lost with it.
                await world.crash_client(name)
            else:
                await world.end_client(name)
        await asyncio.sleep(rng.choice([0.0, 1.0, 2.0]))
    return world


async def _write_late(world: LedgerWorld, history: LedgerHistory, sent: asyncio.Event) -> None:
    async with world.ledgers("writer") as ledgers:
        try:
            async with world.created(ledgers, history) as writer:
                await append(history, writer, world.rng.randrange(3))
                sent.set()
                while True:
                    await append(history, writer, world.rng.randrange(1, 3))
        except LedgerFenced:
            world.events["fenced"] += 1
        except QuireError as error:
            world.note("writer", error)


async def _recover_soon(world: LedgerWorld, name: str, history: LedgerHistory, recovered: asyncio.Event) -> None:
    rng, network, loop = world.rng, world.sim.network, asyncio.get_running_loop()
    await asyncio.sleep(rng.random() * 0.3)
    for bookie in world.bookies:  # Some ways are closed at first.
        if block_s := rng.choice(_BLOCKS_S):
            network.partition(name, bookie.host.name)
            loop.call_later(block_s, network.heal, name, bookie.host.name)
    async with world.ledgers(name) as ledgers:
        await recover(world, name, ledgers, history)
        recovered.set()
        await asyncio.Event().wait()


def _lengthen(world: LedgerWorld, recoverers: list[str]) -> None:
    """Most bookies are near the writer or near the recoverers, and far from the others: what one of them has heard of
    the other has not.
    """
    rng = world.rng
    for bookie in world.bookies:
        near_writer, near_recoverers = rng.choice(
            [(True, False), (True, False), (False, True), (False, True), (True, True)]
        )
        _set_latency(world, "writer", bookie, rng.choice(_FAST_S if near_writer else _SLOW_S))
        for name in recoverers:
            _set_latency(world, name, bookie, rng.choice(_FAST_S if near_recoverers else _FAR_S))


def _set_latency(world: LedgerWorld, client: str, bookie: SimBookie, latency_s: float) -> None:
    for link in ((client, bookie.host.name), (bookie.host.name, client)):
        world.sim.network.link_latency_s[link] = (latency_s * 0.8, latency_s)


async def missed_fence(sim: Simulation) -> LedgerWorld:
    async with _world(sim, Plan(bookies=3).having((3, 3, 2))) as world:
        rng, history, sent = world.rng, LedgerHistory(), asyncio.Event()
        world.spawn("writer", _write_late(world, history, sent))
        await sent.wait()
        has_it, never_gets_it, gets_it_late = rng.sample(world.bookies, 3)
        for bookie, writer_s, recoverer_s in (
            (has_it, 0.001, 0.1),
            (never_gets_it, 3.0, 0.001),
            (gets_it_late, 0.5 + rng.random(), 0.001),
        ):
            _set_latency(world, "writer", bookie, writer_s)
            _set_latency(world, "recoverer", bookie, recoverer_s)
        world.sim.network.partition("recoverer", gets_it_late.host.name)
        asyncio.get_running_loop().call_later(rng.random(), world.sim.network.heal)
        async with world.ledgers("recoverer") as ledgers:
            await recover(world, "recoverer", ledgers, history)
        await asyncio.sleep(4.0)  # Until the last add has come to wherever it was going.
    return world


async def new_fragment(sim: Simulation) -> LedgerWorld:
    plan = Plan(bookies=6).having((3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3))
    async with _world(sim, plan) as world:
        rng, history, written = world.rng, LedgerHistory(), asyncio.Event()
        world.spawn("writer", _write_late(world, history, written))
        await written.wait()
        metadata = (await world.cluster.ledgers.read(history.ledger_id)).metadata
        doomed = [each for each in world.bookies if each.host.name in metadata.fragments[-1].bookies]
        await asyncio.gather(
            *(world.crash(each, power_loss=True) for each in rng.sample(doomed, rng.randrange(1, len(doomed) + 1)))
        )
        async with world.cluster.ledgers.watch(history.ledger_id) as watch:
            if (await world.cluster.ledgers.read(history.ledger_id)).metadata == metadata:
                await watch.wait_changed()
        await asyncio.sleep(rng.random() * 0.01)
        await world.crash_client("writer")
        async with world.ledgers("recoverer") as ledgers:
            await recover(world, "recoverer", ledgers, history)
    return world


async def late_change(sim: Simulation) -> LedgerWorld:
    plan = Plan(bookies=6).having((5, 3, 2), (4, 3, 2), (5, 2, 1), (5, 4, 2))
    async with _world(sim, plan) as world:
        world.spawn("writer", _write_through_changes(world, LedgerHistory()))
        await world.end_clients(["writer"], within_s=4 * _ANSWER_S)
    return world


async def _write_through_changes(world: LedgerWorld, history: LedgerHistory) -> None:
    """One append at a time, so that nothing else pushes a forgotten one."""
    rng = world.rng
    async with world.ledgers("writer") as ledgers, world.created(ledgers, history) as writer:
        for _ in range(4):
            slow = rng.choice(world.bookies)
            _set_latency(world, "writer", slow, 0.3)
            await append(history, writer, rng.randrange(1, 4))
            world.tree.stall("writer", rng.random() * 0.3)
            world.sim.network.reset_all(slow.host.name)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await append(history, writer, 1)
            except TimeoutError:
                raise AssertionError("an append that nothing keeps from being confirmed is not answered") from None
            _set_latency(world, "writer", slow, 0.001)


async def amnesia(sim: Simulation) -> LedgerWorld:
    plan = Plan(bookies=3, sync_s=(0.02, 0.3)).having((3, 3, 2), (3, 2, 2))
    async with _world(sim, plan) as world:
        rng, first, second = world.rng, LedgerHistory(), LedgerHistory()
        async with world.ledgers("writer") as ledgers, world.ledgers("recoverer") as others:
            try:
                async with world.created(ledgers, first) as writer:
                    await append(first, writer, rng.randrange(4))
                    recovering = asyncio.create_task(recover(world, "recoverer", others, first))
                    await asyncio.sleep(rng.random() * rng.choice([0.1, 0.2, 0.8]))
                    await blackout(world, rng.sample(world.bookies, rng.randrange(2, 4)))
                    await recovering
                    await asyncio.sleep(1.0)  # Until the writer has heard that they are back.
                    async with world.created(ledgers, second) as another:  # Its connections are shared by both.
                        await append(second, another, 1)
                        await append(first, writer, 1)
            except LedgerFenced:
                world.events["fenced"] += 1
            except QuireError as error:
                world.note("writer", error)
    return world


async def compaction(sim: Simulation) -> LedgerWorld:
    """Where one acknowledgement is enough, a single bookie that forgets a fence acknowledges too much.

    The ledgers are empty: what a recovery writes back would have to wait for another checkpoint.
    """
    plan = Plan(bookies=3, checkpoint_interval_s=0.15).having((1, 1, 1), (2, 1, 1), (2, 2, 1), (3, 3, 1))
    async with _world(sim, plan) as world, world.ledgers("writer") as ledgers, world.ledgers("recoverer") as others:
        async with world.created(ledgers, LedgerHistory()) as writer:
            await append(world.histories[0], writer, 25, size=5_000)
        await asyncio.sleep(_IN_LOGS_S)
        delay_s, sim.loop.executor_delay_max_s = sim.loop.executor_delay_max_s, world.rng.choice(_COMMIT_S)
        for bookie in world.bookies:  # One that forgets a fence may answer before the others.
            _set_latency(world, "writer", bookie, world.rng.choice((0.001, 0.05)))
        compacting = sim.host("compactor").spawn(_compact_again_and_again(world))
        for _ in range(_ROUNDS):
            now = asyncio.Event()
            for _ in range(_LEDGERS):
                world.spawn("writers", _recover_under_writer(world, ledgers, others, now))
            await asyncio.sleep(0.5)
            now.set()
            await world.end_clients(["writers"], within_s=_ANSWER_S)
        compacting.cancel()
        sim.loop.executor_delay_max_s = delay_s
    return world


async def _recover_under_writer(
    world: LedgerWorld, ledgers: LedgerClient, others: LedgerClient, now: asyncio.Event
) -> None:
    history = LedgerHistory()
    try:
        async with world.created(ledgers, history) as writer:
            await now.wait()
            await recover(world, "recoverer", others, history)
            await asyncio.sleep(world.rng.random() * 0.3)
            await append(history, writer, 1)
    except LedgerFenced:
        world.events["fenced"] += 1
    except QuireError as error:
        world.note("writer", error)


async def _compact_again_and_again(world: LedgerWorld) -> None:
    """Garbage collections, and the checkpoints that end a compaction, at any moment."""
    while True:
        bookie = world.rng.choice(world.bookies)
        if world.rng.random() < 0.05:
            collect_garbage(bookie)
        bookie.host.spawn(bookie.bookie.service.storage.checkpoint())
        await asyncio.sleep(world.rng.random() * 0.1)


async def bad_disk(sim: Simulation) -> LedgerWorld:
    plan = Plan(bookies=4).having((3, 3, 3), (3, 2, 2), (2, 2, 2), (3, 3, 2))
    async with _world(sim, plan) as world:
        history, written = LedgerHistory(), asyncio.Event()
        world.spawn("writer", _write_and_wait(world, history, written))
        await written.wait()
        await asyncio.sleep(world.rng.random() * 2)
        await world.crash_client("writer")
        metadata = (await world.cluster.ledgers.read(history.ledger_id)).metadata
        bookie = world.rng.choice([each for each in world.bookies if each.host.name in metadata.fragments[-1].bookies])
        if world.rng.random() < 0.3:
            await world.wipe(bookie)
        else:
            damage_logs(world, bookie)
        async with world.ledgers("recoverer") as ledgers:
            await recover(world, "recoverer", ledgers, history)
    return world


async def _write_and_wait(world: LedgerWorld, history: LedgerHistory, written: asyncio.Event) -> None:
    async with world.ledgers("writer") as ledgers, world.created(ledgers, history) as writer:
        await append(history, writer, world.rng.randrange(1, 6))
        written.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def _world(sim: Simulation, plan: Plan) -> AsyncIterator[LedgerWorld]:
    """Started bookies; afterwards everything is repaired, and proven."""
    async with LedgerWorld.open(sim, plan) as world:
        yield world
        await world.repair()
        for name in world.client_names:
            await world.end_client(name)
        async with world.ledgers("checker") as ledgers:
            for history in world.histories:
                await check(ledgers, history, excused=world.lost)
