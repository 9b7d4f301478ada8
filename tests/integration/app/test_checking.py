"""`quire check` on a real cluster: what is broken on purpose is found, and what can be repaired is."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.app import inventory
from quire.app.checking import check, repair
from quire.app.inventory import Target, open_operations
from quire.app.repairing import bad_copies, marks_of, repair_ledgers
from quire.cli.main import app
from quire.codec.stream_metadata.sinks import SinkBatch
from quire.codec.stream_metadata.tree import StreamPaths, encode_allocation
from quire.codec.underreplication import mark_path
from quire.ledger.repair.fragment_check import plain_reader
from quire.ledger.repair.fragment_copy import copy_entries
from quire.metadata import ANY_VERSION, MetadataStore, open_store
from quire.metadata.driver import Children
from quire.protocol.fragments import Span
from quire.protocol.repair import Exchange, exchanged
from quire.runtime import AsyncioClock, AsyncioNetwork, OsDisk, Runtime, SystemRng
from quire.stream.binding import create_namespace, unbind_namespace
from quire.stream.listing import scan_streams
from quire.stream.namespace import open_namespace
from quire.stream.staging import stage
from quire.stream.uri import parse_stream_uri
from quire.testing.local import LocalCluster, local_cluster
from quire.types import BookieId, EntryId, LedgerId
from tests.support.servers.small_bookies import SmallCluster, small_cluster
from tests.support.waiting import eventually


class Yesterday(AsyncioClock):
    """So that a ledger is old enough to be called leaked."""

    def wall_ms(self) -> int:
        return super().wall_ms() - 86_400_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path / "cluster", bookies=4) as running:
        yield running


def run(*options: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, [*options, "--json"])
    return done.exit_code, json.loads(done.output)


def written(cluster: LocalCluster) -> int:
    """A stream with a segment on three of the four bookies. Returns its ledger."""
    with cluster.connect_sync() as client:
        with client.open_writer("orders") as writer:
            for number in range(20):
                writer.append(b"record %d" % number)
        ledger: int = client.stream_info("orders").segments[0].ledger_id
        return ledger


def test_lost_copies_are_found_and_copied_to_another_bookie(cluster: LocalCluster) -> None:
    """Method: stop a bookie that has the segment. Its place goes to the fourth, and readers never notice."""
    ledger = written(cluster)
    options = ("check", "--uri", cluster.uri)
    assert run(*options, "--thorough") == (
        0,
        {"ledgers": 1, "namespaces": 1, "streams": 1, "bookies": 4, "cold_files": 0, "findings": [], "repairs": []},
    )
    code, shown = run("ledger", "show", str(ledger), "--metadata", cluster.ledgers_uri)
    (fragment,) = shown["fragments"]
    lost = fragment["bookies"][0]
    cluster.stop_bookie(int(lost.rpartition("-")[2]))
    code, told = run(*options)
    (finding,) = told["findings"]
    assert (code, finding["kind"], finding["bookies"]) == (1, "missing copies", [lost])
    refused = CliRunner().invoke(app, [*options, "--repair", "--json"])
    assert "--yes" in json.loads(refused.output)["error"]["hint"], "nobody is there to be asked"
    code, told = run(*options, "--repair", "--yes")
    assert (code, [each["done"] for each in told["repairs"]]) == (0, [True])
    assert run(*options, "--thorough")[0] == 0
    assert lost not in json.dumps(run("ledger", "show", str(ledger), "--metadata", cluster.ledgers_uri)[1]["fragments"])
    assert run("ledger", "repair", str(ledger), "--metadata", cluster.ledgers_uri)[1]["whole"]
    with cluster.connect_sync() as client, client.open_reader("orders") as reader:
        assert [record.payload for record in islice(reader, 20)][-1] == b"record 19"


async def with_holes(cluster: SmallCluster, places: int) -> LedgerId:
    """A ledger whose first so many places are taken by new bookies which have all of its entries but the fifth."""
    async with quire.ledgers(cluster.metadata) as ledgers:
        async with ledgers.create() as ledger:
            await ledger.enqueue([b"entry %d" % number for number in range(10)])
            await ledger.flush()
        await ledgers.pool.wait_listed()
        stored = await ledgers.ledgers_metadata.read(ledger.id)
        reader = plain_reader(ledgers, stored)
        changes = {}
        for place in range(places):
            taker = (await cluster.start(4 + place)).bookie_id
            for first, last in ((0, 4), (6, 9)):
                span = Span(EntryId(first), EntryId(last), stored.metadata.fragments[0].bookies, True, True)
                await copy_entries(ledgers, reader, span, {place: taker}, before_batch=at_once, on_batch=lambda _: None)
            changes[place] = Exchange(stored.metadata.fragments[0].bookies[place], taker)
        await ledgers.ledgers_metadata.update(stored, lambda found: exchanged(found, EntryId(0), changes))
        return ledger.id


async def at_once(_: int) -> None:
    return


async def test_a_hole_that_only_a_thorough_check_finds_is_repaired_by_a_thorough_repair(tmp_path: Path) -> None:
    async with small_cluster(tmp_path / "cluster", bookies=3) as cluster:
        await with_holes(cluster, 1)
        assert (await cluster.run("check"))[0] == 0, "the first and the last entry are there"
        code, told = await cluster.run("check", "--thorough", "--repair", "--yes")
        assert (code, [each["told"] for each in told["repairs"]]) == (0, ["whole"])
        assert (await cluster.run("check", "--thorough"))[1]["findings"] == []


async def test_what_another_worker_called_whole_too_early_is_repaired_nevertheless(tmp_path: Path) -> None:
    """Method: hold the lock so that the repair cannot begin, and take its mark away as one does who reads samples."""
    async with small_cluster(tmp_path / "cluster", bookies=3) as cluster:
        ledger = await with_holes(cluster, 1)
        async with open_operations(Target(cluster.metadata)) as operations:
            marks, store = marks_of(operations), operations.cluster.store
            await marks.prepare()

            async def is_marked() -> bool:
                return await marks.read_mark(ledger) is not None

            async with marks.locked(ledger) as lock:
                assert lock is not None
                working = asyncio.create_task(
                    repair_ledgers(operations, {ledger: [BookieId("bookie-4")]}, thorough=True)
                )
                await eventually(is_marked)
                path = f"{operations.cluster.uri.root}/underreplication/{mark_path(ledger)}"
                await store.delete(path, expected=ANY_VERSION)
            (repaired,) = await working
            assert (repaired.is_whole, repaired.told) == (True, "whole")
            assert await bad_copies(operations, ledger) is None


async def test_an_entry_that_no_bookie_has_is_lost_and_not_repaired(tmp_path: Path) -> None:
    async with small_cluster(tmp_path / "cluster", bookies=3) as cluster:
        await with_holes(cluster, 3)
        code, told = await cluster.run("check", "--thorough", "--repair", "--yes")
        assert (code, told["repairs"]) == (1, [])
        lost, at_risk = told["findings"]
        assert (lost["severity"], lost["problem"]) == ("lost", "no bookie has an intact copy of entry 5")
        assert (at_risk["kind"], at_risk["repair"]) == ("missing copies", None)


def test_what_keeps_a_ledger_from_its_copies_is_told(tmp_path: Path) -> None:
    """With three bookies and one gone there is nobody who could take its place."""
    with local_cluster(tmp_path / "small", bookies=3) as cluster:
        ledger = written(cluster)
        cluster.stop_bookie(1)
        done = CliRunner().invoke(
            app, ["ledger", "repair", str(ledger), "--metadata", cluster.ledgers_uri, "--json", "--timeout", "5"]
        )
        told = json.loads(done.output)
        assert (done.exit_code, told["whole"]) == (1, False)
        assert "1 other writable bookies are needed, there are 0" in told["told"]


def runtime_of_yesterday(disk: OsDisk) -> Runtime:
    return Runtime(clock=Yesterday(), disk=disk, network=AsyncioNetwork(), rng=SystemRng())


async def leave_behind(cluster: LocalCluster) -> None:
    """What crashes and mistakes leave."""
    written(cluster)
    disk = OsDisk()
    old = runtime_of_yesterday(disk)
    async with quire.ledgers(cluster.ledgers_uri, runtime=old) as ledgers:
        async with ledgers.create():
            pass
        async with ledgers.create() as full:
            await full.append(b"somebody's")
        async with ledgers.create(custom={"application": b"pulsar"}):
            pass
    uri = parse_stream_uri(cluster.uri)
    async with open_store(uri.store) as store, cluster.connect() as client:
        await client.create_stream("idle")
        await store.set(
            StreamPaths(uri.path, "idle").allocation, encode_allocation(LedgerId(4711)), expected=ANY_VERSION
        )
        async with client.open_writer("gone") as writer:
            await writer.append(b"x")
        info = await client.stream_info("gone")
        async with quire.ledgers(cluster.ledgers_uri) as ledgers:
            await ledgers.delete(info.segments[0].ledger_id)
    await disk.aclose()


def test_the_findings_of_a_broken_cluster(cluster: LocalCluster) -> None:
    """Method: leave behind what crashes leave; compare what is told, then what is left after a repair."""
    asyncio.run(leave_behind(cluster))
    options = ("check", "--uri", cluster.uri, "--exclusive")
    code, told = run(*options)
    assert code == 1
    assert [(each["kind"], each["severity"], each["repair"] is not None) for each in told["findings"]] == [
        ("unreadable segment", "lost", False),
        ("allocation left over", "untidy", True),
        ("leaked ledger", "untidy", True),
        ("leaked ledger", "untidy", False),
    ]
    code, told = run(*options, "--repair", "--yes")
    assert [each["done"] for each in told["repairs"]] == [True, True]
    code, told = run(*options)
    assert [each["kind"] for each in told["findings"]] == ["unreadable segment", "leaked ledger"]
    shown = CliRunner().invoke(app, [*options])
    assert "quire ledger delete" in shown.output


def test_streams_of_a_local_cluster_are_found_with_its_metadata_alone(cluster: LocalCluster) -> None:
    """In every namespace. And where none is known, nobody is told that there are no streams."""
    with cluster.connect_sync() as client, client.open_writer("orders") as writer:
        writer.append(b"x")
    team = cluster.uri.replace("/default", "/teams/a")
    asyncio.run(create_namespace(team))
    with quire.sync.connect(team) as client:
        client.create_stream("payments")
    asyncio.run(create_namespace(cluster.uri.replace("/default", "/others"), ledgers_root="/other-ledgers"))
    code, told = run("check", "--metadata", cluster.ledgers_uri)
    assert (code, told["namespaces"], told["streams"]) == (0, 2, 2)
    shown = CliRunner().invoke(app, ["check", "--metadata", cluster.ledgers_uri])
    assert ", 2 streams: all is well" in shown.output
    room = json.loads(CliRunner().invoke(app, ["capacity", "--metadata", cluster.ledgers_uri, "--json"]).output)
    assert f"{cluster.uri}/orders" in {each["owner"] for each in room["streams"]}
    options = ["--metadata", cluster.ledgers_uri + "?root=/other-ledgers"]
    asyncio.run(unbind_namespace(cluster.uri.replace("/default", "/others")))
    shown = CliRunner().invoke(app, ["check", *options])
    assert "0 ledgers on 0 bookies, no namespace of streams is known (name one with --uri): all is well" in shown.output
    assert "no namespace of streams is known" in CliRunner().invoke(app, ["capacity", *options]).output


async def test_a_stream_that_is_renamed_while_a_check_runs_leaks_nothing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: an old stream gets another name between the listing of names and the reading of streams; and an empty
    ledger, which was nobody's, gets a stream between the check and its repair."""
    disk = OsDisk()
    old = runtime_of_yesterday(disk)
    async with quire.ledgers(cluster.ledgers_uri, runtime=old) as ledgers, ledgers.create() as empty:
        pass
    async with quire.connect(cluster.uri, runtime=old) as client, client.open_writer("orders") as writer:
        await writer.append(b"one")
    renamed = 0

    async def scan(store: MetadataStore, path: str) -> AsyncIterator[str]:
        nonlocal renamed
        names = [name async for name in scan_streams(store, path)]
        if renamed == 0:
            renamed = 1
            async with cluster.connect() as somebody:
                await somebody.rename_stream("orders", "orders-2025")
        for name in names:
            yield name

    monkeypatch.setattr(inventory, "scan_streams", scan)
    async with open_operations(Target(None, (cluster.uri,))) as operations:
        checked = await check(operations, exclusive=True, thorough=False)
        assert renamed == 1
        assert [(each.kind, each.ledger_id) for each in checked.findings] == [("leaked ledger", empty.id)]
        async with cluster.connect() as client:
            await client.create_stream("idle")
        namespace = operations.namespaces[0]
        allocation = StreamPaths(namespace.path, "idle").allocation
        await namespace.store.set(allocation, encode_allocation(empty.id), expected=ANY_VERSION)
        (outcome,) = await repair(operations, checked.findings, thorough=False)
        assert (outcome.is_done, outcome.told) == (False, f"a stream names ledger {empty.id} by now, and it stays")
        assert (await operations.cluster.ledgers.read(empty.id)).ledger_id == empty.id
    await disk.aclose()


async def test_segments_that_come_and_go_while_a_check_runs_are_no_findings(cluster: LocalCluster) -> None:
    """Method: between the listings of ledgers and streams one segment begins, and the ledger of another one goes. Its
    node goes when it is read for the third time."""
    async with cluster.connect() as client, open_operations(Target(None, (cluster.uri,))) as operations:
        for payload in (b"first", b"second"):
            async with client.open_writer("orders") as writer:
                await writer.append(payload)
        oldest = (await client.stream_info("orders")).segments[0].ledger_id
        store, ledgers = operations.namespaces[0].store, operations.cluster.ledgers
        paths = StreamPaths(operations.namespaces[0].path, "orders")
        scan, children, reads = ledgers.scan, store.children, 0

        async def late_scan() -> AsyncIterator[LedgerId]:
            async for ledger in scan():
                yield ledger
            async with client.open_writer("late") as writer:
                await writer.append(b"x")
            await ledgers.remove(oldest)

        async def counted(path: str) -> Children:
            nonlocal reads
            if path == paths.lock:  # The last thing that is read of a stream.
                reads += 1
                if reads == 3:
                    names = (await children(paths.segments)).names
                    await store.delete(paths.segment(min(names)), expected=ANY_VERSION)
            return await children(path)

        ledgers.scan = late_scan  # type: ignore[method-assign]
        store.children = counted  # type: ignore[method-assign]
        found = await check(operations, exclusive=True, thorough=False)
    assert (found.streams, found.findings) == (2, ())
    assert reads > 3


async def stage_and_forget(cluster: LocalCluster, runtime: Runtime | None = None) -> LedgerId:
    """A ledger that a sink wrote for a stream, and never published."""
    async with open_namespace(cluster.uri, runtime=runtime) as namespace:
        settings = namespace.settings_for("orders")
        async with stage(namespace.context, "orders", settings, SinkBatch("sink", 1, "query")) as staging:
            await staging.append_many([b"never committed"], [1])
        assert staging.segment is not None
        return LedgerId(staging.segment.ledger)


def test_staged_ledgers_that_nobody_came_for_are_told_and_swept(cluster: LocalCluster) -> None:
    """Method: one of yesterday, one of now. Only the first is old enough, unless another time to live is given."""
    written(cluster)

    async def leave() -> tuple[LedgerId, LedgerId]:
        disk = OsDisk()
        try:
            return await stage_and_forget(cluster, runtime_of_yesterday(disk)), await stage_and_forget(cluster)
        finally:
            await disk.aclose()

    async def left() -> set[LedgerId]:
        async with quire.ledgers(cluster.ledgers_uri) as ledgers:
            return {ledger async for ledger in ledgers.scan()}

    old, young = asyncio.run(leave())
    options = ("check", "--uri", cluster.uri, "--exclusive")
    assert run(*options, "--staged-ttl", "172800")[1]["findings"] == []
    code, told = run(*options)
    (finding,) = told["findings"]
    assert (code, finding["kind"], finding["severity"]) == (1, "old staged ledger", "untidy")
    assert {old, young} < asyncio.run(left()), "a check alone deletes nothing"
    shown = CliRunner().invoke(app, [*options, "--repair"], input="n\n")
    assert "orders: delete the staged ledgers, which are in no stream" in shown.output
    assert {old, young} < asyncio.run(left()), "nor does a plan that nobody agreed to"
    code, told = run(*options, "--repair", "--yes")
    assert (code, [each["told"] for each in told["repairs"]]) == (0, ["1 deleted"])
    assert {old, young} & asyncio.run(left()) == {young}
    assert run(*options)[0] == 0
