"""Java and Python make ledger ids on one ZooKeeper: each goes on where the other stopped, and no id comes twice."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from quire.metadata import ANY_VERSION, Cluster, open_cluster
from quire.metadata.ledger_ids import LedgerIds
from quire.runtime import real_runtime
from tests.interop.conftest import Site
from tests.interop.ledger_samples import order, samples
from tests.interop.peer import ApacheCluster, JavaPeer

LONG_ID_START = 2**32  # The first id that the long generator makes.
MAKERS_PER_SIDE = 2
IDS_PER_MAKER = 50

hierarchical_layouts = pytest.mark.parametrize("layout", ["hierarchical", "longhierarchical"])


def ids_of(cluster: Cluster) -> LedgerIds:
    return LedgerIds(cluster.store, cluster.uri.root, cluster.layout, real_runtime().rng)


async def make_ids_side_by_side(java: JavaPeer, site: Site) -> list[int]:
    """The ids that several makers of each side got at the same time, each with a session of its own."""
    async with AsyncExitStack() as stack:
        clusters = [await stack.enter_async_context(open_cluster(site.uri())) for _ in range(MAKERS_PER_SIDE)]
        apaches = [await stack.enter_async_context(java.open(site.uri())) for _ in range(MAKERS_PER_SIDE)]

        async def ours(cluster: Cluster) -> list[int]:
            ids = ids_of(cluster)
            return [await ids.next_id() for _ in range(IDS_PER_MAKER)]

        async def theirs(apache: ApacheCluster) -> list[int]:
            made: list[int] = await apache.call("ids.next", count=IDS_PER_MAKER)
            return made

        made = await asyncio.gather(*map(ours, clusters), *map(theirs, apaches))
    for each in made:
        assert each == sorted(each)
    return [number for each in made for number in each]


async def test_each_side_continues_the_counter_of_the_other(cluster: Cluster, apache: ApacheCluster) -> None:
    ids = ids_of(cluster)
    made: list[int] = []
    for _ in range(5):
        made += [await ids.next_id(), await ids.next_id()]
        made += await apache.call("ids.next", count=3)
    first = made[0]
    assert made == list(range(first, first + 25))
    if cluster.layout != "flat":  # There the root's own children were counted before.
        assert first == 0


async def test_no_id_comes_twice_when_both_sides_make_ids_at_once(java: JavaPeer, site: Site, cluster: Cluster) -> None:
    made = await make_ids_side_by_side(java, site)
    assert len(set(made)) == len(made) == 2 * MAKERS_PER_SIDE * IDS_PER_MAKER
    assert max(made) - min(made) == len(made) - 1
    names = (await cluster.store.children(cluster.uri.root)).names
    assert not [name for name in names if name.startswith("ID-")]


async def test_ledgers_that_are_created_on_both_sides_get_ids_of_their_own(
    cluster: Cluster, apache: ApacheCluster
) -> None:
    """In the flat layout the ledgers' own nodes use up numbers too: ids may be skipped, but never repeated."""
    metadata = next(samples())
    made: list[int] = []
    for _ in range(4):
        made.append((await cluster.ledgers.create(metadata)).ledger_id)
        made += await apache.call("ids.next", count=1)
        await apache.call("ledger.create", ledger=made[-1], metadata=order(metadata))
    assert made == sorted(set(made))
    assert [ledger async for ledger in cluster.ledgers.scan()] == await apache.call("ledger.list") == made


@hierarchical_layouts
async def test_the_long_generator_is_shared_once_idgen_long_exists(
    java: JavaPeer, site: Site, cluster: Cluster
) -> None:
    """What an overflow of the short ids leaves behind is `idgen-long`; from then on ids have a high half."""
    await ids_of(cluster).next_id()
    await cluster.store.create(f"{site.root}/idgen-long")
    made = await make_ids_side_by_side(java, site)
    assert len(set(made)) == len(made)
    assert sorted(made) == list(range(LONG_ID_START, LONG_ID_START + len(made)))
    assert (await cluster.store.children(f"{site.root}/idgen-long")).names == ("HOB-0000000001",)


@hierarchical_layouts
async def test_both_sides_take_the_greatest_high_half_and_keep_three(
    java: JavaPeer, site: Site, cluster: Cluster
) -> None:
    await cluster.store.create(f"{site.root}/idgen-long")
    ids = ids_of(cluster)
    for high in range(1, 7):
        await cluster.store.create(f"{site.root}/idgen-long/HOB-{high:010d}")
        if high == 3:
            await cluster.store.create(f"{site.root}/idgen-long/HOB-else")  # Nobody's: both sides pass over it.
        async with java.open(site.uri()) as apache:
            theirs = await apache.call("ids.next", count=2)
        ours = [await ids.next_id(), await ids.next_id()]
        assert [*theirs, *ours] == [(high << 32) + low for low in range(4)]
    names = (await cluster.store.children(f"{site.root}/idgen-long")).names
    assert names == ("HOB-0000000004", "HOB-0000000005", "HOB-0000000006", "HOB-else")


@hierarchical_layouts
async def test_a_java_client_that_has_not_noticed_the_switch_still_makes_other_ids(
    java: JavaPeer, site: Site, cluster: Cluster, apache: ApacheCluster
) -> None:
    """A Java client looks for `idgen-long` once. Its short ids go on below the long ones of everybody else."""
    short = await apache.call("ids.next", count=2)
    await cluster.store.create(f"{site.root}/idgen-long")
    ours = [await ids_of(cluster).next_id() for _ in range(2)]
    short += await apache.call("ids.next", count=2)
    async with java.open(site.uri()) as late:
        late_ids = await late.call("ids.next", count=2)
    assert short == [0, 1, 2, 3]
    assert [*ours, *late_ids] == [LONG_ID_START + low for low in range(4)]
    await cluster.store.delete(
        f"{site.root}/idgen-long/HOB-0000000001", expected=ANY_VERSION
    )  # Nothing was left in it.
