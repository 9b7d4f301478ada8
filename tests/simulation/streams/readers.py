"""The readers of a simulated stream: they begin anywhere, stop, and go on where they were, until they have seen all."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.codec.stream.records import LogRecord
from quire.errors import PositionTruncated, QuireError, StreamSealed
from quire.stream.context import StreamContext
from quire.stream.reader import StreamReader, open_stream_reader
from quire.stream.start import Start, Txid
from quire.types import DLSN
from tests.simulation.streams.world import STREAM, StreamWorld
from tests.support.streams.history import Reading


@dataclass
class Memory:
    """What a reader's program knows from one reader to the next."""

    subscription: str | None
    exclusive: bool
    position: DLSN | None = None  # Where to go on.
    committed: DLSN | None = None  # At least this is stored under the subscription.
    attempts: list[DLSN] = field(default_factory=list)  # What may be stored, too.


async def read(world: StreamWorld, name: str) -> None:
    """Read until the stream is complete, and all of it was seen by the last reader."""
    subscribed = world.rng.random() < 0.4
    memory = Memory(name if subscribed else None, exclusive=subscribed and world.rng.random() < 0.3)
    while True:
        try:
            async with world.context(name) as context:
                while not await read_once(world, name, context, memory):
                    await world.pause(world.rng.random() * 0.2)
                return
        except QuireError as error:
            world.note(name, error)  # The metadata could not be reached to begin with.
            await world.pause(0.2)


async def read_once(world: StreamWorld, name: str, context: StreamContext, memory: Memory) -> bool:
    """One reader from its opening to its end. Returns whether it saw the end of a stream that is complete."""
    in_peace = world.over.is_set()
    start, reading = begin(world, name, memory)
    try:
        async with open_stream_reader(
            context,
            STREAM,
            world.settings(),
            start=start,
            subscription=memory.subscription,
            exclusive=memory.exclusive,
            skip_truncated=reading.skips,
        ) as reader:
            reading.on_opened(reader.position)
            memory.position = reader.position
            world.events["readings"] += 1
            return await consume(world, reader, reading, memory)
    except QuireError as error:
        reading.on_error(error)
        world.note(name, error)
        if isinstance(error, PositionTruncated):
            forget(memory)
        elif in_peace:
            raise AssertionError(f"{name} cannot read although all is well again: {error!r}") from error
        return False


def begin(world: StreamWorld, name: str, memory: Memory) -> tuple[Start, Reading]:
    """Choose where to begin, and note it."""
    rng, history = world.rng, world.history
    known = memory.committed or memory.position
    if memory.subscription is not None and known is not None:
        # If nothing is stored yet, reading begins at `start`.
        reading = history.on_reading(name, "place", places=[known, *memory.attempts], skips=rng.random() < 0.3)
        return known, reading
    dice = rng.random()
    if memory.position is not None and dice < 0.5:
        world.events["resumed"] += 1
        return memory.position, history.on_reading(name, "place", places=[memory.position], skips=rng.random() < 0.3)
    if world.over.is_set() or dice < 0.65:
        return "earliest", history.on_reading(name, "earliest", skips=rng.random() < 0.5)
    if dice < 0.75:
        return "latest", history.on_reading(name, "latest", skips=rng.random() < 0.5)
    acknowledged = [call for call in history.calls if call.dlsns]
    if not acknowledged:
        return "earliest", history.on_reading(name, "earliest")
    call = rng.choice(acknowledged)
    assert call.dlsns is not None
    if dice < 0.9 or call.txids is None:
        place = rng.choice(call.dlsns)
        return place, history.on_reading(name, "place", places=[place], skips=rng.random() < 0.3)
    txid = call.txids[0] + rng.randrange(-1, 2)
    return Txid(txid), history.on_reading(name, txid, skips=rng.random() < 0.5)


def forget(memory: Memory) -> None:
    """What was to be read is gone: begin anew."""
    if memory.subscription is not None:
        memory.subscription = f"{memory.subscription}+"
    memory.position, memory.committed, memory.attempts = None, None, []


async def consume(world: StreamWorld, reader: StreamReader, reading: Reading, memory: Memory) -> bool:
    """Read for a while, in one of the ways there are; once the stream is complete, to its end."""
    rng, loop = world.rng, asyncio.get_running_loop()
    until_s = loop.time() + rng.random() * world.plan.reading_s
    way = rng.choice([read_many, read_batches, read_records])
    while not is_at_the_end(world, reader):
        if loop.time() > until_s and not world.ended.is_set():
            break
        try:
            await way(world, reader, reading)
        except (StreamSealed, StopAsyncIteration):
            reading.on_end_of_stream()
            return True
        memory.position = reader.position
        if memory.subscription is not None and rng.random() < 0.2:
            await commit(world, reader, memory)
    return is_at_the_end(world, reader)


def is_at_the_end(world: StreamWorld, reader: StreamReader) -> bool:
    """Of a stream that is complete. A sealed one tells itself."""
    return world.end is not None and not world.is_sealed and reader.position >= world.end


async def commit(world: StreamWorld, reader: StreamReader, memory: Memory) -> None:
    memory.attempts.append(reader.position)
    committed = await reader.commit()
    memory.committed = committed
    memory.attempts = [place for place in memory.attempts if place > committed]
    world.events["commits"] += 1


def show(world: StreamWorld, reader: StreamReader, reading: Reading, records: Sequence[LogRecord]) -> None:
    reading.on_shown(records, reader.position)
    world.events["shown"] += len(records)


async def read_many(world: StreamWorld, reader: StreamReader, reading: Reading) -> None:
    records = await reader.read_many(world.rng.choice([1, 3, 100]), timeout_s=0.2)
    if records:
        show(world, reader, reading, records)


async def read_batches(world: StreamWorld, reader: StreamReader, reading: Reading) -> None:
    try:
        async with asyncio.timeout(0.2):
            async for batch in reader.batches():
                show(world, reader, reading, batch)
            raise StopAsyncIteration
    except TimeoutError:
        pass


async def read_records(world: StreamWorld, reader: StreamReader, reading: Reading) -> None:
    try:
        async with asyncio.timeout(0.2):
            show(world, reader, reading, [await anext(reader)])
    except TimeoutError:
        pass
