"""Apache's own bookie, from the jars that `make interop` fetched, with its answers as durable as in production."""

from enum import StrEnum
from pathlib import Path

from tests.support.servers.bookie_process import SESSION_MS, BookieProcess
from tests.support.servers.jvm import java_command


class Storage(StrEnum):
    """How the bookie keeps its entries. They differ in a few answers: see the tests that name one of them."""

    SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
    ROCKSDB = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"


class ApacheBookie(BookieProcess):
    """`bookkeeper bookie` in a small JVM."""

    def __init__(self, folder: Path, uri: str, name: str, *, storage: Storage = Storage.SORTED) -> None:
        super().__init__(folder, uri, name)
        self._storage = storage

    def command(self) -> list[str]:
        configuration = self.folder / "bookie.conf"
        lines = [f"{name}={value}" for name, value in self._settings().items()]
        configuration.write_text("\n".join(lines) + "\n")
        return java_command("org.apache.bookkeeper.server.Main", "-c", str(configuration), heap_mb=256)

    def _settings(self) -> dict[str, object]:
        return {
            "metadataServiceUri": self.uri,
            "zkTimeout": SESSION_MS,
            "bookieId": self.name,
            "bookiePort": self.port,
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "journalDirectories": self.folder / "journal",
            "ledgerDirectories": self.folder / "ledgers",
            "ledgerStorageClass": self._storage,
            "journalSyncData": "true",
            "journalMaxGroupWaitMSec": 1,
            # By default each of these takes a good part of the machine.
            "journalPreAllocSizeMB": 4,
            "dbStorage_writeCacheMaxSizeMb": 16,
            "dbStorage_readAheadCacheMaxSizeMb": 16,
            "dbStorage_rocksDB_blockCacheSize": 4 * 2**20,
            "skipListSizeLimit": 16 * 2**20,
            "serverNumIOThreads": 2,
            "numAddWorkerThreads": 1,
            "numReadWorkerThreads": 1,
            "numHighPriorityWorkerThreads": 1,
            # The disk of a test machine may be nearly full; that is not what is tested here.
            "diskUsageThreshold": 0.9999,
            "diskUsageWarnThreshold": 0.9998,
            "diskUsageLwmThreshold": 0.9997,
            "httpServerEnabled": "false",
            "enableStatistics": "false",
        }
