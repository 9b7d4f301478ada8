"""Bookies that one side registers, and cookies that one side writes, as the other side sees them."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from quire.codec.cookie import Cookie, decode_cookie, encode_cookie
from quire.codec.registration import BOOKIE_RPC, BookieServiceInfo, Endpoint, legacy_service_info
from quire.errors import BookieRegistered, NodeExists, VersionConflict
from quire.metadata import BookieListing, Cluster
from quire.types import BookieId
from tests.interop.conftest import Site
from tests.interop.peer import ApacheCluster, JavaError, JavaPeer

pytestmark = pytest.mark.parametrize("layout", ["hierarchical"])  # The layout is one of ledgers only.

LEGACY, FULL, ODD = BookieId("127.0.0.1:3181"), BookieId("bookie-four"), BookieId(r"odd:;<=>?@[\]^_.-9")

# An empty info is stored as no bytes at all; the bookie's id is then its address.
INFOS = {
    LEGACY: BookieServiceInfo(),
    FULL: BookieServiceInfo(
        (
            Endpoint("httpserver", "0.0.0.0", 8080, "http"),
            Endpoint("bookie", "127.0.0.4", 3184, BOOKIE_RPC, auth=("sasl", "basic"), extensions=("tls", "b", "a")),
        ),
        {"zone": "\u4e2d", "": "", "k": "v"},
    ),
    ODD: BookieServiceInfo((Endpoint("bookie", "host.example", 65535, BOOKIE_RPC),)),
}
ADDRESSES = {LEGACY: ["127.0.0.1", 3181], FULL: ["127.0.0.4", 3184], ODD: ["host.example", 65535]}

COOKIES = (
    Cookie(LEGACY, ("/journal",), ("/ledgers",), instance_id="0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10"),
    Cookie(FULL, ("/j1", "/j2"), ("/l 1", '/l"2"', "/l'3\\"), ("/i\u00e9", "/i\u4e2d"), "another cluster's"),
    Cookie(ODD, ("/j",), ("/l\n1",)),
    Cookie(BookieId("of-4.15:1"), ("/j",), ("/l1", "/l2"), instance_id="id", layout_version=4),
    Cookie(BookieId("of-4.1:1"), ("/j",), ("/l1", "/l2"), layout_version=3),
)


def info_facts(info: BookieServiceInfo) -> dict[str, Any]:
    endpoints = [
        {**asdict(each), "auth": list(each.auth), "extensions": list(each.extensions)} for each in info.endpoints
    ]
    return {"endpoints": endpoints, "properties": dict(info.properties)}


def cookie_fields(cookie: Cookie) -> dict[str, Any]:
    return {**asdict(cookie), "bookie_id": str(cookie.bookie_id)}


async def java_lists(apache: ApacheCluster) -> tuple[list[str], list[str]]:
    return await apache.call("bookie.list", which="writable"), await apache.call("bookie.list", which="readonly")


# --- Registrations


async def test_java_finds_the_bookies_that_we_registered(cluster: Cluster, apache: ApacheCluster) -> None:
    async with (
        cluster.bookies.register(LEGACY, INFOS[LEGACY]),
        cluster.bookies.register(FULL, INFOS[FULL], readonly=True),
        cluster.bookies.register(ODD, INFOS[ODD]),
    ):
        assert await java_lists(apache) == ([LEGACY, ODD], [FULL])
        for bookie, info in INFOS.items():
            expected = legacy_service_info(bookie) if bookie == LEGACY else info
            assert await apache.call("bookie.info", bookie=bookie) == info_facts(expected)
            assert await apache.call("bookie.resolve", bookie=bookie) == ADDRESSES[bookie]
    assert await java_lists(apache) == ([], [])


async def test_java_sees_a_bookie_change_its_list(cluster: Cluster, apache: ApacheCluster) -> None:
    async with cluster.bookies.register(FULL, INFOS[FULL]) as registration:
        await registration.set_readonly(True)
        assert await java_lists(apache) == ([], [FULL])
        await registration.set_readonly(False)
        assert await java_lists(apache) == ([FULL], [])


async def test_java_learns_the_new_address_of_a_bookie_that_came_back(cluster: Cluster, apache: ApacheCluster) -> None:
    for port in (3181, 3182):
        info = BookieServiceInfo((Endpoint("bookie", "127.0.0.9", port, BOOKIE_RPC),))
        async with cluster.bookies.register(FULL, info):
            assert await java_lists(apache) == ([FULL], [])
            assert await apache.call("bookie.resolve", bookie=FULL) == ["127.0.0.9", port]


async def test_we_find_the_bookies_that_java_registered(cluster: Cluster, apache: ApacheCluster) -> None:
    for bookie, info in INFOS.items():
        await apache.call("bookie.register", bookie=bookie, readonly=bookie == FULL, info=info_facts(info))
    assert await cluster.bookies.listing() == BookieListing(frozenset({LEGACY, ODD}), frozenset({FULL}))
    for bookie, info in INFOS.items():
        expected = legacy_service_info(bookie) if bookie == LEGACY else info
        assert await cluster.bookies.service_info(bookie) == expected
        assert expected.rpc_endpoint is not None
        assert [expected.rpc_endpoint.host, expected.rpc_endpoint.port] == ADDRESSES[bookie]


async def test_we_see_a_java_bookie_change_its_list(cluster: Cluster, apache: ApacheCluster) -> None:
    """On its way back to writable it is in both lists for a moment: writable wins, as Java clients have it."""
    nobody: frozenset[BookieId] = frozenset()
    info = info_facts(INFOS[FULL])
    await apache.call("bookie.register", bookie=FULL, readonly=False, info=info)
    await apache.call("bookie.register", bookie=FULL, readonly=True, info=info)
    assert await cluster.bookies.listing() == BookieListing(nobody, frozenset({FULL}))
    await apache.call("bookie.register", bookie=FULL, readonly=False, info=info)
    assert await java_lists(apache) == ([FULL], [FULL])
    assert await cluster.bookies.listing() == BookieListing(frozenset({FULL}), nobody)
    await apache.call("bookie.unregister", bookie=FULL, readonly=True)
    assert await cluster.bookies.listing() == BookieListing(frozenset({FULL}), nobody)
    await apache.call("bookie.unregister", bookie=FULL, readonly=False)
    assert await cluster.bookies.listing() == BookieListing(nobody, nobody)


async def test_a_bookie_that_lives_on_one_side_cannot_be_registered_on_the_other(
    java: JavaPeer, site: Site, cluster: Cluster
) -> None:
    """Java waits for the session timeout, in case that a dead process left the node behind; then it gives up."""
    async with java.open(site.uri(), session_timeout_s=3.0) as apache:
        async with cluster.bookies.register(FULL, INFOS[FULL]):
            with pytest.raises(JavaError) as refused:
                await apache.call("bookie.register", bookie=FULL, readonly=False, info=info_facts(INFOS[ODD]))
            assert refused.value.name == "MetadataStoreException"
            assert await cluster.bookies.service_info(FULL) == INFOS[FULL]
        await apache.call("bookie.register", bookie=FULL, readonly=False, info=info_facts(INFOS[ODD]))
        with pytest.raises(BookieRegistered):
            async with cluster.bookies.register(FULL, INFOS[FULL]):
                pytest.fail("registered twice")
        assert await cluster.bookies.service_info(FULL) == INFOS[ODD]


# --- Cookies


async def test_java_reads_the_cookies_that_we_wrote(cluster: Cluster, apache: ApacheCluster) -> None:
    for cookie in COOKIES:
        version = await cluster.bookies.create_cookie(cookie)
        read = await apache.call("cookie.read", bookie=cookie.bookie_id, expected=cookie_fields(cookie))
        assert read["equal"], read["text"]
        assert read["version"] == version
        other = replace(cookie, ledger_dirs=("/elsewhere",))
        assert not (await apache.call("cookie.read", bookie=cookie.bookie_id, expected=cookie_fields(other)))["equal"]
    assert await apache.call("bookie.list", which="all") == sorted(cookie.bookie_id for cookie in COOKIES)
    assert await cluster.bookies.known() == {cookie.bookie_id for cookie in COOKIES}


async def test_we_read_the_cookies_that_java_wrote(cluster: Cluster, apache: ApacheCluster) -> None:
    """And would have written the same bytes: bookies compare cookies, also those in their directories."""
    for cookie in COOKIES[:3]:
        await apache.call("cookie.write", cookie=cookie_fields(cookie), version=None)
        stored = await cluster.bookies.cookie(cookie.bookie_id)
        assert stored is not None
        assert stored.cookie == cookie
        data = (await cluster.store.get(f"{cluster.paths.cookies}/{cookie.bookie_id}")).data
        assert encode_cookie(cookie) == data
        assert decode_cookie(data).differences(cookie) == []
    assert await cluster.bookies.known() == {cookie.bookie_id for cookie in COOKIES[:3]}


async def test_cookies_are_created_once_and_changed_by_version_on_both_sides(
    cluster: Cluster, apache: ApacheCluster
) -> None:
    cookie = COOKIES[0]
    moved = replace(cookie, ledger_dirs=("/moved",))
    version = await cluster.bookies.create_cookie(cookie)
    with pytest.raises(JavaError) as exists:
        await apache.call("cookie.write", cookie=cookie_fields(moved), version=None)
    assert exists.value.name == "CookieExistException"
    await apache.call("cookie.write", cookie=cookie_fields(moved), version=version)
    with pytest.raises(VersionConflict):
        await cluster.bookies.update_cookie(cookie, expected=version)
    stored = await cluster.bookies.cookie(cookie.bookie_id)
    assert stored is not None
    assert stored.cookie == moved
    newest = await cluster.bookies.update_cookie(cookie, expected=stored.version)
    with pytest.raises(JavaError) as conflict:
        await apache.call("cookie.write", cookie=cookie_fields(moved), version=stored.version)
    assert conflict.value.name == "MetadataStoreException"
    with pytest.raises(NodeExists):
        await cluster.bookies.create_cookie(moved)
    await apache.call("cookie.remove", bookie=cookie.bookie_id, version=newest)
    assert await cluster.bookies.cookie(cookie.bookie_id) is None
    assert await cluster.bookies.known() == frozenset()
