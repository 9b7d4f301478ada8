"""Runs of repairs that go straight for one situation, with everything else left to the seed.

`one_after_the_other`  bookies die for good, each when the one before is repaired, until none of the first is left.
`idle_writer`          a bookie of an open ledger dies, and its writer does nothing: repairs keep off its last ensemble.
`new_fragment`         a writer has just changed bookies: those who are asked know less than is confirmed.
`fenced_targets`       the only bookie for the copies was fenced, by the recovery that closed the ledger.
`empty_fragment`       a closed ledger ends with a fragment that nothing was written to.
`came_back`            a bookie is away for a moment, and nothing is to be copied.
`marked_again`         a bookie is lost while its ledger is being looked at.
`zombie`               a ledger is recovered and deleted, and its old writer goes on.
`buried_before`        a bookie dropped a ledger of the same id before, and remembers that it was fenced.
`damaged_open`         a copy in an open ledger goes bad on a bookie that lives, and later another one dies.
`damaged_logs`         bookies cannot read all of their logs, and collect garbage.
`limbo`                a bookie's journal is damaged while its ledger is written: the writer goes on, and when repairs
                       are done the bookie knows again what it has.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from quire.errors import LedgerFenced, QuireError
from quire.runtime import read_file
from quire.testing import SimBookie, Simulation
from quire.types import EntryId, Fragment, LedgerMetadata, LedgerState, Quorum
from tests.support.ledgers.history import LedgerHistory
from tests.support.simulation.faults import damage_logs
from tests.support.simulation.ledgers import Plan, append
from tests.support.simulation.repairs import REPAIR, RepairWorld
from tests.support.simulation.world import name_of

_CALM = replace(REPAIR, ledger_check_interval_s=0.0, verification_percentage=0.0)
_QUORUMS = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2))


@asynccontextmanager
async def _world(
    sim: Simulation, bookies: int, *quorums: tuple[int, int, int], repairs: bool = True, **changed: float
) -> AsyncIterator[RepairWorld]:
    """Started bookies and repairs; all of it is ended and proven afterwards."""
    plan, settings = Plan(bookies=bookies).having(*(quorums or _QUORUMS)), replace(_CALM, **changed)  # type: ignore[arg-type]
    async with RepairWorld.open(sim, plan, settings=settings) as world:
        if repairs:
            world.start_repairs(["autorecovery0"])
        yield world
        for name in world.client_names:
            if not name.startswith("autorecovery"):
                await world.end_client(name)
        await world.repair()
        world.start_repairs(["autorecovery0"])
        await world.prove()


async def closed(world: RepairWorld, name: str, entries: int, *, size: int = 0) -> LedgerHistory:
    """A ledger that its writer closed."""
    history = LedgerHistory()
    async with world.ledgers(name) as ledgers, world.created(ledgers, history) as writer:
        await append(history, writer, entries, size=size)
    return history


async def _metadata(world: RepairWorld, history: LedgerHistory) -> LedgerMetadata:
    return (await world.cluster.ledgers.read(history.ledger_id)).metadata


async def _member(world: RepairWorld, history: LedgerHistory, fragment: int = -1) -> SimBookie:
    """Any bookie of one of a ledger's fragments."""
    members = (await _metadata(world, history)).fragments[fragment].bookies
    return world.rng.choice([bookie for bookie in world.bookies if name_of(bookie) in members])


async def one_after_the_other(sim: Simulation) -> RepairWorld:
    async with _world(sim, 4) as world:
        for number in range(3):
            await closed(world, f"writer{number}", world.rng.randrange(12))
        first = list(world.bookies)
        world.rng.shuffle(first)
        for bookie in first:
            if len(world.alive) <= world.quorum.ensemble:
                await world.add_bookie()
            await world.wipe(bookie)
            await world.wait_whole()
            world.events["replaced"] += 1
    return world


async def idle_writer(sim: Simulation) -> RepairWorld:
    async with _world(sim, 5, (3, 3, 2), (3, 2, 2), (4, 3, 2)) as world:
        history, written = LedgerHistory(), asyncio.Event()

        async def write() -> None:
            async with world.ledgers("writer") as ledgers:
                try:
                    async with world.created(ledgers, history) as writer:
                        await append(history, writer, world.rng.randrange(1, 6))
                        written.set()
                        await asyncio.sleep(world.rng.random() * 6)
                        await append(history, writer, 3)
                        await asyncio.Event().wait()
                except QuireError as error:
                    world.note("writer", error)

        world.spawn("writer", write())
        await written.wait()
        await world.wipe(await _member(world, history))
        await asyncio.sleep(world.rng.random() * 12)
    return world


async def new_fragment(sim: Simulation) -> RepairWorld:
    async with _world(sim, 6, (3, 3, 2), (3, 2, 2), (2, 2, 2), open_ledger_grace_s=60.0) as world:
        history, changed = LedgerHistory(), asyncio.Event()

        async def write() -> None:
            async with world.ledgers("writer") as ledgers, world.created(ledgers, history) as writer:
                await append(history, writer, world.rng.randrange(1, 4))
                written.set()
                tasks = [asyncio.create_task(append(history, writer, 2)) for _ in range(4)]
                await asyncio.wait(tasks)
                changed.set()
                await asyncio.Event().wait()  # Nothing more is sent, so bookies hear of no later LAC.

        written = asyncio.Event()
        world.spawn("writer", write())
        await written.wait()
        await world.wipe(await _member(world, history))
        await changed.wait()
        await world.wait_whole()  # All but the last fragment.
        await world.crash_client("writer")
    return world


async def fenced_targets(sim: Simulation) -> RepairWorld:
    async with _world(sim, 4, (3, 3, 2)) as world:
        history = LedgerHistory()
        async with world.ledgers("writer") as ledgers:
            try:
                async with world.created(ledgers, history) as writer:
                    await append(history, writer, world.rng.randrange(1, 6))
                    doomed = await _member(world, history)
                    await world.crash(doomed, power_loss=True)
                    await append(history, writer, world.rng.randrange(1, 6))
                    async with world.ledgers("recoverer") as others:
                        await others.recover(writer.id)
            except QuireError as error:
                world.note("writer", error)
        await world.wipe(doomed)  # Three are left: all of the last ensemble, which the recovery has fenced.
        await world.wait_whole()
    return world


async def empty_fragment(sim: Simulation) -> RepairWorld:
    async with _world(sim, 5) as world:
        history = await closed(world, "writer", world.rng.randrange(1, 8))
        stored = await world.cluster.ledgers.read(history.ledger_id)
        others = tuple(map(name_of, world.rng.sample(world.bookies, world.quorum.ensemble)))

        def append_empty(metadata: LedgerMetadata) -> LedgerMetadata | None:
            empty = Fragment(EntryId(metadata.last_entry_id + 1), others)
            return None if empty in metadata.fragments else replace(metadata, fragments=(*metadata.fragments, empty))

        await world.cluster.ledgers.update(stored, append_empty)
        await world.wipe(await _member(world, history, world.rng.choice([0, -1])))
        await world.wait_whole()
    return world


async def came_back(sim: Simulation) -> RepairWorld:
    """With a delay nothing is ever marked; without one, what is marked is looked at again before it is copied."""
    async with _world(sim, 5, repairs=False) as world:
        delay_s = world.rng.choice([0, 6])
        await world.marks.set_delay(delay_s)
        history = await closed(world, "writer", 10)
        before = await _metadata(world, history)
        if not delay_s:
            await world.marks.disable()
        world.start_repairs(["autorecovery0"])
        bookie = await _member(world, history)
        await asyncio.sleep(2.0)
        await world.crash(bookie, power_loss=world.rng.random() < 0.5)
        await asyncio.sleep(world.rng.random() * 2)
        if not delay_s:
            await world.marks.mark(history.ledger_id, [name_of(bookie)])
        await world.mend()
        await world.marks.enable()
        await asyncio.sleep(10.0)
        await world.wait_whole()
        assert await _metadata(world, history) == before, "a bookie that came back was replaced"
    return world


async def marked_again(sim: Simulation) -> RepairWorld:
    """A bookie is lost right when a worker has found everything well. The mark must survive, or nobody repairs."""
    async with _world(sim, 5, bookie_check_interval_s=0.0) as world:
        history = await closed(world, "writer", 10)
        await asyncio.sleep(1.0)
        bookie = await _member(world, history)
        for other in world.bookies:  # The others take a while to answer: it is gone when they do.
            if other is not bookie:
                for link in (("autorecovery0", name_of(other)), (name_of(other), "autorecovery0")):
                    world.sim.network.link_latency_s[link] = (0.2, 0.4)
        await world.marks.mark(history.ledger_id, [name_of(bookie)])
        await asyncio.sleep(world.rng.random() * 0.4)
        await world.wipe(bookie)
        await world.wait_whole()
    return world


async def zombie(sim: Simulation) -> RepairWorld:
    async with _world(sim, 3, (3, 3, 2), (3, 2, 2)) as world:
        history = LedgerHistory()
        async with world.ledgers("writer") as ledgers, world.ledgers("recoverer") as others:
            try:
                async with world.created(ledgers, history) as writer:
                    await append(history, writer, world.rng.randrange(1, 4))
                    await others.recover(writer.id)
                    await others.delete(writer.id)
                    world.deleted.add(writer.id)
                    await world.collect_garbage()
                    try:
                        await writer.append(b"too late")
                    except QuireError as error:
                        world.note("zombie", error)
                    else:
                        raise AssertionError("an entry was acknowledged of a ledger that was recovered and deleted")
            except QuireError as error:
                world.note("writer", error)
    return world


async def buried_before(sim: Simulation) -> RepairWorld:
    async with _world(sim, 5, (3, 3, 2), repairs=False) as world:
        number, first, second = 77, LedgerHistory(), LedgerHistory()
        async with world.ledgers("writer") as ledgers, world.ledgers("recoverer") as others:
            try:
                async with world.created(ledgers, first, number) as writer:
                    await append(first, writer, 2)
                    await others.recover(number)
            except QuireError as error:
                world.note("writer", error)
            members = (await _metadata(world, first)).fragments[-1].bookies
            buried = [bookie for bookie in world.bookies if name_of(bookie) in members]
            await others.delete(number)
            world.histories.remove(first)
            await world.collect_garbage()
        # The same id once more, on the other two. One of them dies: whoever can take over remembers the old ledger.
        for bookie in buried:
            await world.crash(bookie, power_loss=True)
        await asyncio.sleep(12.0)  # Until their sessions have ended.
        world.quorum = Quorum(2, 2, 2)
        async with world.ledgers("writer") as ledgers, world.created(ledgers, second, number) as writer:
            await append(second, writer, 5)
        await world.mend()
        world.start_repairs(["autorecovery0"])
        await world.wipe(await _member(world, second))
        await world.wait_whole()
    return world


async def damaged_open(sim: Simulation) -> RepairWorld:
    """The writer is dead, or says nothing more: nobody but repairs could notice. They have to before the next loss."""
    async with _world(sim, 5, verification_percentage=100.0, ledger_check_interval_s=4.0) as world:
        history, written = LedgerHistory(), asyncio.Event()

        async def write() -> None:
            async with world.ledgers("writer") as ledgers:
                try:
                    async with world.created(ledgers, history) as writer:
                        await append(history, writer, world.rng.randrange(3, 12), size=4000)
                        written.set()
                        await asyncio.Event().wait()
                except QuireError as error:
                    world.note("writer", error)

        world.spawn("writer", write())
        await written.wait()
        if world.rng.random() < 0.5:
            await world.crash_client("writer")
        await asyncio.sleep(2.0)  # Until all is in the logs.
        bad = await _member(world, history)
        damage_logs(world, bad)
        await world.wait_whole()
        world.events["closed"] += (await _metadata(world, history)).state is LedgerState.CLOSED
        left = [
            each for each in world.alive if name_of(each) in (await _metadata(world, history)).fragments[-1].bookies
        ]
        await world.wipe(world.rng.choice(left))
        await world.wait_whole()
    return world


async def damaged_logs(sim: Simulation) -> RepairWorld:
    """Two of three bookies have damage, each in another entry, and the third one dies. Nothing is lost, if the two keep
    what they can read."""
    async with _world(sim, 3, (3, 3, 2), verification_percentage=100.0, ledger_check_interval_s=6.0) as world:
        await world.marks.disable()
        await closed(world, "writer", 30, size=5_000)
        await asyncio.sleep(2.0)  # Until all is in the logs.
        first, second, third = world.rng.sample(world.bookies, 3)
        for number, bookie in enumerate((first, second)):
            disk = bookie.host.disk
            logs = sorted((path, size) for path, size in disk.sizes("/data/entries").items() if size > 20_000)
            for path, size in logs:
                disk.flip_bit(path, size - 10)  # What the log says of itself.
            disk.flip_bit(logs[number][0], 512 + 100)  # An entry: the first one of the first, or of the second log.
            world.events["bits flipped"] += 1
        await world.collect_garbage()
        await world.wipe(third)
        await world.add_bookie()
        await world.marks.enable()
        await world.wait_whole()
    return world


async def limbo(sim: Simulation) -> RepairWorld:
    """What is damaged is one of the last entries, each of which is a group of the journal, and not always the last one.
    The writer is not idle for as long as it takes to be shut out."""
    async with _world(sim, sim.rng.choice([3, 4]), (3, 3, 2), open_ledger_grace_s=30.0) as world:
        history, rng = LedgerHistory(), world.rng
        async with world.ledgers("writer") as ledgers, world.created(ledgers, history) as writer:
            await append(history, writer, rng.randrange(1, 6))
            bad = await _member(world, history)
            await asyncio.sleep(rng.choice([0.0, 1.0]))  # Until what is there so far is in the index.
            await append(history, writer, 3)
            await world.crash(bad, power_loss=False)
            await _damage_journal(world, bad, b"%d/%d:" % (writer.id, len(history.sent) - rng.randrange(1, 4)))
            await append(history, writer, rng.randrange(3))
            await world.start(bad)
            table = bad.bookie.service.storage.table
            world.events["in limbo"] += table.has_limbo
            await asyncio.sleep(rng.random())
            await ledgers.pool.connect(name_of(bad), 2, timeout_s=5.0)  # As for another ledger.
            try:
                await append(history, writer, 3)
                await asyncio.sleep(rng.random() * 12)
                await append(history, writer, 3)
            except LedgerFenced as error:
                raise AssertionError(f"nobody recovers the ledger: {error}") from error
        await world.wait_whole()
        patience_s = 200.0
        while table.has_limbo:
            await asyncio.sleep(1.0)
            patience_s -= 1.0
            assert patience_s > 0, "a bookie has all that it should have, and does not know it"
    return world


async def _damage_journal(world: RepairWorld, bookie: SimBookie, content: bytes) -> None:
    """Flip a bit of an entry, if the journal has it yet."""
    disk = bookie.host.disk
    for name in await disk.listdir("/journal"):
        at = (await read_file(disk, f"/journal/{name}")).find(content)
        if at >= 0:
            disk.flip_bit(f"/journal/{name}", at)
            world.events["bits flipped"] += 1
