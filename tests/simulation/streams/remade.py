"""A stream that is deleted and made again, while writers of the one before go on without knowing.

A writer that loses its lock while only the metadata are out of its reach can write to bookies as before. Proven:

  FencedByDeletion   what is appended after a deletion has returned is not acknowledged to a writer of the
                     deleted stream.
  NothingMixed       the stream that is left in the end has what its own writers were told, in their order, and nothing
                     that an earlier one was given.
  NoLedgerLost       ledgers that no node names are not more than crashes may have left.
"""

import asyncio
import functools
import itertools
from dataclasses import replace

from quire.errors import NoSuchStream, QuireError, StreamOwned, WriterFenced
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.removal import delete_stream
from quire.stream.writer import StreamWriter
from quire.testing import Simulation
from quire.types import DLSN
from tests.simulation.streams.faults import isolate, wreak_on
from tests.simulation.streams.plan import Plan
from tests.simulation.streams.world import STREAM, StreamWorld
from tests.support.simulation import faults
from tests.support.streams.stored import read_stored

_END_S = 100.0
_PLAN = Plan(
    {"stall_writer": 4, "expire_writer": 1, "crash_writer": 0.5, "isolate": 1, "lose_answers": 1, "reset": 0.5},
    bookies=3,
    writers=2,
    lasts_s=20.0,
    tenure_s=6.0,
    reopen_s=0.1,
    fault_pause_s=1.5,
    append_pause_s=0.3,
)


class RemadeWorld(StreamWorld):
    """One run. `deleted` says how many streams of the name are gone for good."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.deleted, self.numbers = 0, itertools.count()
        self.told: dict[int, dict[DLSN, bytes]] = {}  # What was acknowledged, by the stream that its writer opened.


async def live(sim: Simulation) -> RemadeWorld:
    async with RemadeWorld.open(sim, _PLAN) as world:
        await world.found()
        writers = [f"writer{number}" for number in range(_PLAN.writers)]
        for name in writers:
            world.spawn(name, _write(world, name))
        world.spawn("remover", _remake(world, "remover"))
        async with faults.trouble(world, _PLAN.faults, functools.partial(_wreak, world)):
            await asyncio.sleep((0.5 + 0.5 * world.rng.random()) * _PLAN.lasts_s)
        await world.repair()
        await world.end_clients(["remover"], within_s=_END_S)
        for name in writers:
            await world.end_client(name)
        await _prove(world)
    return world


async def _wreak(world: RemadeWorld, kind: str) -> None:
    writers = [name for name in world.client_names if name.startswith("writer")]
    if kind == "isolate":
        world.events[kind] += 1
        isolate(world, world.rng.choice(writers), world.rng.choice([1.0, 4.5]))
    elif "_writer" in kind:
        await wreak_on(world, kind, writers, _write, answers_max=2, back_within_s=0.5)
    else:
        await faults.wreak(world, kind)


# --- The clients


async def _write(world: RemadeWorld, name: str) -> None:
    """Own the stream again and again."""
    while True:
        try:
            async with world.context(name) as context:
                settings = replace(world.settings(), create_if_missing=False)
                async with open_stream_writer(context, STREAM, settings) as writer:
                    world.events["owned"] += 1
                    async with asyncio.timeout(world.rng.random() * _PLAN.tenure_s):
                        await _append(world, writer)
        except TimeoutError:
            pass
        except QuireError as error:
            world.note(name, error)
        await world.pause(world.rng.random() * _PLAN.reopen_s)


async def _append(world: RemadeWorld, writer: StreamWriter) -> None:
    opened = world.deleted
    while True:
        asked, payload = world.deleted, b"%d" % next(world.numbers)
        try:
            dlsn = await writer.append(payload)
        except QuireError as error:
            world.note("append", error)
            if isinstance(error, WriterFenced):
                return
        else:
            world.events["acknowledged"] += 1
            assert asked == opened, f"FencedByDeletion: {payload!r} was acknowledged at {dlsn} all the same"
            world.told.setdefault(opened, {})[dlsn] = payload
        await world.pause(world.rng.random() * _PLAN.append_pause_s)


async def _remake(world: RemadeWorld, name: str) -> None:
    """Delete the stream and make it again, until all trouble is over."""
    while not world.over.is_set():
        await world.pause(world.rng.random() * 0.5)
        try:
            async with world.context(name) as context:
                await _delete(context)
                world.deleted += 1
                world.events["deleted"] += 1
                await _create(context)
        except QuireError as error:
            world.note(name, error)


async def _delete(context: StreamContext) -> None:
    """Raises `StreamOwned` if a writer has the lock. Once begun it goes on to the end."""
    is_begun = False
    while True:
        try:
            return await delete_stream(context, STREAM, lock_timeout_s=6.0)
        except NoSuchStream:
            return None  # By an earlier attempt, whose answer was lost.
        except QuireError as error:
            if isinstance(error, StreamOwned) and not is_begun:
                raise
            is_begun = is_begun or not isinstance(error, StreamOwned)
            await context.runtime.clock.sleep(0.2)


async def _create(context: StreamContext) -> None:
    while True:
        try:
            return await create_stream(context.store, context.paths(STREAM), context.runtime.rng)
        except QuireError:
            await context.runtime.clock.sleep(0.2)


# --- The proof


async def _prove(world: RemadeWorld) -> None:
    async with world.context("checker") as context:
        async with open_stream_writer(context, STREAM, world.settings()):
            pass  # Completes what others left.
        nodes = StreamNodes(context.store, context.paths(STREAM))
        segments = {each.segment.lssn: each.segment for each in await nodes.all_segments()}
        stored = await read_stored(context.ledgers, segments)
        assert not stored.unreadable, f"NothingMixed: segments {stored.unreadable} have no ledgers"
        told, there = world.told.get(world.deleted, {}), {record.dlsn: record.payload for record in stored.records}
        assert told.items() <= there.items(), f"NothingMixed: lost {sorted(told.items() - there.items())}"
        earlier = {payload for number in range(world.deleted) for payload in world.told.get(number, {}).values()}
        assert not earlier & set(there.values()), "NothingMixed: records of a stream that was deleted are there"
        left = {ledger async for ledger in context.ledgers.scan()} - {each.ledger_id for each in segments.values()}
        assert len(left) <= 1 + world.ledgers_left_max(), f"NoLedgerLost: {sorted(left)}"
