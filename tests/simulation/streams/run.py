"""One simulated run of a stream: start, trouble, repair, proof."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from quire.codec.stream.records import LogRecord
from quire.errors import QuireError, StreamSealed, WriterFenced
from quire.stream.context import StreamContext
from quire.stream.ownership import open_stream_writer
from quire.stream.reader import open_stream_reader
from quire.stream.start import Txid
from quire.testing import Simulation
from quire.types import DLSN, INITIAL_DLSN
from tests.simulation.streams.clients import truncate, write
from tests.simulation.streams.faults import wreak
from tests.simulation.streams.plan import Plan
from tests.simulation.streams.readers import read
from tests.simulation.streams.world import STREAM, StreamWorld
from tests.support.simulation.faults import slow_links, trouble
from tests.support.streams.history import Call
from tests.support.streams.proof import prove
from tests.support.streams.proof_of_reading import Hidden
from tests.support.streams.stored import StoredStream, last_known, read_stored

_END_S = 200.0


async def live(sim: Simulation, plan: Plan, world_type: type[StreamWorld] = StreamWorld) -> StreamWorld:
    """All kinds of clients and faults, as the plan says."""
    async with world_type.open(sim, plan) as world:
        with world.changes.observed():
            await _act(world)
    return world


async def _act(world: StreamWorld) -> None:
    plan = world.plan
    cast: dict[str, Callable[[StreamWorld, str], Coroutine[Any, Any, None]]] = {}
    for kind, count, role in (
        ("writer", plan.writers, write),
        ("rival", plan.rivals, write),
        ("reader", plan.readers, read),
        ("truncator", plan.truncators, truncate),
    ):
        cast |= {f"{kind}{number}": role for number in range(count)}
    cast |= world.more_roles()
    slow_links(world, list(cast))
    await world.found()
    for name, act in cast.items():
        world.spawn(name, act(world, name))
    async with trouble(world, plan.faults, functools.partial(wreak, world)):
        await asyncio.sleep((0.3 + 0.7 * world.rng.random()) * plan.lasts_s)
    await world.repair()
    await _end(world)


async def _end(world: StreamWorld) -> None:
    """Writers are closed, or die, or go on until somebody else takes over; then readers have to come to the end."""
    ending = world.rng.choice(world.plan.endings)
    world.events[f"ending: {ending}"] += 1
    writers = [name for name in world.client_names if name.startswith(("writer", "rival"))]
    truncators = [name for name in world.client_names if name.startswith("truncator")]
    if ending in ("go on", "seal"):
        await world.answered()
    for name in writers:
        if ending == "crash":
            await world.crash_client(name)
        elif ending != "go on":
            await world.end_client(name)
    await world.end_clients(truncators, within_s=_END_S)
    async with world.context("checker") as context:
        await _take_over(world, context, ending)
        for name in writers:
            await world.end_client(name)
        await _complete(world, context)
        await world.settled(context)
        stored = await _stored(world, context)
        world.is_sealed = stored.is_sealed
        world.end = stored.records[-1].dlsn.next_slot() if stored.records else INITIAL_DLSN
        world.ended.set()
        await world.end_clients(world.client_names, within_s=_END_S)
        await _read_once_more(world, context, stored)
        await prove(context, STREAM, world.history, stored, ledgers_left_max=world.ledgers_left_max())


async def _take_over(world: StreamWorld, context: StreamContext, ending: str) -> None:
    """The stream can be written, after all that has happened; and ended."""
    history, handle = world.history, world.history.on_opening()
    settings = replace(world.settings(write_lock=ending != "go on"), transmit="immediate")
    call: Call | None = None
    try:
        async with open_stream_writer(context, STREAM, settings) as writer:
            handle.on_settled()
            call = history.on_called(handle.number, 0, [b"%d/the end" % handle.number])
            call.on_acknowledged([await writer.append(call.payloads[0])])
            if ending == "seal":
                history.on_seal_called()
                await writer.seal()
                history.on_sealed()
    except StreamSealed:
        assert history.may_be_sealed, "SealedIsTheEnd: nobody asked for it"
    except WriterFenced as error:
        assert ending == "go on", f"StillWritable: {error!r}"
        if call is not None and call.dlsns is None:
            call.on_error(error)
    except QuireError as error:
        raise AssertionError(f"StillWritable: the stream cannot be written any more: {error!r}") from error


async def _complete(world: StreamWorld, context: StreamContext) -> None:
    """Nobody writes any more: complete what they left."""
    handle = world.history.on_opening()
    try:
        async with open_stream_writer(context, STREAM, world.settings()):
            handle.on_settled()
    except StreamSealed:
        pass
    except QuireError as error:
        raise AssertionError(f"StillWritable: the stream cannot be recovered: {error!r}") from error


async def _stored(world: StreamWorld, context: StreamContext) -> StoredStream:
    """All that ever was in the stream. A purge that was cut off is not finished: its segment's ledger is gone."""
    there, gone = last_known(world.history)
    for segment in [*gone.values(), *there.values()]:
        await world.restore_ledger(segment.ledger_id)
    return await read_stored(context.ledgers, there | gone)


async def _read_once_more(world: StreamWorld, context: StreamContext, stored: StoredStream) -> None:
    """Fresh readers see all that is left, from wherever they begin."""
    history, hidden = world.history, Hidden(world.history, stored)
    left = stored.records[hidden.index(history.moment) :]
    starts: list[tuple[Any, int]] = [("earliest", 0)]
    for _ in range(2):
        if left:
            place = world.rng.randrange(len(left))
            starts.append((left[place].dlsn, place))
            txid = left[place].txid
            starts.append((Txid(txid), next(at for at, record in enumerate(left) if record.txid >= txid)))
    for start, place in starts:
        seen: list[LogRecord] = []
        async with open_stream_reader(context, STREAM, world.settings(), start=start) as reader:
            while len(seen) < len(left) - place:
                try:
                    records = await reader.read_many(50, timeout_s=30.0)
                except StreamSealed:
                    records = []
                missing = len(left) - place - len(seen)
                assert records, f"NothingLost: a fresh reader from {start} misses {missing} records"
                seen += records
        assert seen == left[place:], f"AllReadersAgree: a fresh reader from {start} sees something else"
    assert isinstance(world.end, DLSN)
