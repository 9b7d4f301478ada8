"""Damage moves the counters that alerts look at: each is scraped before and after it happens, and the rule evaluated.

The bookies are real, on simulated disks that lose, refuse and alter bytes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import pytest
from prometheus_client import generate_latest

from quire.errors import QuireError
from quire.ledger.client import LedgerClient, open_ledgers
from quire.replication.autorecovery import open_autorecovery
from quire.replication.settings import AutorecoverySettings
from quire.telemetry.metrics import Registry
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import EntryId, LedgerId
from tests.support.monitoring.monitored import QUIET, alerts, joined, scraped
from tests.support.monitoring.promql import Series, evaluate
from tests.support.simulation.ledgers import SETTINGS
from tests.support.simulation.world import STORE_SETTINGS, URI

RULES: Final = {alert.name: alert.query.text for alert in alerts()}
PAYLOAD: Final = b"payload of an entry"


class Cluster:
    """Bookies and a client; `add_bookie` makes one more."""

    def __init__(
        self, sim: Simulation, bookies: list[SimBookie], ledgers: LedgerClient, add_bookie: Callable[[str], SimBookie]
    ) -> None:
        self.sim, self.bookies, self.ledgers, self.add_bookie = sim, bookies, ledgers, add_bookie

    async def write(self) -> LedgerId:
        """A closed ledger of one entry on all bookies, in their entry logs."""
        count = len(self.bookies)
        async with self.ledgers.create(ensemble=count, write_quorum=count, ack_quorum=count) as writer:
            await writer.append(PAYLOAD)
        await asyncio.sleep(2.0)
        for bookie in self.bookies:
            await bookie.stop()  # What it read is in no cache afterwards.
            await bookie.start()
        await asyncio.sleep(1.0)  # Until the client has heard of all.
        return writer.id

    async def read(self, ledger_id: LedgerId) -> None:
        async with self.ledgers.open(ledger_id) as reader:
            with pytest.raises(QuireError):
                await reader.read_entry(EntryId(0))


def damage_entry(bookie: SimBookie) -> None:
    """Flip a bit of the payload, wherever it is."""
    disk, count = bookie.host.disk, 0
    for path in disk.sizes("/data/entries"):
        at = bytes(disk._content(path).visible[:]).find(PAYLOAD)
        if at >= 0:
            disk.flip_bit(path, at)
            count += 1
    assert count > 0


def in_cluster(check: Callable[[Cluster], Awaitable[None]], *, bookies: int = 1) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            started = [SimBookie(sim, f"b{number}", cluster) for number in range(bookies)]
            for bookie in started:
                await bookie.start()
            runtime = sim.host("client").runtime
            async with open_ledgers(URI, settings=SETTINGS, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers:
                await check(Cluster(sim, started, ledgers, lambda name: SimBookie(sim, name, cluster)))
            for bookie in started:
                if bookie.is_running:
                    await bookie.stop()

    simulate(1, main)


def scrape(registry: Registry, minute: int) -> list[Series]:
    return scraped(generate_latest(registry).decode(), minute * 60.0, instance="one")


def fires(alert: str, *scrapes: list[Series]) -> bool:
    series = joined(*scrapes)
    return bool(evaluate(RULES[alert], series, max(when for each in series for when, _ in each.points)))


def moved(before: list[Series], after: list[Series]) -> dict[str, float]:
    """What has another value now, of the counters that are about damage."""

    def values(scrape: Iterable[Series]) -> dict[str, float]:
        return {each.name: each.points[0][1] for each in scrape if each.name in QUIET}

    old = values(before)
    return {name: value - old[name] for name, value in values(after).items() if value != old[name]}


def test_an_entry_that_does_not_check_is_counted_by_its_bookie_and_by_the_reader() -> None:
    async def check(cluster: Cluster) -> None:
        ledger = await cluster.write()
        registries = [cluster.bookies[0].bookie.metrics.registry, cluster.ledgers.metrics.registry]
        first = [scrape(each, 0) for each in registries]
        damage_entry(cluster.bookies[0])
        assert [fires("QuireBookieDamage", first[0]), fires("QuireReadsFail", first[1])] == [False, False]
        await cluster.read(ledger)
        second = [scrape(each, 1) for each in registries]
        assert moved(first[0], second[0]).keys() == {"quire_bookie_damaged_entries_total"}
        told = {"quire_ledger_read_failures_total": 1, "quire_ledger_damaged_copies_total": 1}
        assert moved(first[1], second[1]) == told
        assert fires("QuireBookieDamage", first[0], second[0])
        assert fires("QuireReadsFail", first[1], second[1])
        assert fires("QuireDamagedCopies", first[1], second[1])

    in_cluster(check)


@pytest.mark.parametrize("operation", ["read", "sync"])
def test_a_disk_that_refuses_is_counted(operation: str) -> None:
    """A read that fails is answered; after a flush that fails the bookie stops."""

    async def check(cluster: Cluster) -> None:
        ledger = await cluster.write()
        bookie = cluster.bookies[0].bookie
        first = scrape(bookie.metrics.registry, 0)
        faults = cluster.bookies[0].host.disk.faults
        if operation == "read":
            faults.fail_next("read", times=1000)
            await cluster.read(ledger)
        else:
            faults.fail_next("sync")
            with pytest.raises(QuireError):
                async with cluster.ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
                    await writer.append(b"lost")
        second = scrape(bookie.metrics.registry, 1)
        assert moved(first, second).keys() == {"quire_bookie_disk_errors_total"}
        assert fires("QuireBookieDamage", first, second)
        assert not fires("QuireBookieDamage", first)

    in_cluster(check)


def test_damage_in_the_journal_is_counted_by_the_start_that_finds_it() -> None:
    """The counter begins anew with each process: the rule sees the zero of the one before."""

    async def check(cluster: Cluster) -> None:
        bookie = cluster.bookies[0]
        first = scrape(bookie.bookie.metrics.registry, 0)
        async with cluster.ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            for _ in range(20):
                await writer.append(PAYLOAD)
            await bookie.crash()
            disk, count = bookie.host.disk, 0
            for path in disk.sizes("/journal0"):
                content = bytes(disk._content(path).visible[:])
                if content.count(PAYLOAD) > 1:
                    disk.flip_bit(path, content.find(PAYLOAD))
                    count += 1
            assert count > 0
            await bookie.start()
            second = scrape(bookie.bookie.metrics.registry, 1)
        assert moved(first, second).keys() == {"quire_bookie_journal_damages_total"}
        assert fires("QuireBookieDamage", first, second)

    in_cluster(check)


def test_a_repair_that_finds_no_intact_copy_is_counted() -> None:
    """Method: of three copies one is on a bookie that is gone for good, and the others are damaged."""

    async def check(cluster: Cluster) -> None:
        await cluster.write()
        for bookie in cluster.bookies[:2]:
            damage_entry(bookie)
        spare = cluster.add_bookie("spare")
        await spare.start()
        settings = AutorecoverySettings(failure_pause_s=0.5, idle_s=1.0)
        runtime = cluster.sim.host("autorecovery").runtime
        async with open_autorecovery(
            URI,
            name="auditor",
            settings=settings,
            ledger_settings=SETTINGS,
            store_settings=STORE_SETTINGS,
            runtime=runtime,
        ) as autorecovery:
            first = scrape(autorecovery.metrics.registry, 0)
            running = asyncio.create_task(autorecovery.run())
            await cluster.bookies[2].crash()
            while not autorecovery.metrics.unreadable.value:  # noqa: ASYNC110 - virtual time, and nobody tells
                await asyncio.sleep(1.0)
            running.cancel()
            await asyncio.wait([running])
            second = scrape(autorecovery.metrics.registry, 1)
        assert moved(first, second).keys() == {
            "replication_replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION"
        }
        assert fires("QuireCopiesUnreadable", first, second)
        assert not fires("QuireCopiesUnreadable", first)
        await spare.stop()

    in_cluster(check, bookies=3)
