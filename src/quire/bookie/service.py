"""What a bookie does for its clients, whichever version of the protocol they speak.

Connections turn frames into these calls and answers into frames. What takes time is answered through a callback, so
that a request costs no task of its own: an entry that is in memory is answered before the call returns.

Invariants, of those in the ledger protocol:
  DurableFirst     an add, a fence or an explicit LAC is answered only once its record is durable.
  FenceFirst       a fencing read is answered, also in the negative, only once its fence is durable.
  NeverFalseNo     ENOENTRY and ENOLEDGER are said only where the storage is certain. Damage is EUNKNOWNLEDGERSTATE, a
                   disk that does not read is EIO.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from quire.bookie.ledger_state import LacWaiter
from quire.bookie.ledger_storage import Absence, LedgerStorage
from quire.bookie.metrics import BookieMetrics
from quire.bookie.read_queue import Answer, ReadQueue
from quire.bookie.settings import ServerSettings
from quire.codec.wire.codes import Status
from quire.errors import Damaged, DamagedEntry, InvalidArgument, InvariantBroken
from quire.protocol.fencing import Refusal
from quire.protocol.space import SpaceMode
from quire.runtime import Runtime
from quire.telemetry.events import Seldom, logger
from quire.types import NO_ENTRY, EntryId, LedgerId

_LOG = logger("bookie.service")
_CONNECTION_LOG = logger("bookie.connection")

_RECEIVED_BYTES_MAX: Final = 256 * 1024  # In one go. With 512 KiB small entries cost a fifth more: caches overflow.

_OF_REFUSAL: Final = {
    Refusal.WRONG_KEY: Status.EUA,
    Refusal.FENCED: Status.EFENCED,
    Refusal.IN_LIMBO: Status.EUNKNOWNLEDGERSTATE,  # A writer replaces this bookie, and goes on.
    Refusal.GONE: Status.ENOLEDGER,
}
_OF_ABSENCE: Final = {
    Absence.NO_ENTRY: Status.ENOENTRY,
    Absence.NO_LEDGER: Status.ENOLEDGER,
    Absence.UNKNOWN: Status.EUNKNOWNLEDGERSTATE,
}

ReadReply = Callable[[Status, bytes | None], None]


class ClientConnection(Protocol):
    """A connection, as far as its requests need one."""

    peer: str
    waiters: dict[LacWaiter, tuple[LedgerId, asyncio.TimerHandle]]

    @property
    def is_open(self) -> bool:
        """Whether an answer may still be sent."""

    @property
    def is_congested(self) -> bool:
        """Whether so much is unsent that nothing should be read for it."""

    def park(self, again: Callable[[], None]) -> None:
        """Call this when it is not congested any more."""

    def hold_reading(self, reason: str) -> None:
        """Take no more requests until `release_reading`."""

    def release_reading(self, reason: str) -> None:
        """Take requests again."""

    def when_durable(self, ledger_id: LedgerId, number: int, then: Callable[[], None]) -> None:
        """Call `then` when the journal of the ledger is durable so far."""

    def on_durable(self, journal: int, number: int) -> bool:
        """Answer what waited for this. Returns whether more waits."""

    def on_written(self, journal: int, number: int) -> None:
        """Answer what waited for no more than this."""

    def abort(self) -> None:
        """Close at once, without what is unsent."""


class BookieService:
    """The storage as connections use it. `storage` is set before the first connection is accepted."""

    def __init__(
        self, runtime: Runtime, settings: ServerSettings, metrics: BookieMetrics, *, journal_count: int
    ) -> None:
        self.runtime, self.settings, self.metrics = runtime, settings, metrics
        self.mode = SpaceMode.WRITABLE
        self.is_stopping = False
        self.connections: dict[ClientConnection, None] = {}
        self.half_frames: dict[ClientConnection, int] = {}  # Bytes of frames whose end has not come yet, oldest first.
        self._half_bytes = 0
        self._awaiting: list[dict[ClientConnection, None]] = [{} for _ in range(journal_count)]
        self._throttled: dict[ClientConnection, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lac_askers: dict[LedgerId, list[Callable[[EntryId | Status], None]]] = {}
        self.checkpoint_wanted = asyncio.Event()
        self.tell_refused = Seldom(_CONNECTION_LOG.warning, "connection.refused")
        self.tell_violation = Seldom(_CONNECTION_LOG.warning, "connection.protocol_violation")
        self.tell_tls_failed = Seldom(_CONNECTION_LOG.warning, "connection.tls_failed")
        self._tell_half_frame = Seldom(_LOG.warning, "connection.half_frame_dropped")
        self._tell_digest_mismatch = Seldom(_LOG.warning, "add.digest_mismatch")
        self.received = memoryview(bytearray(_RECEIVED_BYTES_MAX))  # What one connection at a time has just received.
        self._storage: LedgerStorage | None = None
        self._reads: ReadQueue | None = None

    def attach(self, storage: LedgerStorage) -> None:
        self._storage, self._reads = storage, ReadQueue(storage, self.spawn)

    @property
    def storage(self) -> LedgerStorage:
        if self._storage is None:
            raise InvariantBroken("the bookie serves before its storage is open")
        return self._storage

    @property
    def reads(self) -> ReadQueue:
        if self._reads is None:
            raise InvariantBroken("the bookie serves before its storage is open")
        return self._reads

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the bookie."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("task.failed", error=repr(error), exc_info=error)

    async def aclose(self) -> None:
        """End every task."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- Durability and backpressure

    def await_durable(self, journal: int, connection: ClientConnection) -> None:
        self._awaiting[journal][connection] = None

    def on_durable(self, journal: int, number: int) -> None:
        """The journal is durable up to `number`: whoever waits for that is answered, a write for each connection."""
        awaiting, self._awaiting[journal] = self._awaiting[journal], {}
        for connection in awaiting:
            if connection.on_durable(journal, number):
                self._awaiting[journal][connection] = None
        if self._throttled:
            self.release_throttled()

    def on_written(self, journal: int, number: int) -> None:
        """The journal's file has the records up to `number`, though a power cut may still take them."""
        for connection in self._awaiting[journal]:
            connection.on_written(journal, number)

    def throttle(self, connection: ClientConnection) -> None:
        """More waits than should: read no more from this client until there is room."""
        self.metrics.storage.writes_throttled.value += 1
        self._throttled[connection] = None
        connection.hold_reading("room")
        self.checkpoint_wanted.set()

    def release_throttled(self) -> None:
        if self._throttled and self.storage.has_room:
            released, self._throttled = self._throttled, {}
            for connection in released:
                connection.release_reading("room")

    def on_half_frame(self, connection: ClientConnection, size: int) -> None:
        """Keep what unfinished frames take in all within bounds: whoever has been sending one for longest goes.

        Say 0 before the size of a frame that is another one than before.
        """
        self._half_bytes += size - self.half_frames.get(connection, 0)
        if size == 0:
            self.half_frames.pop(connection, None)
            return
        self.half_frames[connection] = size
        while self._half_bytes > self.settings.half_frames_bytes_max and len(self.half_frames) > 1:
            oldest = next(iter(self.half_frames))
            now_s = asyncio.get_running_loop().time()
            self._tell_half_frame(now_s, peer=oldest.peer, bytes=self.half_frames[oldest])
            self._half_bytes -= self.half_frames.pop(oldest)
            oldest.abort()

    def on_lost(self, connection: ClientConnection) -> None:
        self.connections.pop(connection, None)
        self._throttled.pop(connection, None)
        self.on_half_frame(connection, 0)
        for awaiting in self._awaiting:
            awaiting.pop(connection, None)

    # --- Writing

    def add(
        self,
        ledger_id: LedgerId,
        entry_id: EntryId,
        lac: EntryId,
        entry: bytes,
        master_key: bytes,
        *,
        recovery: bool,
        priority: bool,
        deferred: bool = False,
    ) -> int | Status:
        """The number whose durability acknowledges the entry, or why it is not stored."""
        if self.mode is not SpaceMode.WRITABLE and not (priority and self.mode is SpaceMode.READ_ONLY):
            return Status.EREADONLY
        try:
            result = self.storage.add(ledger_id, entry_id, lac, entry, master_key, recovery=recovery, deferred=deferred)
        except InvalidArgument:
            return Status.EBADREQ
        except DamagedEntry as error:
            self.metrics.damage.entries.value += 1
            self._tell_digest_mismatch(asyncio.get_running_loop().time(), **error.facts)
            return Status.EBADREQ
        except (OSError, Damaged):
            return Status.EIO  # The journal has failed, and the bookie is about to stop; or the index does not read.
        return result if isinstance(result, int) else _OF_REFUSAL[result]

    def write_lac(self, ledger_id: LedgerId, packet: bytes, master_key: bytes) -> int | Status:
        """The number whose durability acknowledges an explicit LAC, or why it is not stored."""
        if self.mode is not SpaceMode.WRITABLE:
            return Status.EREADONLY
        try:
            result = self.storage.write_lac(ledger_id, packet, master_key)
        except (InvalidArgument, DamagedEntry):
            return Status.EBADREQ
        except (OSError, Damaged):
            return Status.EIO
        return result if isinstance(result, int) else _OF_REFUSAL[result]

    # --- Reading

    def read(self, connection: ClientConnection, ledger_id: LedgerId, entry_id: EntryId, reply: ReadReply) -> None:
        """Tell `reply` the entry, -1 being the last one, or a status. It may be told before this returns."""
        if entry_id == NO_ENTRY:
            last = self.last_entry(ledger_id)
            if isinstance(last, Status):
                reply(last, None)
                return
            entry_id = last
        elif entry_id < 0 or ledger_id < 0:
            reply(Status.EBADREQ, None)
            return
        if connection.is_congested:
            connection.park(lambda: self.read(connection, ledger_id, entry_id, reply))
            return
        body = self.storage.cached(ledger_id, entry_id)
        if body is not None:
            reply(Status.EOK, body)
        elif not self.reads.ask(
            ledger_id, entry_id, lambda answer: self._tell(connection, ledger_id, entry_id, reply, answer)
        ):
            self.metrics.requests.reads_rejected.value += 1
            reply(Status.ETOOMANYREQUESTS, None)

    def _tell(
        self, connection: ClientConnection, ledger_id: LedgerId, entry_id: EntryId, reply: ReadReply, answer: Answer
    ) -> None:
        if connection.is_congested:  # Its client reads too slowly to hold the entry for it: ask again later.
            connection.park(lambda: self.read(connection, ledger_id, entry_id, reply))
        elif isinstance(answer, bytes):
            reply(Status.EOK, answer)
        else:
            reply(self.status_of(answer, ledger_id, entry_id), None)

    def status_of(self, answer: Absence | Exception, ledger_id: LedgerId, entry_id: EntryId = NO_ENTRY) -> Status:
        """What to answer where there is no entry."""
        if isinstance(answer, Absence):
            return _OF_ABSENCE[answer]
        if isinstance(answer, Damaged):
            self.metrics.damage.entries.value += 1
            _LOG.error("read.damaged", error=str(answer), ledger_id=ledger_id, entry_id=entry_id)
            return Status.EUNKNOWNLEDGERSTATE
        if isinstance(answer, OSError):
            self.metrics.damage.disk_errors.value += 1
            _LOG.error("read.disk_error", error=str(answer), ledger_id=ledger_id, entry_id=entry_id)
            return Status.EIO
        _LOG.error("read.failed", error=repr(answer), ledger_id=ledger_id, entry_id=entry_id)
        return Status.EIO

    def last_entry(self, ledger_id: LedgerId) -> EntryId | Status:
        """The highest entry id that is here, or why there is none to tell."""
        if ledger_id < 0:
            return Status.EBADREQ
        try:
            last = self.storage.last_entry_id(ledger_id)
        except (OSError, Damaged) as error:
            return self.status_of(error, ledger_id)
        return _OF_ABSENCE[last] if isinstance(last, Absence) else last

    def fence(
        self, connection: ClientConnection, ledger_id: LedgerId, master_key: bytes | None, then: Callable[[], None]
    ) -> Status | None:
        """Fence a ledger, and go on with `then` once that is durable. A status if it may not be fenced."""
        if master_key is None:
            return Status.EUA
        try:
            result = self.storage.fence(ledger_id, master_key)
        except InvalidArgument:
            return Status.EBADREQ
        except (OSError, Damaged):
            return Status.EIO
        if isinstance(result, Refusal):
            return _OF_REFUSAL[result]
        connection.when_durable(ledger_id, result, then)
        return None

    # --- The LAC

    def explicit_lac(self, ledger_id: LedgerId) -> bytes | Status | None:
        """The LAC packet last written, None if there is none, or why that cannot be told."""
        try:
            return self.storage.explicit_lac(ledger_id) if ledger_id >= 0 else None
        except (OSError, Damaged) as error:
            return self.status_of(error, ledger_id)

    def with_lac(self, ledger_id: LedgerId, then: Callable[[EntryId | Status], None]) -> None:
        """Tell `then` the highest LAC known of a ledger: at once, or after one look-up for all who ask meanwhile."""
        known = self.storage.known_lac(ledger_id)
        if known is not None:
            then(known)
        elif ledger_id in self._lac_askers:
            self._lac_askers[ledger_id].append(then)
        else:
            self._lac_askers[ledger_id] = [then]
            self.spawn(self._look_up_lac(ledger_id))

    async def _look_up_lac(self, ledger_id: LedgerId) -> None:
        answer: EntryId | Status
        try:
            found = await self.storage.lac(ledger_id) if ledger_id >= 0 else Absence.NO_LEDGER
            answer = _OF_ABSENCE[found] if isinstance(found, Absence) else found
        except (OSError, Damaged) as error:
            answer = self.status_of(error, ledger_id)
        finally:
            askers = self._lac_askers.pop(ledger_id)
        for then in askers:
            then(answer)

    def wait_for_lac(
        self,
        connection: ClientConnection,
        ledger_id: LedgerId,
        previous: EntryId,
        wait_s: float,
        then: Callable[[bool], None],
    ) -> None:
        """Call `then` when the LAC passes `previous` (True), or when it is time, or the ledger is fenced or deleted."""
        if not connection.is_open:
            return  # The client left while the LAC was being looked up. Nobody would ever take the waiter away.

        def wake(has_passed: bool) -> None:
            timer.cancel()
            connection.waiters.pop(waiter, None)
            then(has_passed)

        def give_up() -> None:
            self.storage.stop_waiting(ledger_id, waiter)
            wake(False)

        waiter = LacWaiter(previous, wake)
        timer = asyncio.get_running_loop().call_later(wait_s, give_up)
        connection.waiters[waiter] = (ledger_id, timer)
        if not self.storage.wait_for_lac(ledger_id, waiter):
            wake(False)
