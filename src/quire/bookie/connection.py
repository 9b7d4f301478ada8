"""One client's connection: frames in, answers out, acknowledgements in runs.

The hot path is an add of version 2: every complete frame in what arrived is taken in one loop, and when the journal
reports how far it is durable, all answers up to there leave in one write. Nothing is created for an entry but a tuple.
The kernel writes what arrives into one buffer that all connections share, and an entry is copied from there, once.

Invariants:
  NoViewIsKept      nothing refers to that buffer once `buffer_updated` has returned: the next read overwrites it.
  OneWritePerTurn   answers are collected and written once in a turn of the loop.
  SlowClientsWait   once too much is unsent, reads of this client wait without their entries, and nothing more is read
                    from its socket; what it may hold is bounded.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from quire.bookie.batch_queue import BatchQueue
from quire.bookie.service import BookieService
from quire.codec.digest import Buffer
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import FrameSplitter
from quire.codec.wire.v2_adds import RUN_BYTES_MIN, RUN_START_BYTES, encode_add_oks, run_start
from quire.codec.wire.v3_adds import AddResponses
from quire.errors import ProtocolViolation
from quire.runtime.network import write_parts
from quire.telemetry.events import logger
from quire.telemetry.metrics import OperationStats
from quire.types import EntryId, LedgerId

if TYPE_CHECKING:
    from quire.bookie.ledger_state import LacWaiter

_LOG = logger("bookie.connection")

_WAITING_MAX: Final = 5000  # Fences, explicit LACs and forces of one connection that wait for one journal.
_TASKS_MAX: Final = 1000  # Requests of one connection that wait for a disk in a task of their own.


class _Acks:
    """What one connection waits for in one journal: by number, ascending in each queue."""

    __slots__ = ("answered", "deferred", "noted", "others", "runs", "v2", "v2_arrived", "v3", "v3_arrived")

    def __init__(self) -> None:
        self.v2: deque[tuple[int, LedgerId, Sequence[EntryId]]] = deque()  # Runs: the first number, and the entries.
        self.v2_arrived = 0  # Entries in those, and in all before them.
        self.v3: deque[tuple[int, int, LedgerId, EntryId]] = deque()
        self.v3_arrived = 0
        self.deferred: deque[tuple[int, int, LedgerId, EntryId]] = deque()  # These wait for the write, not the flush.
        self.others: deque[tuple[int, Callable[[], None]]] = deque()
        self.runs: deque[tuple[int, float, int]] = deque()  # For the latency: last number, since when, how many adds.
        self.answered = self.noted = 0  # Adds so far: those that are answered, and those that some run has counted.

    def __bool__(self) -> bool:
        return bool(self.v2 or self.v3 or self.deferred or self.others)


class RequestHandlers(NamedTuple):
    """What carries out requests. Raises `ProtocolViolation` for what is none: the connection is closed."""

    v2_adds: Callable[["BookieConnection", list[memoryview]], None]  # Adds that begin alike: see `RUN_START_BYTES`.
    v2_frame: Callable[["BookieConnection", memoryview], None]
    v3_frame: Callable[["BookieConnection", memoryview], None]


class BookieConnection(asyncio.BufferedProtocol):
    """The bookie's side of a connection."""

    def __init__(self, service: BookieService, handlers: RequestHandlers, tls: ssl.SSLContext | None) -> None:
        self.service, self.tls, self._handlers = service, tls, handlers
        self.waiters: dict[LacWaiter, tuple[LedgerId, asyncio.TimerHandle]] = {}
        self.batches = BatchQueue()
        self.listing = asyncio.Lock()
        self.peer = ""
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter(frame_bytes_max=service.settings.frame_bytes_max)
        self._acks = [_Acks() for _ in service.storage.journals.all]
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._is_flush_due = False
        self._is_paused = False  # The transport holds more than it should.
        self._holds: set[str] = set()  # Why nothing is read from the socket.
        self._parked: deque[Callable[[], None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._awaits_tls = False  # START_TLS was answered: nothing more may arrive in clear.
        self._is_switching = False  # From then until the handshake is over: nothing can be sent.

    # --- Events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service = self.service
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=service.settings.unsent_bytes_max)
        self.peer = str(transport.get_extra_info("peername"))
        if (peer_socket := transport.get_extra_info("socket")) is not None:
            peer_socket.setsockopt(
                socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
            )  # Else a peer that vanished stays for ever.
        service.metrics.requests.connections_accepted.value += 1
        if len(service.connections) >= service.settings.connections_max or service.is_stopping:
            service.metrics.requests.connections_refused.value += 1
            now_s = asyncio.get_running_loop().time()
            service.tell_refused(now_s, peer=self.peer, connections=len(service.connections))
            self._transport.abort()
            return
        service.connections[self] = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.service.received

    def buffer_updated(self, nbytes: int) -> None:
        self._on_bytes(self.service.received[:nbytes])

    @cached_property
    def add_responses(self) -> AddResponses:
        """What answers adds of version 3."""
        return AddResponses()

    def _on_bytes(self, data: memoryview) -> None:
        service = self.service
        since = asyncio.get_running_loop().time()
        journals = service.storage.journals.all
        records = sum([journal.last for journal in journals])
        is_another = False  # Whether the frame that was under way is complete.
        run: list[memoryview] = []  # Adds that begin alike, one after the other.
        start: bytes | None = None
        try:
            for frame in self._splitter.split(data):
                is_another = True
                if run:
                    if bytes(frame[:RUN_START_BYTES]) == start and len(frame) >= RUN_BYTES_MIN:
                        run.append(frame)
                        continue
                    self._handlers.v2_adds(self, run)
                    run = []
                if self._transport is None:
                    break
                if self._awaits_tls:
                    raise _early()
                if frame[0] == 0x0A:
                    self._handlers.v3_frame(self, frame)
                elif (start := run_start(frame)) is not None:
                    run = [frame]
                else:
                    self._handlers.v2_frame(self, frame)
            if run:
                self._handlers.v2_adds(self, run)
        except ProtocolViolation as violation:
            if run:
                self._handlers.v2_adds(self, run)  # They came before, and are whole.
            self._violated(violation)
            return
        for journal, acks in enumerate(self._acks):
            if acks:
                self._note_run(acks, since)
                service.await_durable(journal, self)
        size = self._splitter.pending_bytes
        if self._awaits_tls:
            self._begin_switch(size)
            return
        if self in service.half_frames and is_another:
            service.on_half_frame(self, 0)
        if size:
            service.on_half_frame(self, size)
        storage = service.storage
        if storage.wants_checkpoint:
            service.checkpoint_wanted.set()
        # Whoever only reads takes no room, and need not wait for any.
        if not storage.has_room and sum([journal.last for journal in journals]) > records:
            service.throttle(self)

    def pause_writing(self) -> None:
        self._is_paused = True
        self.hold_reading("unsent")

    def resume_writing(self) -> None:
        self._is_paused = False
        self.release_reading("unsent")
        self._unpark()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for waiter, (ledger_id, timer) in self.waiters.items():
            timer.cancel()
            self.service.storage.stop_waiting(ledger_id, waiter)
        self.waiters.clear()
        self.batches.clear()
        self._parked.clear()
        for task in self._tasks:
            task.cancel()
        self._out.clear()
        for acks in self._acks:
            self.service.metrics.requests.adds_in_progress.value -= sum(count for _, _, count in acks.runs)
            acks.v2.clear()
            acks.v3.clear()
            acks.deferred.clear()
            acks.others.clear()
            acks.runs.clear()
        self.service.on_lost(self)

    def _violated(self, violation: ProtocolViolation) -> None:
        """The peer speaks something else, or sent too much: nothing after it can be understood."""
        self.service.metrics.damage.protocol_violations.value += 1
        now_s = asyncio.get_running_loop().time()
        self.service.tell_violation(now_s, peer=self.peer, problem=str(violation))
        self._flush()
        if self._transport is not None:
            self._transport.close()

    @property
    def is_open(self) -> bool:
        """False once the connection is lost: whatever begins to wait for its client now would wait for ever."""
        return self._transport is not None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- Reading from the socket, or not

    def hold_reading(self, reason: str) -> None:
        if not self._holds:
            self._set_reading(False)
        self._holds.add(reason)

    def release_reading(self, reason: str) -> None:
        self._holds.discard(reason)
        if not self._holds:
            self._set_reading(True)

    def _set_reading(self, wanted: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or self._is_switching:
            return  # A handshake has to be read; what is held is held again when it is over.
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- Acknowledgements

    def acknowledge_v2(self, first: int, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> None:
        """Answer adds once their records are durable, which are numbered from `first` on."""
        acks = self._acks[ledger_id % len(self._acks)]
        acks.v2.append((first, ledger_id, entry_ids))
        acks.v2_arrived += len(entry_ids)

    def acknowledge_v3(
        self,
        number: int,
        stored_in: LedgerId,
        txn_id: int,
        ledger_id: LedgerId,
        entry_id: EntryId,
        *,
        deferred: bool = False,
    ) -> None:
        """The same in version 3, where the ids to repeat need not be those that were stored.

        A `deferred` add is answered once it is in the journal's file, before the flush.
        """
        acks = self._acks[stored_in % len(self._acks)]
        (acks.deferred if deferred else acks.v3).append((number, txn_id, ledger_id, entry_id))
        acks.v3_arrived += not deferred

    def on_written(self, journal: int, number: int) -> None:
        """Answer deferred adds up to this record."""
        deferred, answers = self._acks[journal].deferred, []
        while deferred and deferred[0][0] <= number:
            answers.append(deferred.popleft()[1:])
        if answers:
            self.send(self.add_responses.encode_oks(answers))

    def when_durable(self, ledger_id: LedgerId, number: int, then: Callable[[], None]) -> None:
        """Call `then` once the record of this number in the ledger's journal is durable; now, if it is."""
        journal = self.service.storage.journals.of(ledger_id)
        if number <= journal.durable:
            then()
            return
        which = ledger_id % len(self._acks)
        # A fence set some time ago has a small number. The newest is not much later, and keeps the queue in order.
        waiting = self._acks[which].others
        waiting.append((journal.last, then))
        if len(waiting) == _WAITING_MAX:
            self.hold_reading(f"journal {which}")
        self.service.await_durable(which, self)

    def on_durable(self, journal: int, number: int) -> bool:
        """Answer what is durable now. True if something still waits."""
        acks = self._acks[journal]
        queue = acks.v2
        while queue and queue[0][0] <= number:
            first, ledger_id, entry_ids = queue.popleft()
            count = number - first + 1
            if count < len(entry_ids):  # The group was full within the run.
                queue.appendleft((number + 1, ledger_id, entry_ids[count:]))
                entry_ids = entry_ids[:count]
            acks.answered += len(entry_ids)
            self.send(encode_add_oks(ledger_id, entry_ids))
        if acks.v3 and acks.v3[0][0] <= number:
            answers = []
            while acks.v3 and acks.v3[0][0] <= number:
                answers.append(acks.v3.popleft()[1:])
            acks.answered += len(answers)
            self.send(self.add_responses.encode_oks(answers))
        if acks.deferred:
            self.on_written(journal, number)
        while acks.others and acks.others[0][0] <= number:
            acks.others.popleft()[1]()
        if self._holds and len(acks.others) < _WAITING_MAX:
            self.release_reading(f"journal {journal}")
        if acks.runs and acks.runs[0][0] <= number:
            self._observe_runs(acks, journal, number)
        return bool(acks)

    def _note_run(self, acks: _Acks, since: float) -> None:
        arrived = acks.v2_arrived + acks.v3_arrived
        if arrived > acks.noted and (acks.v2 or acks.v3):  # A flush may have answered part of the run before.
            last = max(acks.v2[-1][0] + len(acks.v2[-1][2]) - 1 if acks.v2 else 0, acks.v3[-1][0] if acks.v3 else 0)
            acks.runs.append((last, since, arrived - acks.noted))
            self.service.metrics.requests.adds_in_progress.value += arrived - acks.noted
            acks.noted = arrived

    def _observe_runs(self, acks: _Acks, journal: int, number: int) -> None:
        now, metrics = asyncio.get_running_loop().time(), self.service.metrics
        write_s = self.service.storage.journals.all[journal].last_write_s
        while acks.runs and acks.runs[0][0] <= number:
            _, since, count = acks.runs.popleft()
            elapsed_s = now - since
            metrics.requests.add_entry.ok.observe(elapsed_s, count)
            metrics.storage.add_entry.ok.observe(elapsed_s, count)
            metrics.stages.queue.observe(max(0.0, elapsed_s - write_s), count)
            metrics.requests.adds_in_progress.value -= count
            if elapsed_s > self.service.settings.slow_s:
                stage = "journal" if write_s > elapsed_s / 2 else "queue"
                _LOG.warning("add.slow", peer=self.peer, seconds=round(elapsed_s, 3), adds=count, stage=stage)

    def timed(self, stats: OperationStats) -> Callable[[Status], None]:
        """Begin a request; call what is returned when it is answered."""
        clock = asyncio.get_running_loop().time
        since, slow_s = clock(), self.service.settings.slow_s

        def done(status: Status) -> None:
            elapsed_s = clock() - since
            (stats.ok if status is Status.EOK else stats.failed).observe(elapsed_s)
            if elapsed_s > slow_s and stats is not self.service.metrics.requests.long_poll_read:
                stage = self.service.metrics.stages.stage_of(elapsed_s)
                _LOG.warning(
                    "request.slow", peer=self.peer, seconds=round(elapsed_s, 3), status=status.name, stage=stage
                )

        return done

    def refuse_add(self, status: Status) -> None:
        """Count an add that was not stored."""
        requests = self.service.metrics.requests
        requests.add_entry.failed.observe(0.0)
        if status is Status.ETOOMANYREQUESTS:
            requests.adds_rejected.value += 1
            self.service.metrics.storage.writes_rejected.value += 1

    # --- Sending

    def send(self, *parts: Buffer) -> None:
        """Write these bytes, with all others of this turn of the loop."""
        self._out += parts
        self._out_bytes += sum(map(len, parts))
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._is_switching:
            return  # Nothing more in clear: it goes when the connection is encrypted.
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if self._transport is None or not out or self._transport.is_closing():
            return
        write_parts(self._transport, out, size)
        if self._parked and not self._is_paused:
            self._unpark()

    @property
    def is_congested(self) -> bool:
        """Whether so much is unsent that reads should wait, without their entries."""
        return self._is_paused or self._out_bytes > self.service.settings.unsent_bytes_max

    def park(self, again: Callable[[], None]) -> None:
        """Call `again` when the client has taken what is on its way to it."""
        if self._transport is not None:
            self._parked.append(again)

    def _unpark(self) -> None:
        parked, self._parked = self._parked, deque()
        while parked:
            if self.is_congested:
                parked.extend(self._parked)
                self._parked = parked
                return
            parked.popleft()()

    async def until_taken(self) -> None:
        """Return when the client has taken most of what is on its way to it. For tasks of `spawn`."""
        while self.is_congested:
            taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.park(lambda taken=taken: taken.done() or taken.set_result(None))  # type: ignore[misc]
            await taken

    # --- Tasks

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task for one request, no longer than the connection lasts. Too many, and no more requests are read."""
        if self._transport is None:
            work.close()
            return
        task = self.service.spawn(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        if len(self._tasks) == _TASKS_MAX:
            self.hold_reading("tasks")

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if "tasks" in self._holds and len(self._tasks) < _TASKS_MAX:
            self.release_reading("tasks")

    # --- TLS

    def start_tls(self, answer: bytes) -> None:
        """Send `answer` in clear, and encrypt everything after it."""
        self.send(answer)
        self._flush()
        self._awaits_tls = self._is_switching = True

    def _begin_switch(self, pending_bytes: int) -> None:
        """What came with START_TLS is looked at. Not a byte of it may count as part of what comes encrypted."""
        if pending_bytes:
            self._violated(_early())
        elif self.tls is not None and self._transport is not None:
            self.service.spawn(self._switch(self._transport, self.tls))

    async def _switch(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        told = transport.get_protocol()
        self._awaits_tls = False  # From here on bytes come through TLS, the first of them before this task goes on.
        try:
            encrypted = await self.service.runtime.network.start_tls(
                transport, self, tls, timeout_s=self.service.settings.tls_timeout_s, server_side=True
            )
            if (
                encrypted.is_closing() or self._transport is None
            ):  # That is how uvloop tells that the connection was lost.
                raise ConnectionResetError("the connection was closed during the TLS handshake")
        except BaseException as error:
            transport.abort()
            if self._transport is not None:  # Neither loop tells a protocol that it was lost during a handshake.
                told.connection_lost(None)
            if not isinstance(error, OSError):
                raise
            now_s = asyncio.get_running_loop().time()
            self.service.tell_tls_failed(now_s, peer=self.peer, error=repr(error))
            return
        encrypted.set_write_buffer_limits(high=self.service.settings.unsent_bytes_max)
        self._transport, self._is_switching, self.tls = encrypted, False, None  # It cannot be started twice.
        if self._holds:
            self._set_reading(False)
        if self._is_paused:
            self.resume_writing()  # The old transport does not tell us any more; the new one will, if there is need.
        self._flush()


def _early() -> ProtocolViolation:
    return ProtocolViolation("bytes in clear after START_TLS")
