"""The index of a stream's segments: one listing, nodes read when they are asked for, damage told."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.support.streams.cluster import URI

from quire.codec.cold import ColdFile, ColdSegment, encode_cold
from quire.codec.stream_metadata.segment import Completion, Segment, encode_segment, segment_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import DamagedMetadata, MetadataUnavailable, NoSuchStream
from quire.metadata import ANY_VERSION, Create, Delete, MetadataStore, Set, open_store
from quire.stream.cold_nodes import StoredCold, read_cold
from quire.stream.segment_index import SegmentIndex
from quire.testing import Simulation, sim_cluster, sim_tree, simulate
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

PATHS = StreamPaths("/ns", "s")


def segment(lssn: int, *, is_completed: bool = True, last_txid: int = 0) -> Segment:
    begun = Segment.begun(Lssn(lssn), LedgerId(lssn), 0)
    last = DLSN(Lssn(lssn), EntryId(0), SlotId(0))
    return begun.completed(Completion(last_txid, 0, 1, last), start_sequence_id=0) if is_completed else begun


class Tree:
    """A stream's nodes, and how often each call was made on them."""

    def __init__(self, sim: Simulation, store: MetadataStore, index: SegmentIndex) -> None:
        self.sim, self.store, self.index = sim, store, index
        self.calls: Counter[str] = Counter()
        for name in ("get", "children", "sync", "stat"):
            setattr(store._driver, name, self._counted(name, getattr(store._driver, name)))

    def _counted(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return await call(*args)

        return counted

    async def put(self, *segments: Segment) -> None:
        for each in segments:
            await self.store.create(PATHS.segment(segment_name(each)), encode_segment(each))


def on_tree(check: Callable[[Tree], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:

            async def run() -> None:
                async with open_store(URI, runtime=sim.host("reader").runtime) as store:
                    await store.create("/ns")
                    await store.transaction(*(Create(*node) for node in PATHS.initial_nodes()))
                    index = SegmentIndex(store, PATHS, sim.host("reader").clock, timeout_s=20.0)
                    await check(Tree(sim, store, index))

            assert sim_tree(cluster)
            await sim.host("reader").spawn(run())

    simulate(1, main)


def test_a_listing_tells_the_chain_and_nodes_are_read_when_they_are_asked_for() -> None:
    async def check(tree: Tree) -> None:
        index = tree.index
        await index.refresh()
        assert (index.first, index.last) == (None, None)
        await tree.put(*(segment(lssn) for lssn in range(3, 8)), segment(8, is_completed=False))
        await index.refresh()
        assert (index.first, index.last) == (3, 8)
        assert Lssn(5) in index
        assert Lssn(2) not in index
        assert tree.calls["get"] == 0
        for _ in range(2):
            assert await index.segment(Lssn(5)) == segment(5)
        assert tree.calls["get"] == 1
        for _ in range(2):
            assert await index.segment(Lssn(8)) == segment(8, is_completed=False)
        assert tree.calls["get"] == 3, "what is in progress may change at any moment"
        assert await index.segment(Lssn(9)) is None
        await index.refresh()
        await index.segment(Lssn(5))
        assert tree.calls["get"] == 4, "it may be truncated since"

    on_tree(check)


def test_a_segment_that_is_completed_after_the_listing_is_found_under_its_new_name() -> None:
    async def check(tree: Tree) -> None:
        running, done = segment(1, is_completed=False), segment(1)
        await tree.put(running)
        await tree.index.refresh()
        await tree.store.transaction(
            Create(PATHS.segment(segment_name(done)), encode_segment(done)),
            Delete(PATHS.segment(segment_name(running)), ANY_VERSION),
        )
        assert await tree.index.segment(Lssn(1)) == done
        await tree.store.delete(PATHS.segment(segment_name(done)), expected=ANY_VERSION)
        await tree.index.refresh()
        assert await tree.index.segment(Lssn(1)) is None

    on_tree(check)


def test_old_names_are_read_with_the_listing_and_only_once() -> None:
    async def check(tree: Tree) -> None:
        for lssn, name in ((1, "logrecs_000000000000000005_000000000000000009"), (2, "inprogress_a")):
            data = encode_segment(segment(lssn, is_completed=lssn == 1))
            await tree.store.create(PATHS.segment(name), data)
        await tree.put(segment(3))
        for _ in range(2):
            await tree.index.refresh()
            assert (tree.index.first, tree.index.last) == (1, 3)
        assert tree.calls["get"] == 2
        assert await tree.index.segment(Lssn(2)) == segment(2, is_completed=False)

    on_tree(check)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({"logrecs_000000000000000001": segment(1), "logrecs_000000000000000003": segment(3)}, "no chain"),
        ({"logrecs_000000000000000001": segment(1), "inprogress_000000000000000001": segment(1)}, "no chain"),
        ({"logrecs_000000000000000001": segment(2)}, "segment 2"),
        ({"logrecs_000000000000000001": b"nonsense"}, "logrecs_000000000000000001"),
        ({"a stranger": b"nonsense"}, "a stranger"),
        ({"inprogress_1": b"1;12345;1001"}, "no LSSN"),
    ],
)
def test_damage_is_told(nodes: dict[str, Segment | bytes], reason: str) -> None:
    async def check(tree: Tree) -> None:
        for name, node in nodes.items():
            data = node if isinstance(node, bytes) else encode_segment(node)
            await tree.store.create(PATHS.segment(name), data)

        async def look() -> None:
            await tree.index.refresh()
            await tree.index.segment(Lssn(1))

        with pytest.raises(DamagedMetadata, match=reason):
            await look()

    on_tree(check)


def test_the_cache_of_segments_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.stream.segment_index._CACHED_MAX", 3)

    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(1, 11)))
        await tree.index.refresh()
        for lssn in range(1, 11):
            assert await tree.index.segment(Lssn(lssn)) == segment(lssn)
        assert len(tree.index._completed) == 3

    on_tree(check)


def test_whoever_waits_is_woken_by_segments_by_the_seal_and_by_the_end_of_the_stream() -> None:
    async def check(tree: Tree) -> None:
        index, host = tree.index, tree.sim.host("reader")
        await index.refresh()

        async def later(*changes: Segment) -> None:
            await host.clock.sleep(5.0)
            await tree.put(*changes)

        adding = host.spawn(later(segment(1), segment(2, is_completed=False)))
        assert await index.wait(Lssn(2), look_again_s=None)
        await adding
        assert await index.wait(Lssn(1), look_again_s=None)
        sealing = host.spawn(later(segment(3, last_txid=2**63 - 1)))
        assert not await index.wait(Lssn(4), look_again_s=None)
        assert await index.is_sealed()
        await sealing

        async def delete() -> None:
            await host.clock.sleep(5.0)
            for name in sorted((await tree.store.children(PATHS.segments)).names, key=lambda name: name[-18:]):
                await tree.store.delete(PATHS.segment(name), expected=ANY_VERSION)
            await tree.store.delete_tree(PATHS.top)

        deleting = host.spawn(delete())
        await tree.put(segment(4, is_completed=False))
        with pytest.raises(NoSuchStream):
            await index.wait(Lssn(9), look_again_s=None)
        await deleting
        with pytest.raises(NoSuchStream):
            await index.refresh()
        with pytest.raises(NoSuchStream):
            await index.highest()

    on_tree(check)


def test_a_stream_that_was_deleted_and_made_again_is_another_one() -> None:
    """Also if only one of the two has an identity: Apache's client created the other."""

    async def check(tree: Tree) -> None:
        async def make(identity: str | None) -> None:
            await tree.store.delete_tree(PATHS.top)
            await tree.store.create(PATHS.segments, b"0", parents=True)
            await tree.put(segment(1), segment(2))
            if identity is not None:
                await tree.store.create(PATHS.identity(identity))

        for old, new in (("first", "second"), ("first", None), (None, "second")):
            await make(old)
            index = SegmentIndex(tree.store, PATHS, tree.sim.host("reader").clock, timeout_s=20.0)
            await index.refresh()
            assert index.same.identity == old
            await make(new)
            for _ in range(2):
                with pytest.raises(NoSuchStream, match="'s' is gone"):
                    await index.refresh()

    on_tree(check)


def test_a_store_out_of_reach_is_tried_for_a_while() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(segment(1))
        memory: Any = tree.store._driver
        sim_tree_of: Any = memory._tree
        sim_tree_of.stall("reader", 15.0)
        await tree.index.refresh()
        assert tree.index.last == 1
        sim_tree_of.stall("reader", 100.0)
        with pytest.raises(MetadataUnavailable):
            await tree.index.refresh()

    on_tree(check)


# --- Cold segments


def cold(lssn: int, *, is_hot: bool = False) -> ColdSegment:
    file = ColdFile("memory:a", f"ns/s/{lssn}.parquet", 100, "0" * 64, 10, "0" * 64, 1, 2)
    return ColdSegment(segment(lssn), file, 0, is_hot)


async def put_cold(tree: Tree, *archived: ColdSegment) -> None:
    for each in archived:
        await tree.store.create(PATHS.cold_segment(segment_name(each.segment)), encode_cold(each), parents=True)


def test_a_stream_that_has_all_its_segments_is_listed_with_one_request() -> None:
    """And two for its identity, before and behind that."""

    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(1, 4)))
        await tree.index.refresh()
        assert tree.calls == {"sync": 1, "children": 3}

    on_tree(check)


def test_a_stream_without_its_first_segments_is_listed_with_one_request_more() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(3, 6)))
        await tree.index.refresh()
        assert tree.calls == {"sync": 1, "children": 4}
        assert tree.index.first == 3

    on_tree(check)


def test_cold_segments_come_before_the_others() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(3, 6)))
        await put_cold(tree, cold(1), cold(2), cold(3, is_hot=True))
        await tree.index.refresh()
        assert (tree.index.first, tree.index.last) == (1, 5)
        assert [await tree.index.located(Lssn(lssn)) for lssn in (1, 2, 3)] == [cold(1), cold(2), segment(3)]
        assert await tree.index.segment(Lssn(2)) == segment(2)
        assert tree.calls["get"] == 5, "the newest cold one and the first hot one once for the listing"

    on_tree(check)


def test_a_segment_that_moves_after_the_listing_is_found_where_it_is() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(1, 4)))
        await put_cold(tree, cold(1, is_hot=True))
        await tree.index.refresh()
        hot, archived = PATHS.segment(segment_name(segment(1))), PATHS.cold_segment(segment_name(segment(1)))
        await tree.store.transaction(Delete(hot, ANY_VERSION), Set(archived, encode_cold(cold(1)), ANY_VERSION))
        assert await tree.index.located(Lssn(1)) == cold(1)
        tree.index.forget()
        await tree.store.transaction(
            Create(hot, encode_segment(segment(1))), Set(archived, encode_cold(cold(1, is_hot=True)), ANY_VERSION)
        )
        assert await tree.index.located(Lssn(1)) == segment(1)

    on_tree(check)


def test_cold_segments_are_gone_if_one_behind_them_was_purged() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(4, 6)))
        await put_cold(tree, cold(1), cold(2), cold(3, is_hot=True))
        await tree.index.refresh()
        assert tree.index.first == 4
        assert await tree.index.located(Lssn(2)) is None

    on_tree(check)


def test_what_is_left_of_purged_segments_before_cold_ones_is_gone_once_it_is_read() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(5, 7)))
        await put_cold(tree, cold(1), cold(2, is_hot=True), cold(3), cold(4))
        await tree.index.refresh()
        assert tree.calls["get"] == 2, "only the newest, and the first hot one, are looked at for the listing"
        assert await tree.index.located(Lssn(2)) is None
        assert tree.index.first == 3
        assert await tree.index.located(Lssn(1)) is None
        await tree.index.refresh()
        assert tree.index.first == 3

    on_tree(check)


@pytest.mark.parametrize("is_hot", [True, False], ids=["purged", "missing"])
def test_a_gap_in_what_is_cold_is_damage_unless_what_is_before_it_was_purged(is_hot: bool) -> None:
    async def check(tree: Tree) -> None:
        await tree.put(segment(5))
        await put_cold(tree, cold(1), cold(2, is_hot=is_hot), cold(4))
        if is_hot:
            await tree.index.refresh()
            assert tree.index.first == 4
        else:
            with pytest.raises(DamagedMetadata, match="no chain"):
                await tree.index.refresh()

    on_tree(check)


def test_a_segment_that_is_restored_and_dropped_during_a_listing_is_not_taken_for_purged() -> None:
    async def check(tree: Tree) -> None:
        await tree.put(*(segment(lssn) for lssn in range(3, 5)))
        await put_cold(tree, cold(1), cold(2))
        hot, archived = PATHS.segment(segment_name(segment(2))), PATHS.cold_segment(segment_name(segment(2)))
        looks: list[str] = []

        async def move_meanwhile(store: MetadataStore, paths: StreamPaths, name: str) -> StoredCold:
            looks.append(name)
            if len(looks) > 1:
                return await read_cold(store, paths, name)
            await store.transaction(
                Create(hot, encode_segment(segment(2))), Set(archived, encode_cold(cold(2, is_hot=True)), ANY_VERSION)
            )
            found = await read_cold(store, paths, name)
            await store.transaction(Delete(hot, ANY_VERSION), Set(archived, encode_cold(cold(2)), ANY_VERSION))
            return found

        with patch("quire.stream.segment_index.read_cold", move_meanwhile):
            await tree.index.refresh()
        assert tree.index.first == 1

    on_tree(check)
