"""Clusters that one side sets up, and the other side finds, uses, refuses or takes down.

Apache's half is mostly its own command line: what an operator has at hand for a cluster that Quire made.
"""

from pathlib import Path

import pytest

from quire.codec.cookie import Cookie
from quire.codec.layout import FACTORY_CLASSES
from quire.codec.registration import BOOKIE_RPC, BookieServiceInfo, Endpoint
from quire.errors import AlreadyInitialised, LayoutMismatch, NotInitialised
from quire.metadata import Cluster, init_cluster, open_cluster, open_store, parse_uri
from quire.runtime import real_runtime
from quire.types import BookieId, LedgerId
from tests.interop.conftest import LAYOUTS, Site
from tests.interop.ledger_samples import samples_with_ids
from tests.interop.peer import ApacheCluster, JavaError, JavaPeer
from tests.interop.shell import BookieShell
from tests.interop.tree import tree_below

WRITABLE, READONLY, DOWN = BookieId("bookie-four"), BookieId("127.0.0.1:3182"), BookieId("127.0.0.1:3183")
INFO = BookieServiceInfo((Endpoint("bookie", "127.0.0.1", 3184, BOOKIE_RPC),))


# --- Ours, found by Apache


async def test_java_takes_a_new_cluster_of_ours_for_one_of_its_own(
    java: JavaPeer, site: Site, cluster: Cluster, apache: ApacheCluster
) -> None:
    """Opened with and without the layout in the URI, by a bookie, a client and an administrator; nothing is added."""
    before = await tree_below(site.address, site.root)
    assert set(before) == {
        site.root,
        *(f"{site.root}/{name}" for name in ("INSTANCEID", "LAYOUT", "available", "available/readonly")),
    }
    assert await apache.call("cluster.instance_id") == await cluster.instance_id()
    stored = {"manager": FACTORY_CLASSES[cluster.layout], "manager_version": 1, "format_version": 2}
    assert await apache.call("cluster.layout") == stored
    async with java.open(site.uri(cluster.layout)) as named:
        assert await named.call("cluster.layout") == stored
        assert await named.call("ledger.list") == []
    assert await tree_below(site.address, site.root) == before


async def test_an_administrators_client_sees_what_we_stored(java: JavaPeer, site: Site, cluster: Cluster) -> None:
    for number, metadata in samples_with_ids():
        await cluster.ledgers.create(metadata, with_id=number)
    await cluster.bookies.create_cookie(Cookie(DOWN, ("/journal",), ("/ledgers",)))
    async with (
        cluster.bookies.register(WRITABLE, INFO),
        cluster.bookies.register(READONLY, BookieServiceInfo(), readonly=True),
    ):
        seen = await java.call("admin.look", uri=site.uri())
    assert seen == {
        "writable": [WRITABLE],
        "readonly": [READONLY],
        "all": [DOWN],
        "ledgers": sorted(number for number, _ in samples_with_ids()),
    }


async def test_the_shell_reads_a_cluster_of_ours(
    site: Site, cluster: Cluster, shell: BookieShell, tmp_path: Path
) -> None:
    number, metadata = samples_with_ids()[-1]  # With one custom key: Java would print several in its own order.
    for other, its_metadata in samples_with_ids():
        await cluster.ledgers.create(its_metadata, with_id=other)
    for bookie in (WRITABLE, DOWN):
        await cluster.bookies.create_cookie(Cookie(bookie, ("/journal",), ("/ledgers",)))
    uri = site.uri()
    async with (
        cluster.bookies.register(WRITABLE, INFO),
        cluster.bookies.register(READONLY, BookieServiceInfo(), readonly=True),
    ):
        told = await shell.run(uri, "whatisinstanceid")
        assert told.code == 0
        assert str(await cluster.instance_id()) in told.text

        writable, readonly = (WRITABLE, "127.0.0.1", 3184), (READONLY, "127.0.0.1", 3182)
        assert (await shell.run(uri, "listbookies", "-rw")).bookies() == [writable]
        assert (await shell.run(uri, "listbookies", "-ro")).bookies() == [readonly]
        assert (await shell.run(uri, "listbookies", "-a")).bookies() == [(DOWN, "UNKNOWN", 0), writable]

    told = await shell.run(uri, "listledgers")
    assert told.code == 0
    assert sorted(told.ledgers()) == sorted(other for other, _ in samples_with_ids())

    told = await shell.run(uri, "ledgermetadata", "-ledgerid", str(number))
    assert told.code == 0
    assert told.ledgers() == [number]
    assert f"formatVersion={metadata.format_version}, ensembleSize={metadata.quorum.ensemble}" in told.text
    assert f"state={metadata.state.name}" in told.text

    dump = tmp_path / "dump"
    told = await shell.run(uri, "ledgermetadata", "-ledgerid", str(number), "-dumptofile", str(dump))
    assert told.code == 0
    assert dump.read_bytes() == (await cluster.store.get(cluster.ledgers.path(LedgerId(number)))).data


async def test_the_shell_refuses_to_set_up_a_cluster_over_ours(
    site: Site, cluster: Cluster, shell: BookieShell
) -> None:
    before = await tree_below(site.address, site.root)
    told = await shell.run(site.uri(), "initnewcluster")
    assert told.code == 1
    assert "already exists" in told.text
    assert await tree_below(site.address, site.root) == before


async def test_the_shell_takes_down_a_cluster_of_ours(site: Site, cluster: Cluster, shell: BookieShell) -> None:
    """With ledgers, cookies and what the id generators left: a node that Apache does not know would be in its way.

    In the flat layout that goes for ledgers with more than ten digits too, whoever made them: Java reads and lists
    them, but takes nothing down that has one. The generators never make such ids there.
    """
    ids = [number for number, _ in samples_with_ids() if cluster.layout != "flat" or number < 10**10]
    for number in ids:
        await cluster.ledgers.create(samples_with_ids()[0][1], with_id=number)
    await cluster.ledgers.create(samples_with_ids()[0][1])
    if cluster.layout != "flat":
        await cluster.store.create(f"{site.root}/idgen-long")
        await cluster.ledgers.create(samples_with_ids()[0][1])
    await cluster.bookies.create_cookie(Cookie(DOWN, ("/journal",), ("/ledgers",)))
    nuke = ("nukeexistingcluster", "-zkledgersrootpath", site.root, "-instanceid")
    instance_id = str(await cluster.instance_id())
    async with cluster.bookies.register(WRITABLE, INFO, readonly=True):
        assert (await shell.run(site.uri(), *nuke, instance_id)).code != 0, "a bookie still lives"
    assert (await shell.run(site.uri(), *nuke, "another")).code != 0
    assert len([ledger async for ledger in cluster.ledgers.scan()]) > len(ids)

    told = await shell.run(site.uri(), *nuke, instance_id)
    assert told.code == 0, told.text
    assert await cluster.store.exists(site.root) is None
    with pytest.raises(NotInitialised):
        async with open_cluster(site.uri()):
            pytest.fail("there is nothing to open")


# --- Apache's, found by us


async def test_we_open_a_cluster_that_the_shell_set_up(site: Site, layout: str, shell: BookieShell) -> None:
    told = await shell.run(site.uri(layout), "initnewcluster")
    assert told.code == 0
    before = await tree_below(site.address, site.root)
    for uri in (site.uri(), site.uri(layout)):
        async with open_cluster(uri) as cluster:
            assert cluster.layout == layout
            assert str(await cluster.instance_id()) in told.text
            assert [ledger async for ledger in cluster.ledgers.scan()] == []
    parsed = parse_uri(site.uri(layout))
    async with open_store(parsed) as store:
        with pytest.raises(AlreadyInitialised):
            await init_cluster(store, parsed, real_runtime())
    assert await tree_below(site.address, site.root) == before


async def test_both_sides_set_up_the_same_nodes(
    java: JavaPeer, site: Site, cluster: Cluster, shell: BookieShell
) -> None:
    theirs = Site(site.address, f"{site.root}-java")
    assert (await shell.run(theirs.uri(cluster.layout), "initnewcluster")).code == 0

    async def nodes(of: Site) -> dict[str, bytes | int]:
        found = await tree_below(of.address, of.root)
        names = {path.removeprefix(of.root): node[0] for path, node in found.items()}
        return {name: len(data) if name == "/INSTANCEID" else data for name, data in names.items()}

    assert await nodes(site) == await nodes(theirs)


@pytest.mark.parametrize("layout", ["longhierarchical"])
async def test_a_formatted_cluster_is_opened_as_what_it_now_is(
    site: Site, cluster: Cluster, shell: BookieShell
) -> None:
    """Apache's `metaformat` forgets the layout that its URI names. What is stored counts, for both sides."""
    for number, metadata in samples_with_ids():
        await cluster.ledgers.create(metadata, with_id=number)
    old = await cluster.instance_id()
    told = await shell.run(site.uri(cluster.layout), "metaformat", "-nonInteractive", "-force")
    assert told.code == 0
    async with open_cluster(site.uri()) as formatted:
        assert formatted.layout == "hierarchical"
        assert await formatted.instance_id() not in (old, None)
        assert [ledger async for ledger in formatted.ledgers.scan()] == []
    with pytest.raises(LayoutMismatch):
        async with open_cluster(site.uri(cluster.layout)):
            pytest.fail("opened in a layout that it does not have")


async def test_metaformat_sets_up_a_cluster_that_we_open(site: Site, shell: BookieShell) -> None:
    deep = Site(site.address, f"{site.root}/of/many/parts")
    told = await shell.run(deep.uri("hierarchical"), "metaformat", "-nonInteractive")
    assert told.code == 0
    async with open_cluster(deep.uri()) as cluster:
        assert cluster.layout == "hierarchical"
        assert await cluster.instance_id() is not None


# --- A layout that is not the stored one


async def test_both_sides_refuse_a_uri_of_another_layout_and_change_nothing(
    java: JavaPeer, site: Site, cluster: Cluster
) -> None:
    await cluster.ledgers.create(samples_with_ids()[0][1])
    before = await tree_below(site.address, site.root)
    for other in LAYOUTS:
        if other == cluster.layout:
            continue
        with pytest.raises(LayoutMismatch):
            async with open_cluster(site.uri(other)):
                pytest.fail("opened in a layout that it does not have")
        with pytest.raises(JavaError, match=r"(?i)layout"):
            async with java.open(site.uri(other)):
                pytest.fail("opened in a layout that it does not have")
    assert await tree_below(site.address, site.root) == before


@pytest.mark.parametrize("layout", ["hierarchical"])
async def test_both_sides_refuse_a_layout_that_they_do_not_know(java: JavaPeer, site: Site, cluster: Cluster) -> None:
    path = cluster.paths.layout
    await cluster.store.set(
        path, b"2\norg.example.OtherLedgerManagerFactory:1", expected=(await cluster.store.get(path)).stat.version
    )
    before = await tree_below(site.address, site.root)
    with pytest.raises(LayoutMismatch):
        async with open_cluster(site.uri()):
            pytest.fail("opened in a layout that nobody knows")
    with pytest.raises(JavaError):
        async with java.open(site.uri()):
            pytest.fail("opened in a layout that nobody knows")
    assert await tree_below(site.address, site.root) == before


@pytest.mark.parametrize("created_by", ["java", "quire"])
async def test_a_layout_that_is_missing_is_created_by_whoever_comes_first(
    java: JavaPeer, site: Site, layout: str, created_by: str
) -> None:
    parsed = parse_uri(site.uri(layout))
    async with open_store(parsed) as store:
        for path in (site.root, f"{site.root}/available", f"{site.root}/available/readonly"):
            await store.create(path)
        if created_by == "java":
            async with java.open(site.uri(layout)):
                pass
        else:
            async with open_cluster(parsed):
                pass
        before = await tree_below(site.address, site.root)
        async with java.open(site.uri()) as apache, open_cluster(site.uri()) as cluster:
            assert cluster.layout == layout
            assert (await apache.call("cluster.layout"))["manager"] == FACTORY_CLASSES[layout]
        assert await tree_below(site.address, site.root) == before
