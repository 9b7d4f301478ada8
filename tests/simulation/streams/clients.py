"""The clients of a simulated stream: writers that take turns or shut each other out, readers, and those who truncate.

Each notes in the stream's history what it was told. A `QuireError` is something that happens to clients; anything else
fails the run.
"""

import asyncio
import itertools
from collections.abc import Callable

from quire.errors import (
    AppendCancelled,
    HandleClosed,
    QuireError,
    RecordTooLarge,
    StreamSealed,
    TxidOutOfOrder,
    WriterFenced,
)
from quire.metadata import SessionId
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.retention import Retention, truncate_before
from quire.stream.writer import StreamWriter
from tests.simulation.streams.world import STREAM, StreamWorld
from tests.support.streams.history import Call, StreamHistory

_IDLE_S = 0.6


# --- Writing


async def write(world: StreamWorld, name: str) -> None:
    """Own the stream again and again, until it has ended."""
    write_lock = name.startswith("writer")
    while True:
        try:
            async with world.context(name) as context:
                while await own(world, name, context, write_lock=write_lock):
                    await world.pause(world.rng.random() * world.plan.reopen_s)
                return
        except QuireError as error:
            world.note(name, error)  # The metadata could not be reached to begin with.
            await world.pause(0.2)


async def own(world: StreamWorld, name: str, context: StreamContext, *, write_lock: bool) -> bool:
    """Own the stream once. Returns whether it can be owned again."""
    settings, handle = world.settings(write_lock=write_lock), world.history.on_opening()
    begun_in = context.store.session
    session: SessionId | None = None  # Once the stream is open.

    def is_owner() -> bool:
        """Whether the lock is certainly held: that may have been taken, and lost, before the stream was open."""
        return begun_in == session == context.store.session and world.tree.is_alive(session)

    try:
        async with open_stream_writer(context, STREAM, settings) as writer:
            session = context.store.session
            handle.on_settled()
            world.events["owned"] += 1
            await use(world, writer, handle.number, is_owner if write_lock else None)
    except StreamSealed:
        return False
    except WriterFenced as error:
        if session is not None:
            handle.on_fenced()
        assert session is not None or not write_lock, "RaiseOrRetry: only clients without a lock are overtaken"
        world.note(name, error)
    except QuireError as error:
        world.note(name, error)
    finally:
        handle.on_settled()
    return True


async def use(
    world: StreamWorld, writer: StreamWriter, handle: int, is_owner: Callable[[], bool] | None = None
) -> None:
    """Append from many tasks, until one of them cannot any more or it is somebody else's turn. `is_owner` says whether
    the stream's lock has been held all the time.

    Sometimes the writer is closed while they append: they have to be told.
    """
    rng, plan = world.rng, world.plan
    with_txids = rng.random() < plan.txids_chance
    tasks = [
        asyncio.create_task(append(world, writer, handle, number, is_owner, with_txids=with_txids))
        for number in range(plan.appenders)
    ]
    flushing = asyncio.create_task(flush(world, writer))
    try:
        tenure_s = rng.random() * plan.tenure_s
        done, _ = await asyncio.wait(tasks, timeout=tenure_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if rng.random() < 0.3:
            await writer.flush()
        if rng.random() < 0.5:
            await close(world, writer)
            _, hanging = await asyncio.wait(tasks, timeout=60.0)
            assert not hanging, f"appends hang after their writer was closed: {sorted(world.waiting)}"
    finally:
        for task in (*tasks, flushing):
            task.cancel()
        await asyncio.wait([*tasks, flushing])
    for task in (*tasks, flushing):
        if not task.cancelled():
            task.result()


async def close(world: StreamWorld, writer: StreamWriter) -> None:
    """Close a writer. Some do not want to wait for it: closing goes on all the same."""
    try:
        async with asyncio.timeout(world.rng.choice([0.001, 0.02, 60.0])):
            await writer.aclose(drain=world.rng.random() < 0.5)
    except TimeoutError:
        world.events["closing cut short"] += 1


async def append(
    world: StreamWorld,
    writer: StreamWriter,
    handle: int,
    appender: int,
    is_owner: Callable[[], bool] | None,
    *,
    with_txids: bool,
) -> None:
    """Append one call after the other, until the writer is over."""
    rng, plan, history = world.rng, world.plan, world.history
    numbers = itertools.count()
    while True:
        count = rng.choice([1, 1, 1, 2, 5])
        payloads = [b"%d/%d/%d:" % (handle, appender, next(numbers)) for _ in range(count)]
        payloads[0] += bytes(rng.choice([0, 10, 50]))
        is_set, txids = rng.random() < 0.15, None
        if with_txids:
            txids = [writer.last_txid + rng.randrange(3) - (rng.random() < 0.1)] * (1 if is_set else count)
        if rng.random() < 0.01:
            payloads[-1] += bytes(1 << 20)  # Too large: refused as a whole.
        call = history.on_called(handle, appender, payloads, txids=txids, is_set=is_set)
        try:
            with world.expecting(handle, payloads[0]):
                await send(writer, call)
        except (WriterFenced, HandleClosed, StreamSealed) as error:
            call.on_error(error)
            world.note("append", error)
            if isinstance(error, WriterFenced) and is_owner is not None and not world.has_rivals:
                assert not is_owner(), "RightfulOwner: a writer is fenced that has held the lock all the time"
            return
        except QuireError as error:
            call.on_error(error)
            world.note("append", error)
            if not isinstance(error, TxidOutOfOrder | RecordTooLarge | AppendCancelled) and rng.random() < 0.2:
                return
        idle = _IDLE_S if rng.random() < plan.idle_chance else 0.0
        await world.pause(rng.random() * plan.append_pause_s + idle)


async def flush(world: StreamWorld, writer: StreamWriter) -> None:
    """Send what waits, now and then: by some policies it would wait for ever."""
    while world.settings().transmit == "outstanding":
        await world.pause(0.05)
        await writer.flush()


async def send(writer: StreamWriter, call: Call) -> None:
    if call.is_set:
        dlsns = await writer.append_set(call.payloads, txid=None if call.txids is None else call.txids[0])
    elif len(call.payloads) == 1:
        dlsns = [await writer.append(call.payloads[0], txid=None if call.txids is None else call.txids[0])]
    else:
        dlsns = await writer.append_many(call.payloads, txids=call.txids)
    call.on_acknowledged(dlsns)


# --- Truncating and purging


async def truncate(world: StreamWorld, name: str) -> None:
    """Hide the old end of the stream, sometimes by txid and for ever, until all trouble is over."""
    rng, history = world.rng, world.history
    while not world.over.is_set():
        try:
            async with world.context(name) as context:
                while not world.over.is_set():
                    await world.pause(rng.random() * 0.6)
                    await truncate_once(world, context, history)
        except QuireError as error:
            world.note(name, error)


async def truncate_once(world: StreamWorld, context: StreamContext, history: StreamHistory) -> None:
    rng, places = world.rng, sorted(history.acknowledged())
    if not places:
        return
    nodes = StreamNodes(context.store, context.paths(STREAM))
    before = places[-1] if rng.random() < 0.2 else rng.choice(places[: 1 + len(places) * 2 // 3])
    dice = rng.random()
    if dice < 0.7 or not world.plan.purges:
        asked = history.on_truncate_called(before)
        changed = await truncate_before(nodes, before)
        history.on_truncated(asked)
        world.events["segments truncated"] += changed
    elif dice < 0.85:
        world.events["segments purged"] += await Retention(context, nodes).purge_truncated()
    elif dice < 0.92:
        world.events["segments purged"] += await Retention(context, nodes).purge_expired(world.settings())
    else:
        txids = [max(call.txids) for call in history.calls if call.dlsns and call.txids and call.dlsns[0] <= before]
        if txids:
            history.on_purge_called(txids[-1])
            world.events["segments purged"] += await Retention(context, nodes).purge_below(txids[-1])
