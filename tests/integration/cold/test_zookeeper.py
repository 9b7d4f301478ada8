"""Cold segments in a real ZooKeeper, where a node that is deleted and created again has its first version again."""

from uuid import uuid4

import pytest

from quire.codec.cold import ColdFile, ColdSegment
from quire.codec.stream_metadata.segment import Completion, Segment, encode_segment, segment_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import VersionConflict
from quire.metadata import open_store
from quire.stream.cold_nodes import ColdNodes
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId
from tests.support.servers.zookeeper import ZooKeeperServer

RESTORED = LedgerId(77)


def segment(lssn: int) -> Segment:
    last = DLSN(Lssn(lssn), EntryId(0), SlotId(0))
    begun = Segment.begun(Lssn(lssn), LedgerId(lssn), 0)
    return begun.completed(Completion(0, 0, 1, last), start_sequence_id=0)


async def test_a_truncation_does_not_bring_back_the_ledger_of_a_segment_that_was_dropped_and_restored(
    zookeeper: ZooKeeperServer,
) -> None:
    async with open_store(f"zk://{zookeeper.address}/{uuid4().hex}") as store:
        paths = StreamPaths("/ns", "s")
        for lssn in (1, 2):
            path = paths.segment(segment_name(segment(lssn)))
            await store.create(path, encode_segment(segment(lssn)), parents=True)
        nodes = ColdNodes(store, paths)
        hot = [placed.stored for placed in await nodes.whole_chain()]
        file = ColdFile("memory:a", "ns/s/1.parquet", 100, "0" * 64, 10, "0" * 64, 1, 2)
        await nodes.publish(hot[0], ColdSegment(hot[0].segment, file, 0))
        (first, second) = await nodes.whole_chain()
        assert first.hot is not None
        assert first.cold is not None
        assert second.hot is not None
        dropped = await nodes.drop(first.hot, first.cold, before=None)
        await nodes.restore(dropped, RESTORED, after=second.hot)
        (now, _) = await nodes.whole_chain()
        assert now.hot is not None
        assert now.hot.version == first.hot.version, "this is what it is about"
        with pytest.raises(VersionConflict):
            await nodes.change([(first, first.stored.segment.truncated())])
        (now, _) = await nodes.whole_chain()
        assert now.stored.segment.ledger_id == RESTORED
        await nodes.change([(now, now.stored.segment.truncated())])
        (now, _) = await nodes.whole_chain()
        assert (now.stored.segment.is_truncated, now.stored.segment.ledger_id) == (True, RESTORED)
