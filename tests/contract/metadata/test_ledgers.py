"""Ledger metadata over any store, in every layout."""

import asyncio
from collections.abc import Callable

import pytest

from quire.errors import (
    DamagedMetadata,
    InvalidArgument,
    LedgerExists,
    NoSuchLedger,
    NotInitialised,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, Cluster, MetadataStore, Version
from quire.metadata.ledgers import Ledgers
from quire.runtime import SystemRng
from quire.types import EntryId, LedgerId, LedgerMetadata, LedgerState
from tests.contract.metadata.backends import Backend
from tests.contract.metadata.clusters import BOOKIES, LAYOUTS, new_cluster, some_metadata

Change = Callable[[LedgerMetadata], LedgerMetadata | None]


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


@pytest.fixture(params=LAYOUTS)
async def cluster(backend: Backend, store: MetadataStore, request: pytest.FixtureRequest) -> Cluster:
    return await new_cluster(backend, store, request.param)


@pytest.fixture
async def hierarchical(backend: Backend, store: MetadataStore) -> Cluster:
    return await new_cluster(backend, store, "hierarchical")


async def test_a_created_ledger_reads_back(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata(custom={"app": b"\x00x"}))
    stored = await cluster.ledgers.read(created.ledger_id)
    assert stored.metadata == created.metadata
    assert stored.version == created.version
    assert stored.metadata.custom == {"app": b"\x00x"}


@pytest.mark.parametrize("format_version", [1, 2, 3])
async def test_an_update_keeps_the_stored_format_version(cluster: Cluster, format_version: int) -> None:
    legacy = {"password": None, "digest": None, "quorum": some_metadata().quorum} if format_version == 1 else {}
    metadata = some_metadata(format_version=format_version, **legacy)
    created = await cluster.ledgers.create(metadata)
    updated = await cluster.ledgers.update(created, _close_at(41))
    stored = await cluster.ledgers.read(created.ledger_id)
    assert stored.metadata == updated.metadata
    assert stored.metadata.format_version == format_version
    assert (stored.metadata.state, stored.metadata.last_entry_id) == (LedgerState.CLOSED, 41)
    assert stored.metadata.ctoken == 0
    raw = (await cluster.store.get(cluster.ledgers.path(created.ledger_id))).data
    assert raw.startswith(b"BookieMetadataFormatVersion\t%d\n" % format_version)


def _close_at(last_entry_id: int) -> Change:
    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        if metadata.state is LedgerState.CLOSED:
            return None
        return metadata.updated(state=LedgerState.CLOSED, last_entry_id=EntryId(last_entry_id), length=1000)

    return change


async def test_new_ids_differ_and_scans_find_them_in_order(cluster: Cluster) -> None:
    created = await asyncio.gather(*(cluster.ledgers.create(some_metadata()) for _ in range(12)))
    ids = [ledger.ledger_id for ledger in created]
    assert len(set(ids)) == 12
    assert [ledger async for ledger in cluster.ledgers.scan()] == sorted(ids)


async def test_clients_never_make_the_same_id(backend: Backend, cluster: Cluster) -> None:
    other = Ledgers(await backend.open(), cluster.uri.root, cluster.layout, SystemRng())
    created = await asyncio.gather(
        *(ledgers.create(some_metadata()) for ledgers in (cluster.ledgers, other) for _ in range(8))
    )
    assert len({ledger.ledger_id for ledger in created}) == 16


CHOSEN = [0, 7, 12345, 2147483646, 2147483647, 4294967296, 1234567890123456789, 9223372036854775807]


async def test_chosen_ids_of_every_size_are_stored_found_and_removed(cluster: Cluster) -> None:
    for number in reversed(CHOSEN):
        await cluster.ledgers.create(some_metadata(), with_id=number)
    assert [ledger async for ledger in cluster.ledgers.scan()] == CHOSEN
    for number in CHOSEN:
        assert (await cluster.ledgers.read(LedgerId(number))).ledger_id == number
        await cluster.ledgers.remove(LedgerId(number))
    assert [ledger async for ledger in cluster.ledgers.scan()] == []


async def test_a_chosen_id_that_is_taken_is_refused(cluster: Cluster) -> None:
    await cluster.ledgers.create(some_metadata(custom={"mine": b"1"}), with_id=7)
    with pytest.raises(LedgerExists):
        await cluster.ledgers.create(some_metadata(), with_id=7)
    assert (await cluster.ledgers.read(LedgerId(7))).metadata.custom == {"mine": b"1"}
    for impossible in (-1, 2**63):
        with pytest.raises(InvalidArgument):
            await cluster.ledgers.create(some_metadata(), with_id=impossible)


async def test_generated_ids_step_over_chosen_ones(hierarchical: Cluster) -> None:
    cluster = hierarchical
    first = (await cluster.ledgers.create(some_metadata())).ledger_id
    for ahead in range(1, 4):
        await cluster.ledgers.create(some_metadata(), with_id=first + ahead)
    second = (await cluster.ledgers.create(some_metadata())).ledger_id
    assert second > first + 3


async def test_a_stale_write_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata())
    version = await cluster.ledgers.write(created.ledger_id, some_metadata(), expected=created.version)
    with pytest.raises(VersionConflict):
        await cluster.ledgers.write(
            created.ledger_id, some_metadata(state=LedgerState.IN_RECOVERY), expected=created.version
        )
    stored = await cluster.ledgers.read(created.ledger_id)
    assert (stored.version, stored.metadata.state) == (version, LedgerState.OPEN)


async def test_absent_ledgers_are_named(cluster: Cluster) -> None:
    with pytest.raises(NoSuchLedger, match="99"):
        await cluster.ledgers.read(LedgerId(99))
    with pytest.raises(NoSuchLedger, match="99"):
        await cluster.ledgers.write(LedgerId(99), some_metadata(), expected=Version(0))
    await cluster.ledgers.remove(LedgerId(99))  # Gone is gone.


async def test_racing_updates_lose_nothing(backend: Backend, cluster: Cluster) -> None:
    """Each of many tasks on two clients adds its own key; all must be there in the end."""
    other = Ledgers(await backend.open(), cluster.uri.root, cluster.layout, SystemRng())
    created = await cluster.ledgers.create(some_metadata())

    def adding(key: str) -> Change:
        return lambda metadata: metadata.updated(custom={**metadata.custom, key: b""})

    await asyncio.gather(
        *(
            ledgers.update(created, adding(f"{client}-{number}"))
            for client, ledgers in enumerate((cluster.ledgers, other))
            for number in range(6)
        )
    )
    assert len((await cluster.ledgers.read(created.ledger_id)).metadata.custom) == 12


async def test_an_update_that_is_not_needed_any_more_writes_nothing(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata())
    closed = await cluster.ledgers.update(created, _close_at(5))
    again = await cluster.ledgers.update(created, _close_at(9))  # From the stale copy.
    assert again.version == closed.version
    assert again.metadata.last_entry_id == 5


async def test_an_update_may_refuse(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata())

    def refuse(_: LedgerMetadata) -> LedgerMetadata:
        raise VersionConflict("cannot be merged")

    with pytest.raises(VersionConflict, match="merged"):
        await cluster.ledgers.update(created, refuse)


async def test_a_removal_leaves_no_empty_folders(cluster: Cluster) -> None:
    before = (await cluster.store.children(cluster.uri.root)).names
    await cluster.ledgers.create(some_metadata(), with_id=12345)
    await cluster.ledgers.create(some_metadata(), with_id=12346)
    await cluster.ledgers.remove(LedgerId(12345))
    assert [ledger async for ledger in cluster.ledgers.scan()] == [12346]
    await cluster.ledgers.remove(LedgerId(12346))
    assert (await cluster.store.children(cluster.uri.root)).names == before


async def test_a_watch_wakes_on_an_update(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata())
    async with cluster.ledgers.watch(created.ledger_id) as watch, asyncio.timeout(10):
        await cluster.ledgers.update(created, _close_at(1))
        await watch.wait_changed()


async def test_damaged_metadata_is_named_and_never_written_over(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata())
    path = cluster.ledgers.path(created.ledger_id)
    await cluster.store.set(path, b"garbage", expected=ANY_VERSION)
    with pytest.raises(DamagedMetadata, match=str(created.ledger_id)):
        await cluster.ledgers.read(created.ledger_id)
    with pytest.raises(DamagedMetadata):
        await cluster.ledgers.update(created, _close_at(1))
    assert (await cluster.store.get(path)).data == b"garbage"


async def test_a_scan_of_nothing_is_empty_and_of_a_lost_cluster_an_error(cluster: Cluster) -> None:
    assert [ledger async for ledger in cluster.ledgers.scan()] == []
    await cluster.store.delete_tree(cluster.uri.root)
    with pytest.raises(NotInitialised):
        [ledger async for ledger in cluster.ledgers.scan()]


async def test_a_scan_passes_over_what_is_no_ledger(cluster: Cluster) -> None:
    ledger = (await cluster.ledgers.create(some_metadata())).ledger_id
    folder = cluster.ledgers.path(ledger).rpartition("/")[0]
    for stray in ("stray", "L12", "Lxxxx", "4"):
        await cluster.store.create(f"{folder}/{stray}")
    assert [found async for found in cluster.ledgers.scan()] == [ledger]


async def test_ensembles_of_later_fragments_are_kept(cluster: Cluster) -> None:
    created = await cluster.ledgers.create(some_metadata())
    fragment = type(created.metadata.fragments[0])(EntryId(100), BOOKIES[1:4])
    await cluster.ledgers.update(created, lambda metadata: metadata.updated(fragments=(*metadata.fragments, fragment)))
    metadata = (await cluster.ledgers.read(created.ledger_id)).metadata
    assert metadata.ensemble_at(EntryId(99)) == BOOKIES[:3]
    assert metadata.ensemble_at(EntryId(100)) == BOOKIES[1:4]


# --- Ids beyond 31 bits


async def test_once_idgen_long_exists_ids_have_a_high_half(backend: Backend, hierarchical: Cluster) -> None:
    store, root = hierarchical.store, hierarchical.uri.root
    first = (await hierarchical.ledgers.create(some_metadata())).ledger_id
    assert first < 2**31
    await store.create(f"{root}/idgen-long")
    ids = [(await hierarchical.ledgers.create(some_metadata())).ledger_id for _ in range(3)]
    assert ids == [4294967296, 4294967297, 4294967298]
    for high in (2, 3, 4, 5):
        await store.create(f"{root}/idgen-long/HOB-{high:010d}")
    await store.create(f"{root}/idgen-long/HOB-junk")
    other = Ledgers(await backend.open(), root, hierarchical.layout, SystemRng())
    assert (await other.create(some_metadata())).ledger_id == 5 << 32
    assert (await hierarchical.ledgers.create(some_metadata())).ledger_id == 5 << 32 | 1
    names = (await store.children(f"{root}/idgen-long")).names
    assert [name for name in names if name != "HOB-junk"] == [f"HOB-{high:010d}" for high in (3, 4, 5)]
    scanned = [ledger async for ledger in hierarchical.ledgers.scan()]
    assert scanned == sorted([first, *ids, 5 << 32, 5 << 32 | 1])
