"""Batches published on real metadata stores: one transaction of the store does all of it, or refuses all of it."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from quire.codec.stream_metadata.sinks import NODE_NAMES_MAX, SinkBatch, StagedNode, encode_staged
from quire.errors import StagedGone
from quire.stream.binding import create_namespace
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.nodes import StreamNodes
from quire.stream.staging import StagedSegment, staged_names, sweep
from quire.stream.staging_commit import _SEGMENTS_MAX, commit_staged
from quire.stream.staging_sinks import read_sink
from quire.types import BookieId, EntryId, Fragment, LedgerMetadata, Quorum
from tests.integration.stream.namespaces import SETTINGS, STORE, Place, ledgers_of

STREAM = "orders"
_METADATA = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),))


@pytest.fixture
async def namespace(place: Place) -> AsyncIterator[Namespace]:
    await create_namespace(place.uri(), ledgers_root=place.ledgers_root)
    async with open_namespace(place.uri(), settings=SETTINGS, store_settings=STORE) as namespace:
        await namespace.create_stream(STREAM)
        yield namespace


async def staged(namespace: Namespace, batch: SinkBatch, count: int) -> list[StagedSegment]:
    """Staged ledgers without bookies: what they would hold is of no interest to a commit."""
    context, found = namespace.context, list[StagedSegment]()
    paths = context.paths(STREAM)
    if await context.store.exists(paths.staged) is None:
        await context.store.create(paths.staged)
    for _ in range(count):
        ledger = await context.ledgers.ledgers_metadata.new_id()
        name = f"{batch.staged_prefix}{ledger}"
        await context.store.create(f"{paths.staged}/{name}", encode_staged(StagedNode(ledger, batch.sink, 0)))
        await context.ledgers.ledgers_metadata.create(_METADATA, with_id=ledger)
        found.append(StagedSegment(name, ledger, 10, 300, 1, 1, 0, 9, 0))
    return found


async def test_a_batch_is_published_once_and_its_staged_nodes_go(namespace: Namespace) -> None:
    context = namespace.context
    for number in range(3):
        batch = SinkBatch("a/sink with ünusual name", number, "query")
        parts = await staged(namespace, batch, 4)
        assert (await commit_staged(context, STREAM, batch, parts, SETTINGS)).is_new
        again = await staged(namespace, batch, 2)
        assert not (await commit_staged(context, STREAM, batch, again, SETTINGS)).is_new
    segments = [stored.segment for stored in await StreamNodes(context.store, context.paths(STREAM)).all_segments()]
    assert [(segment.lssn, segment.start_sequence_id) for segment in segments] == [
        (number + 1, 10 * number) for number in range(12)
    ]
    assert await staged_names(context.store, context.paths(STREAM)) == ()
    assert await ledgers_of(namespace) == {segment.ledger_id for segment in segments}
    await namespace.delete_stream(STREAM)
    assert await ledgers_of(namespace) == set()


async def test_so_many_segments_as_a_batch_is_merged_into_fit_into_a_transaction(namespace: Namespace) -> None:
    """etcd takes 128 comparisons; ZooKeeper and SQLite count bytes. The sink's node is as large as it ever gets."""
    context, batch = namespace.context, SinkBatch("sink", transaction="last", rows="x" * 11)
    await commit_staged(context, STREAM, SinkBatch("sink", transaction="last"), [], SETTINGS)
    stored = await read_sink(context.store, context.paths(STREAM), batch)
    names = tuple(f"{number:027d}" for number in range(NODE_NAMES_MAX - 1))
    await context.store.transaction(stored.write(replace(stored.state, transactions=names)))
    parts = await staged(namespace, batch, _SEGMENTS_MAX)
    assert (await commit_staged(context, STREAM, batch, parts, SETTINGS)).is_new
    assert len((await namespace.stream_info(STREAM)).segments) == _SEGMENTS_MAX


async def test_what_was_swept_is_not_published(namespace: Namespace) -> None:
    context, batch = namespace.context, SinkBatch("sink", 0, "query")
    parts = await staged(namespace, batch, 2)
    assert await sweep(context, STREAM, older_than_s=60) == 2
    with pytest.raises(StagedGone):
        await commit_staged(context, STREAM, batch, parts, SETTINGS)
    assert (await namespace.stream_info(STREAM)).segments == ()
    assert await ledgers_of(namespace) == set()
