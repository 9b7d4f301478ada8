"""Those who write: drivers with their batches, plain writers, and whoever sweeps."""

import asyncio
from contextlib import AsyncExitStack, suppress

from quire.codec.stream_metadata.sinks import SinkBatch, SinkState, decode_staged
from quire.errors import QuireError
from quire.stream.context import StreamContext
from quire.stream.ownership import open_stream_writer
from quire.stream.staging import StagedSegment, discard, stage, staged_names, sweep
from quire.stream.staging_commit import Committed, commit_staged
from quire.stream.staging_inline import InlineSink, open_inline_sink
from tests.simulation.staging.world import SinkWorld
from tests.simulation.streams.world import STREAM


async def drive(world: SinkWorld, name: str) -> None:
    """A driver of Spark: one batch after the other, from where the checkpoint is, until everything is over."""
    rng, sink = world.rng, f"sink{name[-1]}"
    async with world.context(name) as context:
        inline = _Inline(world, context)
        try:
            while not world.over.is_set():
                number = world.next_batch.get(sink, 0)
                batch = SinkBatch(sink, number, f"query-{sink}")
                try:
                    done = await _attempt(world, context, batch, inline)
                except QuireError as error:
                    world.note("driver", error)
                    await world.pause(0.05 * rng.random())
                    continue
                world.events["new" if done.is_new else "recognised"] += 1
                if rng.random() >= world.plan.forgets_chance:
                    world.next_batch[sink] = max(number + 1, world.next_batch.get(sink, 0))
                await world.pause(0.3 * rng.random())
        finally:
            await inline.close()


async def _attempt(world: SinkWorld, context: StreamContext, batch: SinkBatch, inline: "_Inline") -> Committed:
    rng = world.rng
    world.attempt_count += 1
    attempt = f"{batch.sink}/{batch.number}/{world.attempt_count}"
    if rng.random() < world.plan.inline_chance:
        payloads = [f"{attempt}/0/{row}".encode() for row in range(rng.randrange(4))]
        world.sizes[attempt] = [len(payloads)]
        done = await inline.commit(batch, payloads)
    else:
        await inline.close()
        done = await _stage_and_commit(world, context, batch, attempt)
    world.told.setdefault((batch.sink, batch.number), attempt)
    return done


async def _stage_and_commit(world: SinkWorld, context: StreamContext, batch: SinkBatch, attempt: str) -> Committed:
    rng = world.rng
    sizes = world.sizes[attempt] = [rng.randrange(6) for _ in range(rng.randrange(4))]
    txid = context.runtime.clock.wall_ms()
    parts: list[StagedSegment | None] = [None] * len(sizes)

    async def task(part: int) -> None:
        async with stage(context, STREAM, world.settings, batch) as staging:
            for row in range(sizes[part]):
                await staging.append_many([f"{attempt}/{part}/{row}".encode()], [txid])
        parts[part] = staging.segment

    try:
        for done in await asyncio.gather(*map(task, range(len(sizes))), return_exceptions=True):
            if done is not None:
                raise done
        staged = [each for each in parts if each is not None]
        world.attempts[attempt] = frozenset(each.written.ledger for each in staged)
        restamps = rng.random() < 0.7
        return await commit_staged(context, STREAM, batch, staged, world.settings, may_restamp=restamps)
    except QuireError:
        # As Spark does, whether or not the commit succeeded. Now and then it cannot.
        if rng.random() < 0.7:
            await discard(context, STREAM, [each.node for each in parts if each is not None])
        raise


class _Inline:
    """The writer of a driver for small batches: open from one to the next, most of the time."""

    def __init__(self, world: SinkWorld, context: StreamContext) -> None:
        self._world, self._context = world, context
        self._stack = AsyncExitStack()
        self._sink: InlineSink | None = None

    async def commit(self, batch: SinkBatch, payloads: list[bytes]) -> Committed:
        try:
            if self._sink is None:
                opening = open_inline_sink(self._context, STREAM, self._world.settings)
                self._sink = await self._stack.enter_async_context(opening)
                self._die_now_and_then(self._sink)
            done = await self._sink.commit(batch, payloads, None)
        except QuireError:
            await self.close()
            raise
        if self._world.rng.random() < 0.3:
            await self.close()
        return done

    def _die_now_and_then(self, sink: InlineSink) -> None:
        world, note, name = self._world, sink._note, self._context.client_id

        async def note_or_die(sink: str, state: SinkState) -> None:
            if world.rng.random() < world.plan.dies_at_note_chance and not world.over.is_set():
                world.dying.put_nowait(name)
                await asyncio.Event().wait()
            await note(sink, state)

        sink._note = note_or_die  # type: ignore[method-assign]

    async def close(self) -> None:
        self._sink, stack, self._stack = None, self._stack, AsyncExitStack()
        await stack.aclose()


async def write(world: SinkWorld, name: str) -> None:
    """A plain writer of the stream, with the lock or without."""
    rng, count = world.rng, 0
    async with world.context(name) as context:
        while not world.over.is_set():
            try:
                async with open_stream_writer(context, STREAM, world.settings) as writer:
                    for _ in range(rng.randrange(4)):
                        count += 1
                        await writer.append(f"{name}/{count}".encode())
                        await world.pause(0.05 * rng.random())
            except QuireError as error:
                world.note("writer", error)
            await world.pause(0.5 * rng.random())


async def clean(world: SinkWorld, name: str) -> None:
    """Give up staged ledgers at random, also those that are about to be published."""
    rng = world.rng
    async with world.context(name) as context, context.store.watch_children(world.paths.lock) as commits:
        while not world.over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.4 * rng.random()):
                    await (commits.wait_changed() if world.plan.sweeps_at_commits else asyncio.Event().wait())
            for _ in range(rng.randrange(30) if world.plan.sweeps_at_commits else 0):
                await asyncio.sleep(0)  # A commit takes many steps: each of them is the wrong moment for something.
            try:
                names = await staged_names(context.store, world.paths)
                chosen = [each for each in names if rng.random() < 0.3 and _has_ledger(world, each)]
                world.events["swept"] += await discard(context, STREAM, chosen)
                await sweep(context, STREAM, older_than_s=30.0)
            except QuireError as error:
                world.note("sweeper", error)


def _has_ledger(world: SinkWorld, name: str) -> bool:
    """A sweep comes long after a ledger was begun. Then it is there, or its writer is dead."""
    node = world.tree.find(f"{world.paths.staged}/{name}")
    return node is not None and world.tree.find(world.cluster.ledgers.path(decode_staged(node.data).ledger)) is not None
