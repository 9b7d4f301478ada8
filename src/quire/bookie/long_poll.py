"""A read that waits for news: until the LAC passes the one that the reader knows, or its time is up.

It answers with the LAC and, if the reader asked for that, with the entry after the one it knows. Running out of time is
no error: the answer is then the LAC as it is. Every other entry id than that of an attached entry stays -1, since that
is how clients tell whether there is one.
"""

from quire.bookie.connection import BookieConnection
from quire.codec.wire import v3
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import ReadFlag, ReadRequest, ReadResponse, Request
from quire.types import NO_ENTRY, EntryId


class LongPoll:
    """One request."""

    def __init__(self, connection: BookieConnection, request: Request, read: ReadRequest) -> None:
        self._connection, self._request, self._read = connection, request, read
        self._previous = NO_ENTRY if read.previous_lac is None else read.previous_lac
        self._timed = connection.timed(connection.service.metrics.requests.long_poll_read)
        self._updated_ms: int | None = None

    def start(self) -> None:
        read, service = self._read, self._connection.service
        if read.flag is ReadFlag.ENTRY_PIGGYBACK and read.entry_id != NO_ENTRY:
            self._answer(Status.EBADREQ, read.entry_id, None, None)
        else:
            service.with_lac(read.ledger_id, self._on_first_lac)

    def _on_first_lac(self, lac: EntryId | Status) -> None:
        read, connection = self._read, self._connection
        if isinstance(lac, Status):
            self._answer(lac, read.entry_id, None, None)
        elif lac > self._previous or read.timeout_ms is None:
            self._on_lac(lac)
        elif len(connection.waiters) >= connection.service.settings.long_polls_max:
            self._answer(Status.ETOOMANYREQUESTS, read.entry_id, None, None)
        else:
            wait_s = max(0, read.timeout_ms) / 1000
            connection.service.wait_for_lac(connection, read.ledger_id, self._previous, wait_s, self._on_woken)

    def _on_woken(self, has_passed: bool) -> None:
        service = self._connection.service
        if has_passed:
            self._updated_ms = service.runtime.clock.wall_ms()
        service.with_lac(self._read.ledger_id, self._on_lac)

    def _on_lac(self, lac: EntryId | Status) -> None:
        """Answer from the present state."""
        read, service = self._read, self._connection.service
        if isinstance(lac, Status):
            self._answer(lac, read.entry_id, None, None)
        elif read.flag is not ReadFlag.ENTRY_PIGGYBACK:
            service.read(
                self._connection,
                read.ledger_id,
                read.entry_id,
                lambda status, body: self._answer(status, read.entry_id, body, lac),
            )
        elif lac > self._previous >= NO_ENTRY:
            wanted = EntryId(self._previous + 1)
            service.read(self._connection, read.ledger_id, wanted, lambda _, body: self._on_entry(wanted, body, lac))
        elif lac == NO_ENTRY and service.storage.is_empty(read.ledger_id):
            self._answer(Status.ENOENTRY, NO_ENTRY, None, None)
        else:
            self._answer(Status.EOK, NO_ENTRY, None, lac)

    def _on_entry(self, wanted: EntryId, body: bytes | None, lac: EntryId) -> None:
        """Without the entry the news of the LAC is still news: another bookie has it."""
        self._answer(Status.EOK, NO_ENTRY if body is None else wanted, body, lac)

    def _answer(self, status: Status, entry_id: EntryId, body: bytes | None, lac: EntryId | None) -> None:
        self._timed(status)
        response = ReadResponse(self._read.ledger_id, entry_id, body, lac, None if lac is None else self._updated_ms)
        self._connection.send(v3.encode_response(self._request.txn_id, status, response))
