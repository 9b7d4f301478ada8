"""A batch read: entries one after the other, as far as they are here without a gap and fit into one answer."""

from collections.abc import Callable

from quire.bookie.connection import BookieConnection
from quire.codec.wire.codes import Status
from quire.codec.wire.v2 import BATCH_ENTRY_BYTES, BATCH_ENVELOPE_BYTES
from quire.types import EntryId, LedgerId


class BatchRead:
    """One batch in the making. The first entry is returned whatever its size; an error of a later one ends the batch.

    `entries_max` of 0 or less means any number, `bytes_max` of 0 or less one entry.
    """

    def __init__(
        self,
        connection: BookieConnection,
        ledger_id: LedgerId,
        first: EntryId,
        *,
        entries_max: int,
        bytes_max: int,
        answer: Callable[[Status, list[bytes]], None],
    ) -> None:
        self._connection, self._ledger_id, self._next = connection, ledger_id, first
        self._entries_max, self._bytes_max, self._tell = entries_max, bytes_max, answer
        self._bytes = BATCH_ENVELOPE_BYTES
        self._entries: list[bytes] = []

    def start(self) -> None:
        """Begin as soon as the connection's other batches allow."""
        if not self._connection.batches.push(self):
            self._connection.service.metrics.requests.reads_rejected.value += 1
            self._tell(Status.ETOOMANYREQUESTS, [])

    def begin(self) -> None:
        service = self._connection.service
        if self._next == -1:  # The last one, and nothing comes after it.
            service.read(self._connection, self._ledger_id, self._next, self._on_last)
        else:
            service.read(self._connection, self._ledger_id, self._next, self._on_entry)

    def _answer(self, status: Status, entries: list[bytes]) -> None:
        self._tell(status, entries)
        self._connection.batches.on_end()

    def _on_last(self, status: Status, body: bytes | None) -> None:
        self._answer(status, [] if body is None else [body])

    def _on_entry(self, status: Status, body: bytes | None) -> None:
        """Take an entry that was asked for, and as many more as are in memory."""
        service = self._connection.service
        while body is not None:
            size = self._bytes + BATCH_ENTRY_BYTES + len(body)
            if self._entries and size > self._bytes_max:
                break
            self._entries.append(body)
            self._bytes = size
            if len(self._entries) == self._entries_max or size >= self._bytes_max:
                break
            self._next = EntryId(self._next + 1)
            body = service.storage.cached(self._ledger_id, self._next)
            if body is None:
                last = service.last_entry(self._ledger_id)
                if isinstance(last, Status) or self._next > last:
                    break
                service.read(self._connection, self._ledger_id, self._next, self._on_entry)
                return
        self._answer(Status.EOK if self._entries else status, self._entries)
