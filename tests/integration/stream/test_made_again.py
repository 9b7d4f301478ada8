"""A stream that is deleted and made again in a real metadata store: those who worked with the old one do nothing to the
new one. On ZooKeeper the nodes of both have the same versions. No bookies: nobody comes so far that one is asked.
"""

from collections.abc import AsyncIterator, Sequence

import pytest

from quire.errors import NoSuchStream, WriterFenced
from quire.metadata import MetadataStore
from quire.stream.binding import create_namespace
from quire.stream.cold_nodes import ColdNodes, Placed
from quire.stream.namespace import Namespace, open_namespace
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.integration.stream.namespaces import SETTINGS, STORE, Place, fill, ledgers_of, tree_below

STREAM, SEGMENTS = "orders", 3


@pytest.fixture
async def old(place: Place) -> AsyncIterator[Namespace]:
    """A client with a stream."""
    await create_namespace(place.uri(), ledgers_root=place.ledgers_root)
    async with open_namespace(place.uri(), settings=SETTINGS, store_settings=STORE) as namespace:
        await make(namespace)
        yield namespace


@pytest.fixture
async def new(place: Place, old: Namespace) -> AsyncIterator[Namespace]:
    """Another client, which will make the stream again."""
    async with open_namespace(place.uri(), settings=SETTINGS, store_settings=STORE) as namespace:
        yield namespace


async def make(namespace: Namespace) -> None:
    await namespace.create_stream(STREAM)
    await fill(namespace, STREAM, completed=SEGMENTS)


async def make_again(namespace: Namespace) -> None:
    await namespace.delete_stream(STREAM)
    await make(namespace)


async def versions(store: MetadataStore, *paths: str) -> list[int]:
    return [(await store.get(path)).stat.version for path in paths]


async def test_a_late_writer_is_fenced(place: Place, old: Namespace, new: Namespace) -> None:
    store, paths = new.context.store, new.context.paths(STREAM)
    guards = (paths.segments, paths.max_txid, paths.allocation)
    async with old.open_writer(STREAM, write_lock=False) as late:
        before = await versions(store, *guards)
        await make_again(new)
        async with new.open_writer(STREAM, write_lock=False):
            if place.backend == "zk":
                assert await versions(store, *guards) == before, "this is what it is about"
            tree = await tree_below(new, paths.root)
            with pytest.raises(WriterFenced):
                await late.append(b"late")
            assert await tree_below(new, paths.root) == tree


async def test_a_late_truncation_changes_nothing(
    place: Place, old: Namespace, new: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: it is stopped when it has read the old stream's segments."""
    store, paths = new.context.store, new.context.paths(STREAM)
    change, trees = ColdNodes.change, list[dict[str, bytes]]()

    async def change_late(self: ColdNodes, changes: Sequence[tuple[Placed, object]]) -> None:
        names = [paths.segment(placed.stored.name) for placed, _ in changes]
        before = await versions(store, *names)
        await make_again(new)
        if place.backend == "zk":
            assert await versions(store, *names) == before, "this is what it is about"
        trees.append(await tree_below(new, paths.root))
        await change(self, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(ColdNodes, "change", change_late)
    with pytest.raises(NoSuchStream, match="'orders' is gone"):
        await old.truncate_stream(STREAM, before=DLSN(Lssn(SEGMENTS), EntryId(0), SlotId(0)))
    assert trees == [await tree_below(new, paths.root)]
    segments = (await new.stream_info(STREAM)).segments
    assert {segment.ledger_id for segment in segments} == await ledgers_of(new)


async def test_a_late_reader_gets_nothing_and_its_positions_count_for_nothing(old: Namespace, new: Namespace) -> None:
    place = DLSN(Lssn(2), EntryId(0), SlotId(0))
    async with old.open_reader(STREAM, start="latest", subscription="us") as late:
        await late.commit(place)
        await make_again(new)
        assert await new.subscriptions(STREAM) == {}
        for may_go_back in (False, True):
            with pytest.raises(NoSuchStream, match="'orders' is gone"):
                await late.commit(place, may_go_back=may_go_back)
        with pytest.raises(NoSuchStream):
            await anext(late)
