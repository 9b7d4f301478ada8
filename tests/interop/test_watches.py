"""Changes that one side makes, as the watches of the other side tell them: nobody looks again without being woken."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.codec.registration import BOOKIE_RPC, BookieServiceInfo, Endpoint
from quire.errors import NoSuchLedger
from quire.metadata import BookieListing, Cluster
from quire.types import BookieId, LedgerState
from tests.interop.conftest import Site
from tests.interop.ledger_samples import facts, samples, told
from tests.interop.peer import ApacheCluster, JavaPeer

pytestmark = pytest.mark.parametrize("layout", ["hierarchical"])

TOLD_WITHIN_S = 20.0
SESSION_TIMEOUT_S = 2.0

ONE, TWO = BookieId("bookie-one"), BookieId("127.0.0.1:3182")
INFO = BookieServiceInfo((Endpoint("bookie", "127.0.0.1", 3181, BOOKIE_RPC),))
INFO_FACTS = {
    "endpoints": [
        {"id": "bookie", "host": "127.0.0.1", "port": 3181, "protocol": BOOKIE_RPC, "auth": [], "extensions": []}
    ],
    "properties": {},
}


async def expect_java_told(apache: ApacheCluster, writable: set[BookieId], readonly: set[BookieId]) -> None:
    await apache.call(
        "bookie.await_lists",
        writable=sorted(writable),
        readonly=sorted(readonly),
        within_ms=round(TOLD_WITHIN_S * 1000),
    )


async def expect_told(listings: AsyncIterator[BookieListing], writable: set[BookieId], readonly: set[BookieId]) -> None:
    """Changes that follow each other closely may be told as one, but the last one is always told."""
    wanted = BookieListing(frozenset(writable), frozenset(readonly))
    async with asyncio.timeout(TOLD_WITHIN_S):
        async for listing in listings:
            if listing == wanted:
                return


async def test_java_is_told_when_our_bookies_come_and_go(cluster: Cluster, apache: ApacheCluster) -> None:
    await apache.call("bookie.watch")
    await expect_java_told(apache, set(), set())
    async with cluster.bookies.register(ONE, INFO) as registration:
        await expect_java_told(apache, {ONE}, set())
        async with cluster.bookies.register(TWO, BookieServiceInfo(), readonly=True):
            await expect_java_told(apache, {ONE}, {TWO})
            await registration.set_readonly(True)
            await expect_java_told(apache, set(), {ONE, TWO})
            await registration.set_readonly(False)
            await expect_java_told(apache, {ONE}, {TWO})
        await expect_java_told(apache, {ONE}, set())
    await expect_java_told(apache, set(), set())


async def test_we_are_told_when_java_bookies_come_and_go(cluster: Cluster, apache: ApacheCluster) -> None:
    listings = cluster.bookies.follow()
    await expect_told(listings, set(), set())
    await apache.call("bookie.register", bookie=ONE, readonly=False, info=INFO_FACTS)
    await expect_told(listings, {ONE}, set())
    await apache.call("bookie.register", bookie=TWO, readonly=True, info=INFO_FACTS)
    await expect_told(listings, {ONE}, {TWO})
    await apache.call("bookie.unregister", bookie=ONE, readonly=False)
    await expect_told(listings, set(), {TWO})
    await apache.call("bookie.unregister", bookie=TWO, readonly=True)
    await expect_told(listings, set(), set())


async def test_a_java_bookie_that_is_killed_leaves_our_list_when_its_session_is_over(
    site: Site, cluster: Cluster, tmp_path: Path
) -> None:
    doomed = JavaPeer(tmp_path / "doomed.log")
    try:
        listings = cluster.bookies.follow()
        async with doomed.open(site.uri(), session_timeout_s=SESSION_TIMEOUT_S) as apache:
            await apache.call("bookie.register", bookie=ONE, readonly=False, info=INFO_FACTS)
            await expect_told(listings, {ONE}, set())
            doomed.kill()
            assert (await cluster.bookies.listing()).writable == {ONE}, "nobody has said goodbye for it"
            await expect_told(listings, set(), set())
    finally:
        doomed.kill()


async def test_java_is_told_when_we_change_a_ledger(cluster: Cluster, apache: ApacheCluster) -> None:
    """The first thing that a Java listener is told is how the ledger is now; the last, that it is gone."""
    stored = await cluster.ledgers.create(next(samples()))
    ledger = stored.ledger_id

    async def next_told() -> dict[str, object]:
        answer: dict[str, object] = await apache.call(
            "ledger.await_change", ledger=ledger, within_ms=round(TOLD_WITHIN_S * 1000)
        )
        return answer

    await apache.call("ledger.watch", ledger=ledger)
    assert (await next_told())["version"] == stored.version
    assert stored.metadata.state is LedgerState.OPEN
    changed = await cluster.ledgers.update(stored, lambda metadata: replace(metadata, state=LedgerState.IN_RECOVERY))
    news = await next_told()
    assert news["version"] == changed.version
    assert told(news["metadata"])[0] == facts(changed.metadata)  # type: ignore[arg-type]
    await cluster.ledgers.remove(ledger)
    assert await next_told() == {}


async def test_we_are_told_when_java_changes_a_ledger(cluster: Cluster, apache: ApacheCluster) -> None:
    stored = await cluster.ledgers.create(next(samples()))
    async with cluster.ledgers.watch(stored.ledger_id) as watch, asyncio.timeout(TOLD_WITHIN_S):
        await apache.call("ledger.start_recovery", ledger=stored.ledger_id)
        await watch.wait_changed()
        changed = await cluster.ledgers.read(stored.ledger_id)
        assert changed.metadata.state is LedgerState.IN_RECOVERY
        await apache.call("ledger.remove", ledger=stored.ledger_id, version=changed.version)
        await watch.wait_changed()
        with pytest.raises(NoSuchLedger):
            await cluster.ledgers.read(stored.ledger_id)
