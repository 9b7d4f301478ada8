"""The async door with a real bookie behind it: a stream's whole life by name."""

from collections.abc import Iterator

import pytest

import quire
from quire.client import Client
from quire.errors import NoSuchStream, NotBound, StreamSealed
from tests.support.servers.one_bookie import SETTINGS, STORE, OneBookie, one_bookie

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBookie]:
    with one_bookie(tmp_path_factory.mktemp("cluster")) as found:
        yield found


async def segment(client: Client, stream: str, txids: range) -> None:
    async with client.open_writer(stream) as writer:
        await writer.append_many([b"%d" % txid for txid in txids], txids=txids)


async def test_a_stream_is_written_read_shortened_and_ended(cluster: OneBookie) -> None:
    async with quire.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as client:
        await client.create_stream("life")
        for begin in (0, 100, 200):
            await segment(client, "life", range(begin, begin + 100))
        async with client.open_reader("life", start=quire.txid(150), subscription="late") as reader:
            assert [record.txid for record in await reader.read_many(3)] == [150, 151, 152]
            committed = await reader.commit()
        left = await client.truncate_stream("life", before=quire.txid(120))
        assert left.lssn == 2
        assert await client.purge_stream("life") == 1
        assert await client.purge_stream("life", before=quire.txid(200)) == 1
        await client.seal_stream("life")
        info = await client.stream_info("life")
        assert [each.lssn for each in info.segments] == [3, 4]
        assert (info.record_count, info.first_txid, info.last_txid, info.is_sealed) == (100, 200, 299, True)
        assert info.subscriptions == await client.subscriptions("life") == {"late": committed}
        async with client.open_reader("life") as reader:
            assert [record.txid async for record in reader] == list(range(200, 300))
        with pytest.raises(StreamSealed):
            await segment(client, "life", range(300, 301))
        await client.delete_subscription("life", "late")
        await client.delete_stream("life")
        with pytest.raises(NoSuchStream):
            await client.stream_info("life")


async def test_a_namespace_is_made_if_that_is_wished(cluster: OneBookie) -> None:
    uri = f"{cluster.streams.removesuffix('/ns')}/another/one"
    with pytest.raises(NotBound):
        async with quire.connect(uri, store_settings=STORE):
            pass
    async with quire.connect(uri, create=True, settings=SETTINGS, store_settings=STORE) as client:
        await segment(client, "orders", range(3))
        assert await client.list_streams() == ["orders"]
