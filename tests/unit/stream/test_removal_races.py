"""A deletion that loses its lock half way: what a new owner wrote is not its business."""

import functools
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster
from tests.unit.stream.test_writer import play

from quire.errors import MetadataOutcomeUnknown, NoSuchNode, NoSuchStream, QuireError, SessionExpired
from quire.metadata import ANY_VERSION, Delete, Written
from quire.metadata.driver import Op
from quire.stream.context import StreamContext
from quire.stream.ownership import open_stream_writer
from quire.stream.removal import delete_stream
from quire.stream.subscriptions import Subscriptions
from quire.stream.writer import StreamWriter
from quire.types import DLSN, EntryId, Lssn, SlotId

UNLOCKED = replace(SETTINGS, write_lock=False)


def test_records_of_a_new_owner_survive_a_deletion_that_lost_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the session ends with the first write of the deletion, and another client takes the stream over."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        lock = context.paths("s").lock
        async with open_stream_writer(context, "s", SETTINGS) as writer:
            await writer.append(b"old")
        async with cluster.context("deleter") as mine:
            real, has_ended = mine.store.transaction, False

            async def transaction(*ops: Op) -> list[Written | None]:
                nonlocal has_ended
                if has_ended or not any(isinstance(op, Delete) for op in ops):
                    return await real(*ops)
                has_ended = True
                for name in (await context.store.children(lock)).names:
                    await context.store.delete(f"{lock}/{name}", expected=ANY_VERSION)
                async with open_stream_writer(context, "s", SETTINGS) as writer:
                    await writer.append(b"new")
                raise SessionExpired("the session has ended")

            monkeypatch.setattr(mine.store, "transaction", transaction)
            with pytest.raises(MetadataOutcomeUnknown, match="deleted in part"):
                await delete_stream(mine, "s", lock_timeout_s=5)
        last = (await cluster.nodes(context, "s").all_segments())[-1].segment
        async with context.ledgers.open(last.ledger_id) as ledger:
            assert b"new" in b"".join([payload async for _, payload in ledger.read()])

    play(act)


def test_a_deletion_that_is_stopped_anywhere_leaves_a_stream_that_was_made_again_alone() -> None:
    """Method: before each of its calls of the metadata store in turn the session ends, and others delete the stream,
    make it again and write to it. There is one stream for each call."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        harms: list[str] = []
        async with AsyncExitStack() as left:
            stops = 0
            while await is_stopped(cluster, context, left, f"s{stops}", stops, harms):
                stops += 1
        assert stops > 20
        assert harms == []

    play(act)


async def is_stopped(
    cluster: StreamCluster, context: StreamContext, left: AsyncExitStack, stream: str, stop: int, harms: list[str]
) -> bool:
    """False if the deletion makes fewer calls. `harms` gets what it does to the stream that was made again."""
    paths, place, calls = context.paths(stream), DLSN(Lssn(1), EntryId(0), SlotId(0)), itertools.count()
    owners = list[StreamWriter]()
    old = await left.enter_async_context(open_stream_writer(context, stream, UNLOCKED))
    await old.append(b"old")
    await Subscriptions(context.store, paths).commit("reader", place)

    async def make_again() -> None:
        with suppress(NoSuchNode):
            for name in (await context.store.children(paths.lock)).names:
                await context.store.delete(f"{paths.lock}/{name}", expected=ANY_VERSION)
        with suppress(NoSuchStream):
            await delete_stream(context, stream, lock_timeout_s=5)
        owners.append(await left.enter_async_context(open_stream_writer(context, stream, SETTINGS)))
        await owners[0].append(b"one")
        await Subscriptions(context.store, paths).commit("reader", place)

    async def call(real: Callable[..., Awaitable[object]], *args: object) -> object:
        if next(calls) == stop:
            await make_again()
        return await real(*args)

    async with cluster.context("stopped") as mine:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("get", "exists", "children", "transaction"):
                patch.setattr(mine.store, name, functools.partial(call, getattr(mine.store, name)))
            with suppress(QuireError):
                await delete_stream(mine, stream, lock_timeout_s=1)
    if not owners:
        return False
    try:
        await owners[0].append(b"two")
    except QuireError as error:
        harms.append(f"stopped before call {stop}: {error}")
    if await Subscriptions(context.store, paths).read("reader") != place:
        harms.append(f"stopped before call {stop}: the position of a reader is gone")
    ledgers = {each async for each in context.ledgers.scan()}
    if not {each.segment.ledger_id for each in await cluster.nodes(context, stream).all_segments()} <= ledgers:
        harms.append(f"stopped before call {stop}: a ledger is gone")
    return True
