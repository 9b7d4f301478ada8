"""The clients of a simulated cluster: writers and their rivals, recoverers, readers that tail, and re-replication.

Each notes in the ledger's history what it was told. A `QuireError` is something that happens to clients; anything else
fails the run.
"""

import asyncio
import itertools
from dataclasses import replace

from quire.codec.wire.codes import Status
from quire.errors import BookieFailed, LedgerFenced, QuireError
from quire.ledger.client import LedgerClient
from quire.ledger.writing.writer import LedgerWriter
from quire.protocol.quorum import entries_at
from quire.rpc import AddAnswers, BookieChannel
from quire.types import EntryId, Fragment, LedgerId, LedgerMetadata
from tests.support.ledgers.history import LedgerHistory
from tests.support.simulation.ledgers import LedgerWorld

_IDLE_S = 1.5  # Longer than it takes until everything written is in the logs.


# --- Writing


async def write(world: LedgerWorld, name: str) -> None:
    """Write some ledgers at the same time, over the same connections, each until it may not be written any more."""
    async with world.ledgers(name) as ledgers:
        await asyncio.gather(*(write_ledger(world, name, ledgers) for _ in range(world.plan.ledgers)))


async def write_ledger(world: LedgerWorld, name: str, ledgers: LedgerClient) -> None:
    history = LedgerHistory()
    try:
        async with world.create(ledgers) as writer:
            history.ledger_id = writer.id
            world.histories.append(history)
            watching = asyncio.create_task(watch_metadata(world, history))
            try:
                await append_from_many_tasks(world, history, writer)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
    except LedgerFenced:
        world.events["fenced"] += 1
    except QuireError as error:
        world.note(name, error)


async def append_from_many_tasks(world: LedgerWorld, history: LedgerHistory, writer: LedgerWriter) -> None:
    """There are always entries whose fate the writer does not know. The first error ends all of them."""
    tasks = [asyncio.create_task(append(world, history, writer, number)) for number in range(world.plan.appenders)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def append(world: LedgerWorld, history: LedgerHistory, writer: LedgerWriter, appender: int) -> None:
    rng, plan, number = world.rng, world.plan, 0
    while True:
        payloads = [b"%d/%d/%d:" % (writer.id, appender, number + step) for step in range(rng.randrange(1, 4))]
        number += len(payloads)
        history.on_sent(payloads)
        with world.expecting(writer.id, payloads[0]):
            entry_ids = await writer.append_many(payloads)
        history.on_acknowledged(entry_ids, payloads)
        history.on_lac(f"writer {writer.id}", writer.last_add_confirmed)
        world.events["acknowledged"] += len(payloads)
        idle = _IDLE_S if rng.random() < plan.idle_chance else 0.0
        await world.pause(rng.random() * plan.append_pause_s + idle)


async def rival(world: LedgerWorld, name: str) -> None:
    """Take over from another writer: recover what it wrote, and go on in a ledger of its own."""
    await world.pause(world.rng.random() * world.plan.recover_within_s)
    async with world.ledgers(name) as ledgers:
        for history in list(world.histories):
            await recover(world, name, ledgers, history)
        await write_ledger(world, name, ledgers)


async def watch_metadata(world: LedgerWorld, history: LedgerHistory) -> None:
    """See every version of the metadata that lasts for a moment. Through a handle that no fault reaches."""
    async with world.cluster.ledgers.watch(history.ledger_id) as watch:
        while True:
            history.on_metadata((await world.cluster.ledgers.read(history.ledger_id)).metadata)
            await watch.wait_changed()


# --- Reading


async def recover_sometime(world: LedgerWorld, name: str) -> None:
    rng = world.rng
    await world.pause(rng.random() * world.plan.recover_within_s)
    if world.histories:
        async with world.ledgers(name) as ledgers:
            await recover(world, name, ledgers, rng.choice(world.histories))


async def recover(world: LedgerWorld, name: str, ledgers: LedgerClient, history: LedgerHistory) -> None:
    try:
        async with ledgers.open(history.ledger_id) as reader:
            history.on_end(f"{name} of {history.ledger_id}", reader.last_add_confirmed)
            world.events["recovered"] += 1
    except QuireError as error:
        world.note(name, error)


async def tail(world: LedgerWorld, name: str, *, pause_s: float = 0.3) -> None:
    """Follow one ledger after the other, without disturbing their writers, until all trouble is over."""
    rng, read = world.rng, 0
    async with world.ledgers(name) as ledgers:
        while not world.over.is_set():
            await world.pause(rng.random() * pause_s)
            if kept := world.kept:
                read += 1
                following = follow(world, ledgers, rng.choice(kept), f"{name} for the {read}. time")
                try:
                    async with asyncio.timeout(rng.random() * 2):
                        await following
                except TimeoutError:
                    world.events["tail cut short"] += 1
                except QuireError as error:
                    world.note(name, error)


async def follow(world: LedgerWorld, ledgers: LedgerClient, history: LedgerHistory, handle: str) -> None:
    async with ledgers.open(history.ledger_id, recover=False) as reader:
        wanted = first = max(0, reader.last_add_confirmed - world.rng.randrange(20))
        async for entry in reader.follow(first):
            assert entry.entry_id == wanted, f"{handle} was shown entry {entry.entry_id} instead of {wanted}"
            wanted += 1
            history.on_shown(entry.entry_id, entry.payload)
            history.on_lac(handle, reader.last_add_confirmed)
            world.events["tailed"] += 1
        assert reader.is_closed, f"{handle} came to the end of a ledger that is not closed"
        assert wanted == max(first, reader.last_add_confirmed + 1), f"{handle} was not shown all"
        history.on_end(handle, reader.last_add_confirmed)


# --- Re-replication


async def copy_fragments(world: LedgerWorld, name: str) -> None:
    """Move old fragments to other bookies, as re-replication does: first the copies, then the metadata."""
    rng = world.rng
    async with world.ledgers(name) as ledgers:
        while not world.over.is_set():
            await world.pause(rng.random() * 1.0)
            if world.histories:
                try:
                    await copy_fragment(world, ledgers, rng.choice(world.histories))
                except QuireError as error:
                    world.note(name, error)


async def copy_fragment(world: LedgerWorld, ledgers: LedgerClient, history: LedgerHistory) -> None:
    stored = await ledgers.ledgers_metadata.read(history.ledger_id)
    fragments = stored.metadata.fragments
    old = [(each, following.first_entry_id) for each, following in itertools.pairwise(fragments)]
    if not old:
        return  # The last fragment belongs to the writer, or to a recovery.
    fragment, end = world.rng.choice(old)
    position = world.rng.randrange(len(fragment.bookies))
    others = sorted(ledgers.pool.writable - set(fragment.bookies))
    if not others:
        return
    target = world.rng.choice(others)
    async with ledgers.open(history.ledger_id, recover=False) as reader:
        channel = await ledgers.pool.connect(target, 3, timeout_s=ledgers.settings.read_timeout_s)
        for entry_id in entries_at(position, fragment.first_entry_id, end, stored.metadata.quorum):
            entry = await reader.read_entry(entry_id)
            prefix = reader.codec.prefix(entry_id, entry.payload, lac=entry.lac, length=entry.length)
            await _Copy().send(channel, history.ledger_id, entry_id, reader.master_key, (prefix, entry.payload))

    def moved(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if fragment not in metadata.fragments[:-1]:
            return None  # Somebody else changed it.
        bookies = (*fragment.bookies[:position], target, *fragment.bookies[position + 1 :])
        changed = Fragment(fragment.first_entry_id, bookies)
        return replace(metadata, fragments=tuple(changed if each == fragment else each for each in metadata.fragments))

    await ledgers.ledgers_metadata.update(stored, moved)
    world.events["fragment moved"] += 1


class _Copy:
    """One entry on its way to another bookie. An `AddSink`."""

    def __init__(self) -> None:
        self._stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(
        self, channel: BookieChannel, ledger_id: LedgerId, entry_id: EntryId, key: bytes, parts: tuple[bytes, bytes]
    ) -> None:
        channel.send_add_v3(ledger_id, entry_id, key, parts, self, recovery=True, high_priority=True)
        await self._stored

    def on_add_answers(self, answers: AddAnswers) -> None:
        status, _ = answers[0]
        self._settle(None if status is Status.EOK else BookieFailed(f"a copy is refused: {status}"))

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        self._settle(error)

    def _settle(self, error: QuireError | None) -> None:
        if not self._stored.done():
            if error is None:
                self._stored.set_result(None)
            else:
                self._stored.set_exception(error)
