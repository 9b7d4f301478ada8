"""A change that is stopped on its way, while others delete the stream and make it again: the new one is left alone.

The new stream has segments, cold files, sinks and subscribers of the same names. As on ZooKeeper, nodes that are made
again have their first versions again.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster
from tests.support.streams.reading import take
from tests.unit.stream.test_ownership import make_again
from tests.unit.stream.test_writer import play

from quire.codec.cold import ColdSegment
from quire.codec.stream_metadata.sinks import SinkBatch, SinkState, encode_sink
from quire.errors import NodeExists, NoSuchStream, QuireError
from quire.metadata import ANY_VERSION, Set, Version, Written
from quire.metadata.driver import Op
from quire.metadata.drivers.memory import MemoryTree
from quire.stream.archiving import archive_segment, archive_stream, publish_archived
from quire.stream.cold_moves import drop_hot, restore_segments
from quire.stream.cold_nodes import ColdNodes
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.reader import open_stream_reader
from quire.stream.staging_inline import open_inline_sink
from quire.stream.start import Txid
from quire.stream.upkeep import purge_stream, truncate_stream
from quire.types import DLSN, EntryId, Lssn, SlotId

ROOT = "memory:archive"
SEGMENTS = 3


@pytest.fixture(autouse=True)
def versions_begin_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = MemoryTree._apply

    def apply_as_zookeeper(self: MemoryTree, op: Op, *args: int) -> Written | None:
        written = apply(self, op, *args)  # type: ignore[arg-type]
        if written is None:
            return None
        entry = self._entries[written.path]
        entry.version = Version(entry.writes - 1)
        return Written(written.path, entry.version, entry.writes)

    monkeypatch.setattr(MemoryTree, "_apply", apply_as_zookeeper)


# --- What a stream is like, and what is done to it

Act = Callable[[StreamContext, str], Awaitable[object]]


async def write(context: StreamContext, stream: str) -> None:
    """Each record into a segment of its own; and a sink that has not looked at any of them."""
    for number in range(SEGMENTS):
        async with open_stream_writer(context, stream, SETTINGS) as writer:
            await writer.append(b"%d" % number)
    paths, state = context.paths(stream), SinkState(since=DLSN(Lssn(1), EntryId(0), SlotId(0)), token=stream)
    with suppress(NodeExists):
        await context.store.create(paths.sinks)
    await context.store.create(f"{paths.sinks}/sink", encode_sink(state))


async def archive(context: StreamContext, stream: str) -> None:
    await write(context, stream)
    await archive_stream(context, stream, ROOT)


async def archive_and_drop(context: StreamContext, stream: str) -> None:
    await archive(context, stream)
    await drop_hot(context, stream)


async def archive_and_purge_as_apache(context: StreamContext, stream: str) -> None:
    """What is recorded of files stays behind."""
    await archive(context, stream)
    nodes = StreamNodes(context.store, context.paths(stream))
    for stored in (await nodes.all_segments())[:-1]:
        await nodes.remove(stored)
        await context.ledgers.delete(stored.segment.ledger_id)


async def truncate(context: StreamContext, stream: str) -> None:
    await truncate_stream(context, context.paths(stream), SETTINGS, DLSN(Lssn(3), EntryId(0), SlotId(0)))


async def purge(context: StreamContext, stream: str) -> None:
    await purge_stream(context, context.paths(stream), Txid(2**62), SETTINGS)


async def publish(context: StreamContext, stream: str) -> None:
    """Of what others have archived before."""
    for cold in _ARCHIVED[stream]:
        await publish_archived(context, stream, cold)


async def write_and_copy(context: StreamContext, stream: str) -> None:
    await write(context, stream)
    chain = await StreamNodes(context.store, context.paths(stream)).all_segments()
    _ARCHIVED[stream] = [await archive_segment(context, stream, stored.segment, ROOT) for stored in chain]


_ARCHIVED: dict[str, list[ColdSegment]] = {}  # By stream.
ACTS: dict[str, tuple[Act, Act, Act]] = {  # What the old stream is like, what the new one, and what is done.
    "truncate": (write, write, truncate),
    "truncate what is cold": (archive_and_drop, archive_and_drop, truncate),
    "purge": (write, write, purge),
    "purge what is cold": (archive_and_drop, archive_and_drop, purge),
    "sweep": (archive_and_purge_as_apache, archive_and_drop, purge),
    "publish": (write_and_copy, write, publish),
    "drop": (archive, archive, drop_hot),
    "restore": (archive_and_drop, archive_and_drop, restore_segments),
}


@dataclass
class Stop:
    """One run of an operation, with the stream made again before a certain one of its calls of the metadata store."""

    context: StreamContext
    stream: str
    number: int
    make: Act
    calls: int = 0
    has_read: bool = False
    """Whether it had read something of the old stream, and so has nothing to change in the new one."""
    before: dict[str, bytes] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, real: Callable[..., Awaitable[object]], *args: object, **options: object) -> object:
        async with self.turn:
            if self.calls == self.number:
                await make_again(self.context, self.stream)
                await self.make(self.context, self.stream)
                self.before = await tree(self.context, self.stream)
            self.calls += 1
        paths = self.context.paths(self.stream)
        folders = (paths.segments, paths.cold, paths.sinks)
        self.has_read |= not self.before and isinstance(args[0], str) and args[0].startswith(folders)
        return await real(*args, **options)


async def tree(context: StreamContext, stream: str) -> dict[str, bytes]:
    """All nodes of a stream but for its locks."""
    found: dict[str, bytes] = {}
    waiting = [context.paths(stream).root]
    while waiting:
        path = waiting.pop()
        found[path] = (await context.store.get(path)).data
        waiting += [f"{path}/{name}" for name in (await context.store.children(path)).names if "ock" not in path]
    return found


async def harms_of(context: StreamContext, stop: Stop) -> list[str]:
    after, ledgers = await tree(context, stop.stream), {each async for each in context.ledgers.scan()}
    harms = [f"{path} was changed" for path in stop.before | after if stop.before.get(path) != after.get(path)]
    if not stop.has_read:
        harms.clear()  # It came late, and did to the new stream what it was asked for.
    for placed in await ColdNodes(context.store, context.paths(stop.stream)).whole_chain():
        segment, cold = placed.stored.segment, placed.cold
        if placed.hot is not None and segment.ledger_id not in ledgers:
            harms.append(f"the ledger of segment {segment.lssn} is gone")
        if cold is not None and cold.cold.file.name not in context.cold._memory[ROOT]:
            harms.append(f"the file of segment {segment.lssn} is gone")
    return [f"stopped before call {stop.number}: {harm}" for harm in harms]


@pytest.mark.parametrize("name", ACTS)
def test_an_operation_that_is_stopped_anywhere_leaves_a_stream_that_was_made_again_alone(name: str) -> None:
    old, new, work = ACTS[name]

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        harms: list[str] = []
        refused = number = 0
        while True:
            stop = Stop(context, f"s{number}", number, new)
            await old(context, stop.stream)
            async with cluster.context("stopped") as mine:
                with pytest.MonkeyPatch.context() as patch:
                    for call in ("get", "exists", "children", "transaction", "set", "create", "delete"):
                        patch.setattr(mine.store, call, functools.partial(stop.call, getattr(mine.store, call)))
                    try:
                        await work(mine, stop.stream)
                    except NoSuchStream:
                        refused += 1
                    except QuireError as error:
                        harms.append(f"stopped before call {number}: {error!r}")
            if not stop.before:
                break
            harms += await harms_of(context, stop)
            number += 1
        assert harms == []
        assert refused > 5

    play(act)


# --- Handles that stay open


def test_an_open_sink_tells_nothing_of_a_stream_that_was_made_again() -> None:
    """Method: the sink of the old stream notes how far it came when it is closed; the new one's node has just as many
    writes by then."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        batch, node = SinkBatch("sink", 0, "query"), f"{context.paths('s').sinks}/sink"
        async with cluster.context("other") as other, AsyncExitStack() as late:
            sink = await late.enter_async_context(open_inline_sink(context, "s", SETTINGS))
            assert (await sink.commit(batch, [b"old"], None)).is_new
            writes = (await context.store.get(node)).stat.writes
            lock = other.paths("s").lock
            for name in (await other.store.children(lock)).names:  # As the end of its session does.
                await other.store.delete(f"{lock}/{name}", expected=ANY_VERSION)
            await make_again(other)
            data = encode_sink(SinkState(token="new"))
            await other.store.create(other.paths("s").sinks)
            await other.store.create(node, data)
            for _ in range(writes - 1):
                await other.store.transaction(Set(node, data, ANY_VERSION))
            await late.aclose()
            assert (await other.store.get(node)).data == data
            async with open_inline_sink(other, "s", SETTINGS) as fresh:
                assert (await fresh.commit(batch, [b"new"], None)).is_new

    play(act)


def test_a_reader_that_has_come_to_the_end_of_a_segment_does_not_go_on_in_a_stream_that_was_made_again() -> None:
    """Method: it has read all that the old stream's first segment has, and it knows that there is a second one."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        await write(context, "s")
        async with cluster.context("other") as other, AsyncExitStack() as opened:
            reader = await opened.enter_async_context(open_stream_reader(context, "s", SETTINGS))
            source = reader._source
            entered = source._enter  # type: ignore[attr-defined]

            async def enter_late() -> object:
                if source._at.lssn == 2 and not is_remade:  # type: ignore[attr-defined]
                    is_remade.append(True)
                    await make_again(other)
                    await write(other, "s")
                return await entered()

            is_remade: list[bool] = []
            source._enter = enter_late  # type: ignore[attr-defined]
            assert [record.dlsn.lssn for record in await take(reader, 1)] == [1]
            with pytest.raises(NoSuchStream, match="'s' is gone"):
                await take(reader, 1)
            assert is_remade

    play(act)
