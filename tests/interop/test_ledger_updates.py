"""Two programs change one ledger: nothing that either of them did is lost, and both end up with the same ledger."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from quire.errors import VersionConflict
from quire.metadata import Cluster, StoredLedger, open_cluster
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum
from tests.interop.conftest import Site
from tests.interop.ledger_samples import facts, order, told
from tests.interop.peer import ApacheCluster, JavaError, JavaPeer

LEDGER = LedgerId(7)
RACERS_PER_SIDE = 2
CHANGES_PER_RACER = 25
ROUNDS_MAX = 10

pytestmark = pytest.mark.parametrize("layout", ["hierarchical"])  # The layout decides on paths, not on updates.


def new_ledger(version: int, *, ctime_ms: int | None = None) -> LedgerMetadata:
    bookies = (BookieId("bk1:3181"), BookieId("bk2:3181"))
    return LedgerMetadata(
        Quorum(2, 2, 2),
        (Fragment(EntryId(0), bookies),),
        digest=None if version == 1 else DigestType.MAC,
        password=None if version == 1 else b"odd\x00\xff",
        custom={} if version == 1 else {"kept": b"\x00as it is"},
        ctime_ms=ctime_ms,
        format_version=version,
    )


async def add_fragment(cluster: Cluster, stored: StoredLedger, bookie: str) -> StoredLedger:
    """Append a fragment in which `bookie` stands first, however often others write in between."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        last = metadata.fragments[-1]
        if any(bookie in fragment.bookies for fragment in metadata.fragments):
            return None
        added = Fragment(EntryId(last.first_entry_id + 1), (BookieId(bookie), *last.bookies[1:]))
        return replace(metadata, fragments=(*metadata.fragments, added))

    return await cluster.ledgers.update(stored, change)


def first_bookies(metadata: LedgerMetadata) -> list[str]:
    return [fragment.bookies[0] for fragment in metadata.fragments]


@pytest.mark.parametrize(("version", "ctime_ms"), [(1, None), (2, None), (2, 1_700_000_000_000), (3, None), (3, 12)])
async def test_a_ledger_keeps_everything_while_both_sides_change_it_in_turn(
    cluster: Cluster, apache: ApacheCluster, version: int, ctime_ms: int | None
) -> None:
    """Format version, password, custom metadata and the choice to store the creation time survive; the token does not.

    Method: created by us, then fragments from Java and from us in turn, recovery begun by Java, sealed by us.
    """
    created = await cluster.ledgers.create(new_ledger(version, ctime_ms=ctime_ms), with_id=LEDGER)
    stored = created
    for turn in range(4):
        java = await apache.call("ledger.add_fragments", ledger=LEDGER, bookies=[f"java-{turn}"])
        stored = await cluster.ledgers.read(LEDGER)
        assert told(java["metadata"])[0] == facts(stored.metadata)
        assert java["version"] == stored.version
        stored = await add_fragment(cluster, stored, f"quire-{turn}")
    java = await apache.call("ledger.start_recovery", ledger=LEDGER)
    stored = await cluster.ledgers.update(
        await cluster.ledgers.read(LEDGER),
        lambda metadata: metadata.updated(state=LedgerState.CLOSED, last_entry_id=EntryId(8), length=99),
    )
    java = await apache.call("ledger.read", ledger=LEDGER)
    assert told(java["metadata"])[0] == facts(stored.metadata)
    assert first_bookies(stored.metadata) == [
        "bk1:3181",
        *(f"{who}-{n}" for n in range(4) for who in ("java", "quire")),
    ]
    assert stored.metadata == replace(
        created.metadata,
        fragments=stored.metadata.fragments,
        state=LedgerState.CLOSED,
        last_entry_id=EntryId(8),
        length=99,
        ctoken=0,
    )
    assert stored.version == created.version + 10


async def test_custom_metadata_of_both_sides_adds_up(cluster: Cluster, apache: ApacheCluster) -> None:
    stored = await cluster.ledgers.create(new_ledger(3), with_id=LEDGER)
    expected = {"kept"}
    for turn in range(5):
        key = f"quire-{turn}"

        def change(metadata: LedgerMetadata, key: str = key) -> LedgerMetadata | None:
            return None if key in metadata.custom else replace(metadata, custom={**metadata.custom, key: b"\x02"})

        # From the value that Java has made out of date meanwhile: the first write of each turn is refused.
        await apache.call("ledger.stamp", ledger=LEDGER, keys=[f"java-{turn}"])
        stored = await cluster.ledgers.update(stored, change)
        expected |= {key, f"java-{turn}"}
        assert set(stored.metadata.custom) == expected
    java = await apache.call("ledger.read", ledger=LEDGER)
    assert told(java["metadata"])[0] == facts(stored.metadata)


async def test_a_write_against_an_old_version_is_refused_on_both_sides(cluster: Cluster, apache: ApacheCluster) -> None:
    stored = await cluster.ledgers.create(new_ledger(3), with_id=LEDGER)
    java = await apache.call("ledger.add_fragments", ledger=LEDGER, bookies=["java"])
    with pytest.raises(VersionConflict):
        await cluster.ledgers.write(LEDGER, stored.metadata, expected=stored.version)
    newest = await add_fragment(cluster, await cluster.ledgers.read(LEDGER), "quire")
    with pytest.raises(JavaError) as refused:
        await apache.call("ledger.write", ledger=LEDGER, metadata=order(stored.metadata), version=java["version"])
    assert refused.value.name == "BKMetadataVersionException"
    assert await cluster.ledgers.read(LEDGER) == newest


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_no_update_is_lost_in_a_race(java: JavaPeer, site: Site, cluster: Cluster, version: int) -> None:
    """Each racer appends fragments of its own as fast as it can, through its own session.

    A write that ignored the version would overwrite fragments of others, and the number of writes would not add up.
    A round in which one side was done before the other began proves nothing, so there may be more than one.
    """
    async with AsyncExitStack() as stack:
        ours = [await stack.enter_async_context(open_cluster(site.uri())) for _ in range(RACERS_PER_SIDE)]
        theirs = [await stack.enter_async_context(java.open(site.uri())) for _ in range(RACERS_PER_SIDE)]
        for number in range(ROUNDS_MAX):
            created = await cluster.ledgers.create(new_ledger(version), with_id=number)
            end = await race(created, ours, theirs)
            java_end = await theirs[0].call("ledger.read", ledger=number)
            assert told(java_end["metadata"])[0] == facts(end.metadata)
            assert end.version == 2 * RACERS_PER_SIDE * CHANGES_PER_RACER
            found = first_bookies(end.metadata)[1:]
            assert sorted(found) == sorted(
                f"{who}-{racer}-{turn}"
                for who in ("quire", "java")
                for racer in range(RACERS_PER_SIDE)
                for turn in range(CHANGES_PER_RACER)
            )
            sides = [name.partition("-")[0] for name in found]
            if sides not in (sorted(sides), sorted(sides, reverse=True)):
                return
    pytest.fail(f"in {ROUNDS_MAX} rounds the two sides never wrote at the same time")


async def race(created: StoredLedger, ours: list[Cluster], theirs: list[ApacheCluster]) -> StoredLedger:
    async def run_ours(racer: int, cluster: Cluster) -> None:
        stored = created
        for turn in range(CHANGES_PER_RACER):
            stored = await add_fragment(cluster, stored, f"quire-{racer}-{turn}")

    async def run_theirs(racer: int, apache: ApacheCluster) -> None:
        names = [f"java-{racer}-{turn}" for turn in range(CHANGES_PER_RACER)]
        await apache.call("ledger.add_fragments", ledger=created.ledger_id, bookies=names)

    await asyncio.gather(
        *(run_theirs(racer, apache) for racer, apache in enumerate(theirs)),
        *(run_ours(racer, cluster) for racer, cluster in enumerate(ours)),
    )
    return await ours[0].ledgers.read(created.ledger_id)


async def test_of_two_that_seal_a_ledger_the_first_decides_for_both(cluster: Cluster, apache: ApacheCluster) -> None:
    """Recoveries that end differently must not overwrite each other: the second one adopts what is stored."""

    async def ours(stored: StoredLedger) -> int:
        def seal(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if metadata.state is LedgerState.CLOSED:
                return None
            return replace(metadata, state=LedgerState.CLOSED, last_entry_id=EntryId(10), length=1000)

        return (await cluster.ledgers.update(stored, seal)).metadata.last_entry_id

    async def theirs(ledger: LedgerId) -> int:
        sealed = await apache.call("ledger.seal", ledger=ledger, last_entry_id=20, length=2000)
        number: int = sealed["metadata"]["last_entry_id"]
        return number

    for number in range(20):
        metadata = replace(new_ledger(3), state=LedgerState.IN_RECOVERY)
        stored = await cluster.ledgers.create(metadata, with_id=number)
        racers = [ours(stored), theirs(stored.ledger_id)]
        ends = await asyncio.gather(*(racers if number % 2 else reversed(racers)))
        end = (await cluster.ledgers.read(stored.ledger_id)).metadata
        assert ends == [end.last_entry_id] * 2
        assert (end.last_entry_id, end.length) in ((10, 1000), (20, 2000))
