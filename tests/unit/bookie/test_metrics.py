"""A bookie's metrics: all of them there from the start, under the names that BookKeeper's dashboards use."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from quire.bookie.metrics import READONLY, UNREGISTERED, WRITABLE, BookieMetrics
from quire.telemetry import names


def text_of(metrics: BookieMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_a_new_bookie_exposes_every_declared_metric() -> None:
    """Absent until the first event would mean no alert on it, and no rate of it, in time.

    Only the space of folders waits until there are folders, and the twin histogram until there are requests.
    """
    metrics = BookieMetrics(lambda: 0.0)
    families = {family.name for family in text_string_to_metric_families(text_of(metrics))}
    late = {names.DISK_FREE_BYTES.name, names.DISK_TOTAL_BYTES.name}
    prefixes = (
        "bookkeeper_client_",
        "quire_ledger_",
        "quire_stream_",
        "quire_read_proxy_",
        "quire_write_proxy_",
        "quire_proxy_",
        "quire_serving_",
        "quire_gateway_",
        "quire_autorecovery_",
        "replication_",
    )
    of_clients = {name for name in names.DECLARED if name.startswith(prefixes)}
    assert families == set(names.DECLARED) - late - of_clients
    metrics.disks.watch("ledgers/0", free_bytes=lambda: 7, total_bytes=lambda: 9)
    assert '\nquire_bookie_disk_free_bytes{folder="ledgers/0"} 7.0' in text_of(metrics)
    assert '\nquire_bookie_disk_total_bytes{folder="ledgers/0"} 9.0' in text_of(metrics)


def test_the_status_is_unregistered_until_told() -> None:
    metrics = BookieMetrics(lambda: 0.0)
    assert (WRITABLE, READONLY, UNREGISTERED) == (1, 0, -1)
    assert "\nbookie_SERVER_STATUS -1.0\n" in text_of(metrics)
    metrics.status.value = WRITABLE
    assert "\nbookie_SERVER_STATUS 1.0\n" in text_of(metrics)


def test_each_journal_has_its_index() -> None:
    metrics = BookieMetrics(lambda: 0.0, journal_count=2)
    metrics.journals[0].sync.ok.observe(0.004)
    metrics.journals[1].add_entry.ok.observe(0.003, 8)
    metrics.journals[1].queue_records.value = 5
    text = text_of(metrics)
    assert '\nbookie_journal_JOURNAL_SYNC_count{journalIndex="0",success="true"} 1.0' in text
    assert '\nbookie_journal_JOURNAL_SYNC_count{journalIndex="1",success="true"} 0.0' in text
    assert '\nbookie_journal_JOURNAL_ADD_ENTRY_count{journalIndex="1",success="true"} 8.0' in text
    assert '\nbookie_journal_JOURNAL_QUEUE_SIZE{journalIndex="1"} 5.0' in text
