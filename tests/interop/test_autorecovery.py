"""Autorecovery of both makers on bookies of both makers: marks and locks of one are read by the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from quire.codec.underreplication import encode_lock, lock_path
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import ANY_VERSION, Cluster, open_cluster
from quire.metadata.underreplication import Underreplication
from quire.replication.autorecovery import open_autorecovery
from quire.replication.settings import AutorecoverySettings
from quire.runtime import real_runtime
from quire.types import BookieId, LedgerId, LedgerMetadata, bookie_id
from tests.interop.ensembles import Bookies, kinds
from tests.interop.shell import BookieShell
from tests.support.servers.apache_autorecovery import apache_autorecovery
from tests.support.servers.quire_bookie import QuireBookie
from tests.support.simulation.copies import check_whole
from tests.support.waiting import eventually

ENTRIES = [b"entry %d" % number * 20 for number in range(40)]
SETTINGS = AutorecoverySettings(open_ledger_grace_s=1.0, failed_ledger_backoff_s=16.0, failure_pause_s=0.5, idle_s=2.0)
PATIENCE_S = 90.0


class Scene:
    """Ledgers on two of three bookies, and what the metadata says of them."""

    def __init__(self, cluster: Cluster, ledgers: LedgerClient) -> None:
        self.cluster, self.ledgers = cluster, ledgers
        self.marks = Underreplication(cluster.store, cluster.uri.root, real_runtime(), "quire-test")

    async def closed_ledger(self) -> LedgerId:
        async with self.ledgers.create(ensemble=2, write_quorum=2, ack_quorum=2) as writer:
            await writer.append_many(ENTRIES)
            return writer.id

    async def ledgers_with(self, bookie: BookieId, count: int) -> list[LedgerId]:
        """Ledgers that have entries on this bookie."""
        found: list[LedgerId] = []
        while len(found) < count:
            ledger_id = await self.closed_ledger()
            if bookie in (await self.metadata(ledger_id)).fragments[0].bookies:
                found.append(ledger_id)
        return found

    async def open_ledger_with(self, bookie: BookieId, stack: AsyncExitStack) -> LedgerWriter:
        """The writer of a ledger that is open until the stack is closed."""
        while True:
            writer = await stack.enter_async_context(self.ledgers.create(ensemble=2, write_quorum=2, ack_quorum=2))
            await writer.append_many(ENTRIES)
            if bookie in (await self.metadata(writer.id)).fragments[0].bookies:
                return writer

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return (await self.cluster.ledgers.read(ledger_id)).metadata

    async def names(self, ledger_id: LedgerId, bookie: str) -> bool:
        return any(bookie in fragment.bookies for fragment in (await self.metadata(ledger_id)).fragments)

    async def forget(self, bookie: BookieId) -> None:
        """A bookie that was killed is no part of the cluster any more, which other tests share."""

        async def has_gone() -> bool:
            listing = await self.cluster.bookies.listing()
            return bookie not in listing.writable | listing.readonly

        await eventually(has_gone, within_s=PATIENCE_S, what=f"the session of {bookie} has ended")
        stored = await self.cluster.bookies.cookie(bookie)
        assert stored is not None
        await self.cluster.bookies.delete_cookie(bookie, expected=stored.version)

    async def wait_repaired(self, ledger_id: LedgerId, victim: str) -> None:
        """No fragment names the victim, the mark is gone, and every copy is there."""

        async def repaired() -> bool:
            return not await self.names(ledger_id, victim) and await self.marks.read_mark(ledger_id) is None

        await eventually(repaired, within_s=PATIENCE_S, what=f"ledger {ledger_id} is repaired")
        listing = await self.cluster.bookies.listing()
        stored = await self.cluster.ledgers.read(ledger_id)
        assert await check_whole(self.ledgers, stored, listing.writable | listing.readonly) is None
        async with self.ledgers.open(ledger_id) as reader:
            assert [entry.payload async for entry in reader.read()] == ENTRIES

    async def wait_gone(self, bookie: str) -> None:
        async def gone() -> bool:
            listing = await self.cluster.bookies.listing()
            return bookie not in listing.writable | listing.readonly

        await eventually(gone, within_s=PATIENCE_S, what=f"{bookie} is not registered any more")


@asynccontextmanager
async def scene(bookies: Bookies) -> AsyncIterator[Scene]:
    async with open_cluster(bookies.uri) as cluster, open_ledgers(bookies.uri) as ledgers:
        found = Scene(cluster, ledgers)
        await found.marks.prepare()
        try:
            yield found
        finally:
            await found.marks.enable()


@pytest.mark.timeout(400)
@kinds("quire")
async def test_apaches_autorecovery_repairs_ledgers_on_our_bookies(bookies: Bookies, tmp_path: Path) -> None:
    """Its auditor marks, its worker copies; it leaves alone what we have locked, and we see what it has locked."""
    victim = bookies.members[0]
    async with scene(bookies) as stage, AsyncExitStack() as stack:
        first, second = await stage.ledgers_with(BookieId(victim.name), 2)
        lock = f"{stage.cluster.uri.root}/underreplication/{lock_path(second)}"
        await stage.cluster.store.create(lock, encode_lock("quire-test"), ephemeral=True)
        stack.enter_context(apache_autorecovery(tmp_path, bookies.uri, openLedgerRereplicationGracePeriod=600_000))

        async def elected() -> bool:
            return await stage.marks.auditor() == "apache-autorecovery"

        await eventually(elected, within_s=PATIENCE_S, what="Apache's auditor is elected")
        writer = await stage.open_ledger_with(BookieId(victim.name), stack)
        victim.kill()
        await stage.wait_repaired(first, victim.name)

        async def marked() -> bool:
            return await stage.marks.read_mark(second) is not None

        await eventually(marked, within_s=PATIENCE_S, what="Apache's auditor marks")
        mark = await stage.marks.read_mark(second)
        assert mark is not None
        assert mark.replicas == (victim.name,)
        assert await stage.names(second, victim.name), "we hold its lock"

        async def waits() -> bool:
            return await stage.marks.lock_holder(writer.id) is not None

        await eventually(waits, within_s=PATIENCE_S, what="Apache's worker waits for the writer of an open ledger")
        assert (await stage.metadata(writer.id)).fragments[-1].bookies == writer.metadata.metadata.fragments[-1].bookies
        await stage.cluster.store.delete(lock, expected=ANY_VERSION)
        await stage.wait_repaired(second, victim.name)


@pytest.mark.timeout(400)
@kinds("apache")
async def test_our_autorecovery_repairs_ledgers_on_apaches_bookies(bookies: Bookies, shell: BookieShell) -> None:
    """What we mark, Apache's shell lists; what we repaired, its shell shows as we do."""
    victim = bookies.members[0]
    async with scene(bookies) as stage:
        first, second = await stage.ledgers_with(BookieId(victim.name), 2)
        await stage.marks.disable()
        victim.kill()
        await stage.wait_gone(victim.name)
        await stage.marks.mark(first, [victim.name])
        listed = await shell.run(bookies.uri, "listunderreplicated", "-printmissingreplica")
        assert listed.code == 0, listed.text
        assert first in listed.ledgers()
        assert victim.name in listed.text
        async with open_autorecovery(bookies.uri, name="quire-autorecovery", settings=SETTINGS) as autorecovery:
            running = asyncio.create_task(autorecovery.run())
            try:
                await stage.marks.enable()
                await stage.wait_repaired(first, victim.name)
                await stage.wait_repaired(second, victim.name)
                who = await shell.run(bookies.uri, "whoisauditor")
                assert "quire-autorecovery" in who.text, who.text
            finally:
                running.cancel()
                await asyncio.wait([running])
        shown = await shell.run(bookies.uri, "ledgermetadata", "-ledgerid", str(first))
        assert shown.code == 0, shown.text
        for bookie in (await stage.metadata(first)).fragments[0].bookies:
            assert bookie in shown.text
        assert victim.name not in shown.text
        left = await shell.run(bookies.uri, "listunderreplicated")
        assert not {first, second} & set(left.ledgers())


@pytest.mark.timeout(400)
@kinds("quire")
async def test_apaches_autorecovery_mends_a_vacant_place_where_there_is_another_bookie(
    bookies: Bookies, tmp_path: Path
) -> None:
    """A bookie of three was away while its place stayed vacant, and is back. Our writer has marked the ledger. Apache's
    workers give no bookie back what it lacks: they leave the ledger as it is, and marked, until a fourth one comes."""
    victim, fourth = bookies.members[0], QuireBookie(tmp_path / "quire-4", bookies.uri, "quire-4")
    async with scene(bookies) as stage, AsyncExitStack() as stack:
        async with stage.ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
            victim.kill()
            await writer.append_many(ENTRIES)
        ledger_id, before = writer.id, await stage.metadata(writer.id)
        mark = await stage.marks.read_mark(ledger_id)
        assert mark is not None
        assert mark.replicas == (victim.name,)
        victim.launch()
        await asyncio.to_thread(victim.wait_ready)
        log = stack.enter_context(apache_autorecovery(tmp_path, bookies.uri))

        async def has_tried() -> bool:
            return "BKNotEnoughBookiesException" in await asyncio.to_thread(log.read_text)

        await eventually(has_tried, within_s=PATIENCE_S, what="Apache's worker has found nobody")
        assert await stage.metadata(ledger_id) == before
        assert await stage.marks.read_mark(ledger_id) is not None
        stack.callback(fourth.kill)
        fourth.launch()
        await asyncio.to_thread(fourth.wait_ready)
        await stage.wait_repaired(ledger_id, victim.name)
        await stage.ledgers.delete(ledger_id)
        fourth.kill()
        await stage.forget(bookie_id("quire-4"))
