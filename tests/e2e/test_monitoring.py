"""The dashboard and the alert rules: every metric that they name exists, and moves when something happens."""

import asyncio
import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import generate_latest
from tests.support.documents import ROOT
from tests.support.monitoring.monitored import QUIET, RUNBOOKS, alerts, dashboard_queries, dashboards, samples
from tests.support.servers.local_cluster import LocalCluster
from tests.support.servers.small_bookies import SmallCluster, small_cluster
from tests.support.waiting import eventually

from quire.replication.autorecovery import Autorecovery, open_autorecovery
from quire.replication.settings import AutorecoverySettings
from quire.stream.namespace import Namespace, open_namespace
from quire.telemetry.names import DECLARED, Declared, Kind
from quire.types import LedgerId

QUERIES: Final = [*dashboard_queries(), *(alert.query for alert in alerts())]
NAMED: Final = {name for query in QUERIES for name in query.metrics}
LIVE_BYTES: Final = "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES"
OF_PROXIES: Final = ("quire_write_proxy_", "quire_read_proxy_")


def exposed(declared: Declared) -> set[str]:
    """What its samples are called."""
    match declared.kind:
        case Kind.HISTOGRAM:
            return {f"{declared.name}_{ending}" for ending in ("bucket", "count", "sum")}
        case Kind.OPERATION:
            return {declared.name, f"{declared.name}_count", f"{declared.name}_sum"}
        case _:
            return {declared.name}


# --- The files


def test_every_metric_that_is_named_is_declared() -> None:
    known = {name: declared for declared in DECLARED.values() for name in exposed(declared)}
    assert len(NAMED) > 40
    for query in QUERIES:
        assert query.metrics or query.text.startswith("up{"), query
        assert query.metrics <= known.keys(), query
        for name, labels in query.labels.items():
            declared = known.get(name)
            own = {"job"} if declared is None else {*declared.labels, "operation", "success", "quantile", "le"}
            assert labels <= own, query


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    """As far as a test without Grafana can tell: ids, places and sources of panels."""
    ((path, dashboard),) = dashboards()
    assert (path.name, dashboard["title"]) == ("quire.json", "Quire")
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["targets"]
            assert panel["description"]
            assert panel["datasource"]["uid"] == "${source}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    headings = re.findall(r"^## (Quire\w+)$", (ROOT / RUNBOOKS).read_text(), re.MULTILINE)
    assert [alert.name for alert in alerts()] == headings
    for alert in alerts():
        assert alert.runbook == f"{RUNBOOKS}#{alert.name.lower()}"
        assert alert.severity in ("page", "ticket")


# --- What they name moves


async def scrape(url: str) -> str:
    def fetch() -> str:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read(), "utf-8")

    return await asyncio.to_thread(fetch)


class Watched:
    """All samples of a cluster, now and then: what changed, and what was ever there."""

    def __init__(self) -> None:
        self.seen: dict[str, set[float]] = {}

    def add(self, found: Counter[str]) -> None:
        for name in found.keys() | NAMED:  # What has a label for each kind of answer is not there before the first one.
            self.seen.setdefault(name, set()).add(float(found[name]))

    def still(self, names: set[str]) -> set[str]:
        """Those that never changed, or were never there."""
        return {name for name in names if len(self.seen.get(name, ())) < 2}


async def look(watched: Watched, cluster: SmallCluster, namespace: Namespace, auto: Autorecovery) -> None:
    total = samples(generate_latest(namespace.context.ledgers.metrics.registry).decode())
    total.update(samples(generate_latest(auto.metrics.registry).decode()))
    for bookie in cluster.running.values():
        assert bookie.admin_address is not None
        total.update(samples(await scrape(f"http://127.0.0.1:{bookie.admin_address[1]}/metrics")))
    assert total.keys() >= QUIET, "there from the start"
    watched.add(total)


@pytest.mark.timeout(240)
async def test_bookies_clients_and_autorecovery_move_what_is_shown_of_them(tmp_path: Path) -> None:
    """Method: write and read a stream, let a second writer take it over, stop a bookie in the middle, wait until its
    copies are elsewhere, then delete all but a little. Look now and then."""
    watched = Watched()
    settings = AutorecoverySettings(open_ledger_grace_s=0.5, idle_s=0.5)
    async with (
        small_cluster(tmp_path / "cluster", bookies=4) as cluster,
        open_autorecovery(cluster.metadata, name="auditor", settings=settings) as auto,
        open_namespace(cluster.uri) as namespace,
    ):
        running = asyncio.create_task(auto.run())
        await look(watched, cluster, namespace, auto)
        ledgers = await write_and_lose_a_bookie(watched, cluster, namespace, auto)
        for ledger in ledgers:
            await namespace.context.ledgers.delete(ledger)
        mine = {name for name in NAMED if not name.startswith(OF_PROXIES)} - QUIET

        async def has_moved() -> bool:
            await look(watched, cluster, namespace, auto)
            return not watched.still(mine)

        try:
            await eventually(has_moved, within_s=60)
        except AssertionError:
            raise AssertionError(f"these never moved: {sorted(watched.still(mine))}") from None
        finally:
            running.cancel()
            await asyncio.wait([running])
    for name in QUIET:
        assert watched.seen[name] == {0.0}, name


async def write_and_lose_a_bookie(
    watched: Watched, cluster: SmallCluster, namespace: Namespace, auto: Autorecovery
) -> list[LedgerId]:
    payload = bytes(4096)
    async with namespace.context.ledgers.create() as kept:  # In the entry logs of others: for compaction to save.
        await kept.append(payload)
    async with namespace.open_writer("orders", write_lock=False) as writer:
        await writer.append_many([payload] * 100)
        async with namespace.open_reader("orders") as reader:
            assert len(await reader.read_many(50)) > 0
        members = namespace.context.ledgers.ledgers_metadata
        info = await namespace.stream_info("orders")
        lost = (await members.read(info.segments[-1].ledger_id)).metadata.fragments[-1].bookies[0]
        await look(watched, cluster, namespace, auto)
        await cluster.stop(int(lost.rpartition("-")[2]))
        await writer.append_many([payload] * 500)
        await look(watched, cluster, namespace, auto)
        async with namespace.open_writer("orders", write_lock=False) as second:
            await second.append(b"mine")
            with pytest.raises(Exception, match="orders"):
                await writer.append(b"not mine any more")

    async def is_repaired() -> bool:
        await look(watched, cluster, namespace, auto)
        return auto.metrics.bytes_written.value > 0 and auto.metrics.repaired.value > 0

    async def is_counted() -> bool:
        await look(watched, cluster, namespace, auto)
        return not watched.still({LIVE_BYTES})

    await eventually(is_repaired, within_s=60, what="the lost copies are elsewhere")
    # Once the ledgers are deleted, a first survey would compact what is alive into a log that surveys leave out.
    await eventually(is_counted, within_s=60, what="a survey counted what is alive")
    async with namespace.open_reader("orders") as reader:
        assert (await reader.read_many(10))[0].payload == payload
    return [each.ledger_id for each in (await namespace.stream_info("orders")).segments]


@pytest.mark.timeout(240)
async def test_proxies_move_what_is_shown_of_them(tmp_path: Path) -> None:
    """Method: real proxies, a writer and a reader through them."""
    watched = Watched()
    with LocalCluster(tmp_path, proxies=1) as cluster:
        admins = [each["admin"] for each in cluster.wait_for("started")["services"] if "proxy" in each["name"]]

        async def look() -> None:
            total = Counter[str]()
            for admin in admins:
                total.update(samples(await scrape(f"http://{admin}/metrics")))
            watched.add(total)

        await look()
        async with cluster.connect() as client, client.open_writer("orders") as writer:
            await writer.append_many([b"paid"] * 100)
            await look()
            async with client.open_reader("orders") as reader:
                assert len(await reader.read_many(10)) > 0
                await look()
        await look()
        still = watched.still({name for name in NAMED if name.startswith(OF_PROXIES)})
    assert still <= {"quire_write_proxy_status"}, (
        "it changes when a proxy is drained: see tests/e2e/test_proxy_command.py"
    )
    assert watched.seen["quire_write_proxy_status"] == {100.0}
