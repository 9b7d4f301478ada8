"""Namespaces: which streams there are, how they come and go, and what is told when the store does not answer."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import pytest
from tests.support.streams.namespace_world import CLIENT, ROOT, SETTINGS, STORE, URI, World, in_namespace

from quire.codec.stream_metadata.binding import encode_binding
from quire.errors import (
    InvalidArgument,
    InvalidName,
    InvalidUri,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchStream,
    NotBound,
    NotInitialised,
    Outcome,
    QuireError,
    StreamOwned,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, StoreSettings
from quire.metadata.driver import Op, SessionId
from quire.runtime import replace_file
from quire.stream.binding import binding_for
from quire.stream.dynamic_settings import ADOPTED
from quire.stream.namespace import Namespace
from quire.stream.uri import parse_stream_uri

NEW_STREAM = {
    "": b"",
    "/<default>": b"",
    "/<default>/maxtxid": b"0",
    "/<default>/version": b"\xff\xff\xff\xff",
    "/<default>/lock": b"",
    "/<default>/readLock": b"",
    "/<default>/ledgers": b"0",
    "/<default>/allocation": b"",
}


def stream_nodes(name: str) -> dict[str, bytes]:
    return {f"/{name}{path}": data for path, data in NEW_STREAM.items()}


# --- Opening


def test_opening_says_what_is_missing() -> None:
    async def check(world: World) -> None:
        with pytest.raises(InvalidUri):
            await world.open("x", "memory:simulated")
        with pytest.raises(NotBound):
            await world.open("x", "distributedlog+memory:simulated/elsewhere")
        no_ledgers = binding_for(parse_stream_uri(URI), "/nowhere")
        await world.store.create("/other", encode_binding(no_ledgers))
        with pytest.raises(NotInitialised, match="/nowhere"):
            await world.open("x", "distributedlog+memory:simulated/other")

    in_namespace(check)


def test_namespaces_of_one_cluster_are_strangers() -> None:
    async def check(world: World) -> None:
        await world.store.create("/second")
        second = await world.open("b", "distributedlog+memory:simulated/second", create=True)
        await world.namespace.create_stream("orders")
        assert await second.list_streams() == []
        await second.create_stream("orders")
        await second.delete_stream("orders")
        assert await world.namespace.list_streams() == ["orders"]

    in_namespace(check)


def test_many_namespaces_share_the_binding_above_them() -> None:
    async def check(world: World) -> None:
        await world.store.set("/messaging", encode_binding(binding_for(parse_stream_uri(URI))), expected=ANY_VERSION)
        team = await world.open("b", "distributedlog+memory:simulated/messaging/team-a")
        with pytest.raises(NotBound, match="/messaging/team-a"):
            await team.create_stream("orders")
        team = await world.open("c", "distributedlog+memory:simulated/messaging/team-a", create=True)
        await team.create_stream("orders")
        assert await team.list_streams() == ["orders"]
        assert team.context.binding.first_lssn == 1

    in_namespace(check)


# --- Creating


def test_a_new_stream_has_the_nodes_of_the_specification_in_its_order() -> None:
    """Section 2.1, and step 1 of vector M."""

    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        assert await world.nodes() == stream_nodes("orders")
        versions = {path: (await world.store.get(f"{ROOT}/orders{path}")).stat for path in NEW_STREAM}
        assert sorted(versions, key=lambda path: versions[path].version) == list(NEW_STREAM)
        assert {stat.writes for stat in versions.values()} == {1}

    in_namespace(check)


def test_creating_again_changes_nothing() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        await world.fill("orders", completed=1)
        before = await world.nodes()
        await world.namespace.create_stream("/orders")
        assert await world.nodes() == before

    in_namespace(check)


def test_a_stream_that_lacks_nodes_is_completed() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("orders")
        for name in ("allocation", "readLock"):
            await world.store.delete(f"{ROOT}/orders/<default>/{name}", expected=ANY_VERSION)
        await world.namespace.create_stream("orders")
        assert await world.nodes() == stream_nodes("orders")

    in_namespace(check)


def test_a_nested_name_gets_empty_nodes_on_its_way() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("a/b/c")
        assert await world.nodes() == {"/a": b"", "/a/b": b"", **stream_nodes("a/b/c")}
        await world.namespace.create_stream("a")
        assert await world.nodes() == {**stream_nodes("a"), "/a/b": b"", **stream_nodes("a/b/c")}

    in_namespace(check)


def test_many_may_create_the_same_stream_at_once() -> None:
    async def check(world: World) -> None:
        namespaces = [world.namespace, *[await world.open(f"h{number}") for number in range(3)]]
        await asyncio.gather(*(each.create_stream("a/b") for each in namespaces))
        await asyncio.gather(*(each.create_stream(f"a/c{number}") for number, each in enumerate(namespaces)))
        assert await world.namespace.list_streams() == ["a/b", "a/c0", "a/c1", "a/c2", "a/c3"]

    in_namespace(check, seeds=10)


@pytest.mark.parametrize("name", ["", "/", ".pool", "<default>", "a b", "a//b", "a/", "a/..", "a\x00", "\U0001f600"])
def test_names_that_apache_refuses_are_refused(name: str) -> None:
    async def check(world: World) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: world.namespace.create_stream(name),
            lambda: world.namespace.stream_exists(name),
            lambda: world.namespace.delete_stream(name),
            lambda: world.namespace.rename_stream(name, "b"),
            lambda: world.namespace.rename_stream("a", name),
        ]
        for call in calls:
            with pytest.raises(InvalidName):
                await call()
        with pytest.raises(InvalidName):
            world.namespace.open_writer(name)
        assert await world.nodes() == {}

    in_namespace(check, seeds=1)


@pytest.mark.parametrize(
    "name",
    ["x" * 5000, "a/" * 300 + "b", "ö" * 257, "a\u202eb", "a\u2066b", "a\u200bb", "a\u00a0b"],
    ids=lambda name: f"{name[:6]!a}",
)
def test_what_apache_calls_a_stream_and_we_do_not_can_be_used_but_not_created(name: str) -> None:
    """Goal: nobody has us create a name that fills a screen or hides characters; those that Java made stay readable.

    Method: creating it fails in every way. Then its nodes are put where Java puts them, and it is written, read,
    listed, renamed and deleted.
    """

    async def check(world: World) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: world.namespace.create_stream(name),
            lambda: write(world, name, b"a"),
            lambda: world.namespace.rename_stream("plain", name),
        ]
        for call in calls:
            with pytest.raises(InvalidName, match="cannot name a new stream"):
                await call()
        assert await world.nodes() == {}
        for path, data in [*((path, b"") for path in parents(name)), *stream_nodes(name).items()]:
            await world.store.create(f"{ROOT}{path}", data)
        await world.namespace.create_stream(name)
        await write(world, name, b"a")
        assert name in await world.namespace.list_streams()
        async with world.namespace.open_reader(name) as reader:
            assert [record.payload for record in await reader.read_many(10, timeout_s=5)] == [b"a"]
        await world.namespace.rename_stream(name, "plain")
        await world.namespace.delete_stream("plain")

    in_namespace(check, bookies=3, seeds=1)


def parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/" + "/".join(parts[:end]) for end in range(1, len(parts))]


async def write(world: World, name: str, payload: bytes) -> None:
    async with world.namespace.open_writer(name) as writer:
        await writer.append(payload)


# --- Listing and watching


def test_all_streams_are_listed_depth_first_and_nothing_else() -> None:
    async def check(world: World) -> None:
        names = ["a", "a/b", "a/b/c", "a/.x", "a-1", "b/deep/er", "c", "ab"]
        for name in names:
            await world.namespace.create_stream(name)
        await world.store.create(f"{ROOT}/.allocation_pool/pool/A0000000001", parents=True)
        await world.store.create(f"{ROOT}/empty/folder", parents=True)
        await world.store.create(f"{ROOT}/half/<default>/lock", parents=True)
        await world.store.create(f"{ROOT}/no name/<default>/ledgers", parents=True)
        assert await world.namespace.list_streams() == ["a", "a/.x", "a/b", "a/b/c", "a-1", "ab", "b/deep/er", "c"]
        assert await world.namespace.list_streams("a") == ["a", "a/.x", "a/b", "a/b/c", "a-1", "ab"]
        assert await world.namespace.list_streams("a/") == ["a/.x", "a/b", "a/b/c"]
        assert await world.namespace.list_streams("/a/b") == ["a/b", "a/b/c"]
        assert await world.namespace.list_streams("b/deep") == ["b/deep/er"]
        assert await world.namespace.list_streams("nothing/here") == []
        for name in names:
            assert await world.namespace.stream_exists(name)
        for name in ("empty", "empty/folder", "half", "b", "b/deep", "d"):
            assert not await world.namespace.stream_exists(name)

    in_namespace(check)


def test_a_large_namespace_is_listed_in_order() -> None:
    async def check(world: World) -> None:
        names = [f"s{number:03d}{nested}" for number in range(150) for nested in ("", "/x")]
        await asyncio.gather(*(world.namespace.create_stream(name) for name in names))
        assert await world.namespace.list_streams() == names
        seen = []
        async for name in world.namespace.scan_streams():
            seen.append(name)
            if len(seen) == 5:
                break
        assert seen == names[:5]

    in_namespace(check, seeds=1)


def test_a_watch_tells_the_names_now_and_whenever_they_change() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("a")
        other = await world.open("b")
        told = world.namespace.watch_streams()
        assert await anext(told) == {"a"}
        await other.create_stream("b/nested")
        assert await anext(told) == {"a", "b"}
        waiting = asyncio.ensure_future(anext(told))
        await other.create_stream("b")
        await world.store.create(f"{ROOT}/.own")
        await world.pass_time(10)
        assert not waiting.done(), "the same names as before"
        world.tree.stall(CLIENT, 6)  # Beyond the session's end.
        await other.delete_stream("a")
        assert await waiting == {"b"}

    in_namespace(check)


# --- What an application keeps at a stream


def test_bytes_kept_at_a_stream_are_guarded_by_their_version() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("a")
        assert (await world.namespace.stream_metadata("a"))[0] == b""
        await world.namespace.set_stream_metadata("a", b"mine")
        data, version = await world.namespace.stream_metadata("a")
        assert data == (await world.store.get(f"{ROOT}/a")).data == b"mine"
        await world.namespace.set_stream_metadata("a", b"ours", expected=version)
        with pytest.raises(VersionConflict):
            await world.namespace.set_stream_metadata("a", b"late", expected=version)
        assert (await world.namespace.stream_metadata("a"))[0] == b"ours"
        await world.namespace.create_stream("b/c")
        for name in ("b", "missing"):
            with pytest.raises(NoSuchStream):
                await world.namespace.stream_metadata(name)
            with pytest.raises(NoSuchStream):
                await world.namespace.set_stream_metadata(name, b"x")
        assert (await world.store.get(f"{ROOT}/b")).data == b""

    in_namespace(check)


def test_bytes_that_were_not_confirmed_are_read_back() -> None:
    async def check(world: World) -> None:
        await world.namespace.create_stream("a")
        _, version = await world.namespace.stream_metadata("a")
        world.tree.lose_answers(CLIENT, 1)
        await world.namespace.set_stream_metadata("a", b"mine", expected=version)
        assert (await world.store.get(f"{ROOT}/a")).stat.writes == 2

    in_namespace(check)


# --- When the store does not answer


def test_a_creation_that_was_not_confirmed_is_found_out() -> None:
    async def check(world: World) -> None:
        world.tree.lose_answers(CLIENT, 1)
        await world.namespace.create_stream("a")
        assert await world.nodes() == stream_nodes("a")

    in_namespace(check)


def test_a_creation_that_cannot_be_found_out_may_have_happened() -> None:
    async def check(world: World) -> None:
        commit = world.tree.commit

        def commit_and_go(ops: Sequence[Op], session: SessionId, now_ms: int) -> NoReturn:
            commit(ops, session, now_ms)
            world.tree.commit = commit  # type: ignore[method-assign]
            world.tree.stall(CLIENT, 100)
            raise MetadataOutcomeUnknown("injected")

        world.tree.commit = commit_and_go  # type: ignore[method-assign]
        with pytest.raises(MetadataOutcomeUnknown) as caught:
            await world.namespace.create_stream("a")
        assert caught.value.outcome is Outcome.UNKNOWN
        assert await world.nodes() == stream_nodes("a"), "it did"

    in_namespace(check)


def test_every_call_ends_in_time_and_says_what_may_have_happened() -> None:
    """The store's own patience is longer than the caller's here."""

    async def check(world: World) -> None:
        patient = StoreSettings(operation_timeout_s=500.0, session_timeout_s=500.0)
        namespace = await world.open("slow", store_settings=patient)
        await namespace.create_stream("a")
        world.tree.stall("slow", 400)
        writes: list[tuple[Awaitable[object], float]] = [
            (namespace.create_stream("b"), 20),
            (namespace.rename_stream("a", "b"), 20),
            (namespace.delete_stream("a"), 25),
            (namespace.set_stream_metadata("a", b"x"), 20),
        ]
        for call, limit_s in writes:
            error, took_s = await failure(world, call)
            assert isinstance(error, MetadataOutcomeUnknown)
            assert error.hint != MetadataOutcomeUnknown.hint
            assert took_s <= limit_s + 0.1
        reads: list[Awaitable[object]] = [
            namespace.stream_exists("a"),
            namespace.list_streams(),
            namespace.stream_metadata("a"),
        ]
        for call in reads:
            error, took_s = await failure(world, call)
            assert isinstance(error, MetadataUnavailable)
            assert took_s <= 20.1
        world.tree.repair()
        assert await world.namespace.list_streams() == ["a"]

    in_namespace(check, seeds=1)


async def failure(world: World, call: Awaitable[object]) -> tuple[QuireError, float]:
    began_s = world.now_s
    with pytest.raises(QuireError) as raised:
        await call
    return raised.value, world.now_s - began_s


def test_a_session_that_ends_does_not_end_the_namespace() -> None:
    async def check(world: World) -> None:
        world.tree.expire_host(CLIENT)
        await world.namespace.create_stream("a")
        assert await world.namespace.list_streams() == ["a"]

    in_namespace(check)


# --- Writing and reading


def test_a_stream_is_written_read_and_deleted_by_name() -> None:
    async def check(world: World) -> None:
        other = await world.open("other")
        async with world.namespace.open_writer("/a/orders") as writer:
            await writer.append_many([b"1", b"2", b"3"])
            for refused in (other.delete_stream("a/orders"), other.rename_stream("a/orders", "b")):
                with pytest.raises(StreamOwned) as owned:
                    await refused
                assert str(owned.value.facts["owner"]).startswith(CLIENT)
            with pytest.raises(StreamOwned):
                async with other.open_writer("a/orders", lock_timeout_s=0.0):
                    raise AssertionError("two writers")
        await other.rename_stream("a/orders", "b")
        async with other.open_writer("b", create_if_missing=False) as writer:
            last = await writer.append(b"4")
        assert last.lssn == 2
        async with world.namespace.open_reader("b") as reader:
            assert [record.payload for record in await reader.read_many(10, timeout_s=5)] == [b"1", b"2", b"3"]
            assert [record.payload for record in await reader.read_many(10, timeout_s=5)] == [b"4"]
        async with world.namespace.open_reader("b", start=last, read_ahead_bytes_max=1) as reader:
            assert [record.payload for record in await reader.read_many(10, timeout_s=5)] == [b"4"]
        assert len(await world.ledgers()) == 2
        await other.delete_stream("b")
        assert await world.ledgers() == set()
        with pytest.raises(NoSuchStream):
            async with world.namespace.open_reader("b"):
                raise AssertionError("open")

    in_namespace(check, bookies=3)


def test_a_segment_in_progress_is_counted_as_far_as_readers_see_it() -> None:
    async def check(world: World) -> None:
        other = await world.open("other")
        async with world.namespace.open_writer("s") as writer:
            await writer.append_many([b"12", b"34"])
        async with world.namespace.open_writer("s") as writer:
            dlsns = await writer.append_many([b"567"] * 5)
            await world.pass_time(1.0)
            info = await other.stream_info("s", sizes=True)
            assert (info.record_count, info.last_dlsn, info.last_txid) == (7, dlsns[-1], writer.last_txid)
            assert [(each.is_completed, each.record_count) for each in info.segments] == [(True, 2), (False, 5)]
            assert all((each.size_bytes or 0) > 4 for each in info.segments)
            by_metadata = await other.stream_info("s")
            assert [each.record_count for each in by_metadata.segments] == [2, None]
            for number in range(3):
                world.sim.network.partition("other", f"b{number}")
            began_s = world.now_s
            assert await other.stream_info("s", sizes=True) == replace(
                by_metadata, segments=(info.segments[0], by_metadata.segments[1])
            )
            assert world.now_s - began_s < 5
            world.sim.network.heal()

    in_namespace(check, bookies=3)


def test_a_writer_adopts_new_settings_with_its_next_segment() -> None:
    async def check(world: World) -> None:
        runtime = world.sim.host("b").runtime
        await runtime.disk.makedirs("/etc")
        text = "[orders]\nroll_interval_s = 5\nensemble = {0}\nwrite_quorum = {0}"
        await replace_file(runtime.disk, "/etc/streams.toml", text.format(2).encode())
        namespace = await world.open("b", settings_file="/etc/streams.toml", reload_interval_s=1.0)
        async with namespace.open_writer("orders") as writer:
            first = await writer.append(b"1")
            await replace_file(runtime.disk, "/etc/streams.toml", text.format(3).encode())
            await world.pass_time(6)
            await writer.append(b"2")
            await world.pass_time(1)
            assert (await writer.append(b"3")).lssn > first.lssn
        ledgers = [await world.cluster.ledgers.read(ledger) for ledger in sorted(await world.ledgers())]
        assert [ledger.metadata.quorum.write for ledger in ledgers] == [2, 3]

    in_namespace(check, bookies=3)


# --- Settings


def test_settings_come_from_the_namespace_the_file_and_the_caller() -> None:
    async def check(world: World) -> None:
        runtime = world.sim.host("b").runtime
        await runtime.disk.makedirs("/etc")
        await replace_file(runtime.disk, "/etc/streams.toml", b"[orders]\nretention_s = 5\nwindow_records_max = 5")
        namespace = await world.open("b", settings_file="/etc/streams.toml", reload_interval_s=1.0)
        assert namespace.settings_for("others") == SETTINGS
        assert namespace.settings_for("/orders").retention_s == 5
        assert namespace.settings_for("orders", retention_s=6.0).retention_s == 6
        with pytest.raises(InvalidArgument, match="colour"):
            namespace.settings_for("orders", colour="red")  # type: ignore[call-arg]
        sample = namespace._sampler("orders", namespace.settings_for("orders"), {"retention_s": 6.0})
        await replace_file(
            runtime.disk, "/etc/streams.toml", b"[orders]\nretention_s = 7\nwindow_records_max = 7\nack_quorum = 3"
        )
        await world.pass_time(2)
        assert namespace.settings_for("orders").retention_s == 7
        assert (sample().retention_s, sample().ack_quorum, sample().window_records_max) == (6, 3, 5)
        assert "window_records_max" not in ADOPTED

    in_namespace(check)


def test_a_client_is_known_by_host_and_process() -> None:
    async def check(world: World) -> None:
        namespace: Namespace = await world.open("b", client_id=None, store_settings=STORE)
        assert "/" in namespace.context.client_id

    in_namespace(check, seeds=1)
