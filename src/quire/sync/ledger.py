"""Ledgers for blocking code: the client, both kinds of writers, and readers."""

from collections.abc import Generator, Iterable, Mapping, Sequence

from quire.codec.entry import Entry
from quire.ledger import client as async_client
from quire.ledger.metrics import LedgerMetrics
from quire.ledger.reading import reader as async_reader
from quire.ledger.reading.reader import LedgerEntry
from quire.ledger.reading.statistics import ReaderStatistics
from quire.ledger.settings import LedgerSettings
from quire.ledger.statistics import LedgerStatistics, WriterStatistics
from quire.ledger.writing import advanced as async_advanced
from quire.ledger.writing import writer as async_writer
from quire.metadata import StoredLedger
from quire.sync.handles import Handle, Scope
from quire.sync.loop_thread import LoopThread
from quire.sync.mirror import mirror_of
from quire.types import DigestType, EntryId, LedgerId


@mirror_of(async_writer.LedgerWriter)
class LedgerWriter(Handle):
    """A ledger that is being written, by as many threads as you like. Made by `LedgerClient.create`."""

    def __init__(self, thread: LoopThread, scope: Scope, writer: async_writer.LedgerWriter) -> None:
        super().__init__(thread, scope)
        self._writer = writer

    @property
    def id(self) -> LedgerId:
        return self._writer.id

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._writer.last_add_confirmed

    @property
    def acknowledged(self) -> EntryId:
        return self._writer.acknowledged

    @property
    def last_add_pushed(self) -> EntryId:
        return self._writer.last_add_pushed

    @property
    def metadata(self) -> StoredLedger:
        return self._writer.metadata

    @property
    def is_idle(self) -> bool:
        return self._writer.is_idle

    def statistics(self) -> WriterStatistics:
        return self._ask(self._writer.statistics)

    def append(self, payload: bytes) -> EntryId:
        return self._call(lambda: self._writer.append(payload))

    def append_many(self, payloads: Sequence[bytes]) -> list[EntryId]:
        return self._call(lambda: self._writer.append_many(payloads))

    def enqueue(self, payloads: Sequence[bytes]) -> list[EntryId]:
        return self._call(lambda: self._writer.enqueue(payloads))

    def flush(self) -> EntryId:
        return self._call(self._writer.flush)

    def force(self) -> EntryId:
        return self._call(self._writer.force)

    def wait_acknowledged(self, first: EntryId, last: EntryId) -> None:
        self._call(lambda: self._writer.wait_acknowledged(first, last))

    def close(self, *, drain: bool = True) -> None:
        try:
            if not self._scope.is_closed:
                self._call(lambda: self._writer.close(drain=drain))
        finally:
            self._leave(None)


@mirror_of(async_advanced.AdvancedWriter)
class AdvancedWriter(Handle):
    """A ledger that is being written with ids of the application. Made by `LedgerClient.create_advanced`.

    An entry is acknowledged when all before it are: append entries that wait for each other from several threads, or
    with one `append_many`.
    """

    def __init__(self, thread: LoopThread, scope: Scope, writer: async_advanced.AdvancedWriter) -> None:
        super().__init__(thread, scope)
        self._writer = writer

    @property
    def id(self) -> LedgerId:
        return self._writer.id

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> EntryId:
        return self._writer.last_add_pushed

    @property
    def metadata(self) -> StoredLedger:
        return self._writer.metadata

    def statistics(self) -> WriterStatistics:
        return self._ask(self._writer.statistics)

    def append(self, entry_id: int, payload: bytes) -> EntryId:
        return self._call(lambda: self._writer.append(entry_id, payload))

    def append_many(self, entries: Iterable[tuple[int, bytes]]) -> list[EntryId]:
        listed = list(entries)  # Here: what a caller's generator does is the caller's thread's.
        return self._call(lambda: self._writer.append_many(listed))

    def flush(self) -> EntryId:
        return self._call(self._writer.flush)

    def force(self) -> EntryId:
        return self._call(self._writer.force)

    def close(self, *, drain: bool = True) -> None:
        try:
            if not self._scope.is_closed:
                self._call(lambda: self._writer.close(drain=drain))
        finally:
            self._leave(None)


@mirror_of(async_reader.LedgerReader)
class LedgerReader(Handle):
    """A ledger that is read. Made by `LedgerClient.open`. Each iterator is for one thread at a time."""

    def __init__(self, thread: LoopThread, scope: Scope, reader: async_reader.LedgerReader) -> None:
        super().__init__(thread, scope)
        self._reader = reader

    @property
    def id(self) -> LedgerId:
        return self._reader.id

    @property
    def metadata(self) -> StoredLedger:
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        return self._reader.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._reader.last_add_confirmed

    @property
    def length(self) -> int:
        return self._reader.length

    def statistics(self) -> ReaderStatistics:
        return self._ask(self._reader.statistics)

    def read(self, first: int = 0, last: int | None = None) -> Generator[LedgerEntry]:
        return self._iterate(lambda: self._reader.read(first, last))

    def read_unconfirmed(self, first: int, last: int) -> Generator[LedgerEntry]:
        return self._iterate(lambda: self._reader.read_unconfirmed(first, last))

    def read_entry(self, entry_id: EntryId) -> Entry:
        return self._call(lambda: self._reader.read_entry(entry_id), is_wait=True)

    def read_last_add_confirmed(self) -> EntryId:
        return self._call(self._reader.read_last_add_confirmed, is_wait=True)

    def try_last_add_confirmed(self) -> EntryId:
        return self._call(self._reader.try_last_add_confirmed, is_wait=True)

    def wait_entry(self, entry_id: int, *, timeout_s: float) -> LedgerEntry | None:
        return self._call(lambda: self._reader.wait_entry(entry_id, timeout_s=timeout_s), is_wait=True)

    def follow(self, first: int = 0) -> Generator[LedgerEntry]:
        return self._iterate(lambda: self._reader.follow(first))

    def follow_windows(self, first: int = 0) -> Generator[list[Entry]]:
        return self._iterate(lambda: self._reader.follow_windows(first))

    def limit_read_ahead(self, bytes_max: int) -> None:
        self._ask(lambda: self._reader.limit_read_ahead(bytes_max))

    def close(self) -> None:
        self._leave(None)


@mirror_of(async_client.LedgerClient)
class LedgerClient(Handle):
    """All ledgers of one cluster. Made by `quire.sync.ledgers`."""

    def __init__(self, thread: LoopThread, scope: Scope, client: async_client.LedgerClient) -> None:
        super().__init__(thread, scope)
        self._client = client

    @property
    def settings(self) -> LedgerSettings:
        """What it was opened with."""
        return self._client.settings

    @property
    def metrics(self) -> LedgerMetrics:
        """For `metrics.registry`, which may be read from any thread."""
        return self._client.metrics

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> LedgerWriter:
        return self._open(
            lambda: self._client.create(
                ensemble=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=digest,
                password=password,
                custom=custom,
                ledger_id=ledger_id,
                deferred_sync=deferred_sync,
            ),
            LedgerWriter,
            "the writer of a ledger",
        )

    def create_advanced(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
        deferred_sync: bool = False,
    ) -> AdvancedWriter:
        return self._open(
            lambda: self._client.create_advanced(
                ensemble=ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest=digest,
                password=password,
                custom=custom,
                ledger_id=ledger_id,
                deferred_sync=deferred_sync,
            ),
            AdvancedWriter,
            "the writer of a ledger",
        )

    def open(
        self, ledger_id: int, *, password: bytes = b"", recover: bool = True, keep_metadata: bool = False
    ) -> LedgerReader:
        return self._open(
            lambda: self._client.open(ledger_id, password=password, recover=recover, keep_metadata=keep_metadata),
            LedgerReader,
            f"the reader of ledger {ledger_id}",
        )

    def recover(self, ledger_id: int, *, password: bytes | None = None) -> StoredLedger:
        return self._call(lambda: self._client.recover(ledger_id, password=password))

    def delete(self, ledger_id: int) -> None:
        self._call(lambda: self._client.delete(ledger_id))

    def scan(self) -> Generator[LedgerId]:
        return self._iterate(self._client.scan)

    def statistics(self) -> LedgerStatistics:
        return self._ask(self._client.statistics)

    @staticmethod
    def id_of(number: int) -> LedgerId:
        return async_client.LedgerClient.id_of(number)

    # --- Its end

    def close(self) -> None:
        self._leave(None)
