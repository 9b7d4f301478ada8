"""The list of streams as calls."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.proxies.read_world import CALLER, World, on_proxy

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NoSuchStream, StreamExists, VersionConflict
from quire.proxy.catalog import Catalog, info_message
from quire.proxy.client.places import info_of
from quire.rpc.serving.results import dlsn_message


async def listed(catalog: Catalog, **fields: object) -> list[list[str]]:
    request = pb.ListStreamsRequest(**fields)  # type: ignore[arg-type]
    return [list(page.streams) async for page in catalog.list_streams(request, CALLER)]


def test_streams_are_created_listed_and_deleted() -> None:
    async def check(world: World) -> None:
        catalog = Catalog(world.behind)
        for name in ("b", "a", "a/x", "c"):
            await catalog.create_stream(pb.CreateStreamRequest(stream=name), CALLER)
        await catalog.create_stream(pb.CreateStreamRequest(stream="a"), CALLER)
        with pytest.raises(StreamExists):
            await catalog.create_stream(pb.CreateStreamRequest(stream="a", must_not_exist=True), CALLER)
        assert await listed(catalog) == [["a", "a/x", "b", "c", "s"]]
        assert await listed(catalog, page_size=2) == [["a", "a/x"], ["b", "c"], ["s"]]
        assert await listed(catalog, page_size=2, after="a/x") == [["b", "c"], ["s"]]
        assert await listed(catalog, prefix="a") == [["a", "a/x"]]
        await catalog.delete_stream(pb.StreamRequest(stream="b"), CALLER)
        await catalog.rename_stream(pb.RenameStreamRequest(stream="c", new_name="d"), CALLER)
        assert await listed(catalog) == [["a", "a/x", "d", "s"]]
        with pytest.raises(NoSuchStream):
            await catalog.delete_stream(pb.StreamRequest(stream="b"), CALLER)
        with pytest.raises(InvalidArgument):
            await catalog.create_stream(pb.CreateStreamRequest(namespace="other", stream="b"), CALLER)

    on_proxy(check, seeds=1)


def test_changes_of_the_list_are_told() -> None:
    async def check(world: World) -> None:
        catalog = Catalog(world.behind)
        told: list[list[str]] = []

        async def watch() -> None:
            async for page in catalog.list_streams(pb.ListStreamsRequest(watch=True, prefix="w"), CALLER):
                told.append(list(page.streams))  # noqa: PERF401 - it never ends

        task = asyncio.create_task(watch())
        await world.until(lambda: told == [[]])
        await catalog.create_stream(pb.CreateStreamRequest(stream="w1"), CALLER)
        await world.until(lambda: told[-1] == ["w1"])
        await catalog.delete_stream(pb.StreamRequest(stream="w1"), CALLER)
        await world.until(lambda: told[-1] == [])
        task.cancel()
        await asyncio.wait([task])

    on_proxy(check, seeds=1)


def test_what_is_known_of_a_stream_is_told() -> None:
    async def check(world: World) -> None:
        catalog = Catalog(world.behind)
        places = await world.write(5)
        await world.write(5, first=5)
        await world.writers.truncate_stream("s", before=places[2])
        answer = await catalog.get_stream(pb.StreamRequest(stream="s"), CALLER)
        assert answer.stream == "s"
        assert answer.first_dlsn == dlsn_message(places[2])
        assert [segment.lssn for segment in answer.segments] == [1, 2]
        assert answer.segments[0].truncation == pb.PARTIALLY_TRUNCATED
        assert answer.record_count == 10
        assert not answer.is_sealed
        purged = await catalog.purge_stream(pb.PurgeStreamRequest(stream="s"), CALLER)
        assert purged.segments == 0
        with pytest.raises(NoSuchStream):
            await catalog.get_stream(pb.StreamRequest(stream="missing"), CALLER)

    on_proxy(check, seeds=1)


def test_an_application_keeps_a_few_bytes_at_a_stream() -> None:
    async def check(world: World) -> None:
        catalog, request = Catalog(world.behind), pb.StreamRequest(stream="s")
        empty = await catalog.get_stream_metadata(request, CALLER)
        assert empty.data == b""
        await catalog.set_stream_metadata(
            pb.SetStreamMetadataRequest(stream="s", data=b"kept", expected=empty.version), CALLER
        )
        assert (await catalog.get_stream_metadata(request, CALLER)).data == b"kept"
        with pytest.raises(VersionConflict):
            await catalog.set_stream_metadata(
                pb.SetStreamMetadataRequest(stream="s", data=b"x", expected=empty.version), CALLER
            )
        await catalog.set_stream_metadata(pb.SetStreamMetadataRequest(stream="s", data=b"any"), CALLER)

    on_proxy(check, seeds=1)


def test_whoever_has_a_stream_lets_it_go_before_it_is_deleted_or_renamed() -> None:
    async def check(world: World) -> None:
        let_go: list[str] = []

        async def before_delete(stream: str) -> None:
            assert await world.writers.stream_exists(stream)
            let_go.append(stream)

        catalog = Catalog(world.behind, before_delete=before_delete)
        await catalog.rename_stream(pb.RenameStreamRequest(stream="s", new_name="t"), CALLER)
        await catalog.delete_stream(pb.StreamRequest(stream="t"), CALLER)
        assert let_go == ["s", "t"]

    on_proxy(check, seeds=1)


def test_each_creation_of_a_stream_has_an_incarnation_which_its_readers_are_told() -> None:
    async def check(world: World) -> None:
        catalog, request = Catalog(world.behind), pb.StreamRequest(stream="s")
        first = await catalog.get_stream(request, CALLER)
        await world.write(3)
        assert (await catalog.get_stream(request, CALLER)).incarnation == first.incarnation != ""
        reading = world.read()
        await world.until(lambda: bool(reading.events))
        assert reading.events[0].opened.incarnation == first.incarnation
        await catalog.delete_stream(request, CALLER)
        await catalog.create_stream(pb.CreateStreamRequest(stream="s"), CALLER)
        assert (await catalog.get_stream(request, CALLER)).incarnation != first.incarnation

    on_proxy(check, seeds=1)


def test_a_client_of_proxies_sees_a_stream_as_a_direct_one_does() -> None:
    """All that is known of each segment, its size, and where it is, goes through the messages and back."""

    async def check(world: World) -> None:
        async with world.writers.open_writer("s") as writer:
            await writer.append_many([b"1", b"2", b"3"])
        catalog = Catalog(world.behind)
        direct = await world.behind.stream_info("s", sizes=True)
        assert all(segment.size_bytes for segment in direct.segments)
        assert info_of(await catalog.get_stream(pb.StreamRequest(stream="s", with_sizes=True), CALLER)) == direct
        unsized = await world.behind.stream_info("s")
        assert all(segment.size_bytes is None for segment in unsized.segments)
        assert info_of(await catalog.get_stream(pb.StreamRequest(stream="s"), CALLER)) == unsized
        archived = replace(
            direct, segments=tuple(replace(each, is_hot=False, cold_file="root/file") for each in direct.segments)
        )
        assert info_of(info_message(archived, "1")) == archived

    on_proxy(check, seeds=1)
