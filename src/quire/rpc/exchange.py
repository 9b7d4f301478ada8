"""Requests and their answers on one connection: which answer belongs to which request, and what becomes of the rest.

Both versions of the protocol pass through here, in one order: Java bookies take version 2 for the rest of a
connection's life once they have met it, and misread version 3 from then on. Version 3 first is fine. So authenticate in
version 3, then keep one channel for version 2 (adds, reads) and one for what only version 3 has.

Answers to adds and to reads of version 2 are as many as entries: those of one `data_received` are handed on together.
All others have a future.

Invariants:
  EveryCallEnds     a call returns, or raises by its deadline and a tick, or when the connection ends.
  NothingSlippedIn  between the agreement to TLS and the handshake not a byte is taken for an answer.
"""

from collections.abc import Iterator
from typing import Final, TypeVar, cast

from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import protocol_version
from quire.codec.wire.v2_adds import ADD_ANSWER_BYTES, AddRun, decode_add_answers
from quire.codec.wire.v3_messages import HIGH_PRIORITY, Operation, RequestContent
from quire.errors import InvalidArgument, ProtocolViolation
from quire.rpc.calls import Call, PendingCalls
from quire.rpc.connection import Connection
from quire.rpc.errors import status_error, unanswered_error
from quire.rpc.reads import PendingReads, ReadAnswer, ReadRun
from quire.rpc.settings import ChannelSettings
from quire.runtime import Runtime
from quire.types import EntryId, LedgerId

A = TypeVar("A")

TIMED_OUT: Final = "no answer came in time"

_READ_ANSWER_BYTES: Final = 24  # Without an entry.

ABANDONED_MAX: Final = 10_000  # Reads that a bookie may leave unanswered before the connection is not worth keeping.


class Exchange(Connection):
    """A connection that knows what was asked. The subclass has the operations, and the adds."""

    def __init__(self, runtime: Runtime, address: tuple[str, int], settings: ChannelSettings) -> None:
        super().__init__(runtime, address, settings)
        self._calls = PendingCalls()
        self._reads = PendingReads()
        self._numbers = 0
        self._spoke_v2 = False
        self._starting_tls = False

    def _on_add_answers(self, v2: list[AddRun], v3: list[tuple[Status, int]]) -> None:
        """For the subclass: all answers to adds that arrived together, in runs by ids and by transaction id."""
        raise NotImplementedError

    # --- Requests -----------------------------------------------------------------------------------------------

    async def _ask(
        self,
        operation: Operation,
        request: RequestContent,
        _answer: type[A],
        *,
        timeout_s: float | None = None,
        high_priority: bool = False,
        may_change: bool = False,
    ) -> A:
        """A request of version 3 and its answer, which is an `A`: the decoder goes by the operation, as we do."""
        from quire.codec.wire import v3  # And Google's library: whoever only adds and reads entries needs neither.

        number = self._next_number()
        frame = v3.encode_request(number, request, priority=HIGH_PRIORITY if high_priority else 0)
        self._check_size(len(frame))
        self._check_version(3)
        ledger_id, entry_id = getattr(request, "ledger_id", None), getattr(request, "entry_id", None)
        call = self._new_call(operation, timeout_s, ledger_id, entry_id, may_change=may_change)
        self._calls.push(number, call)
        self._send((frame,))
        return cast(A, await call.future)

    def _new_call(
        self,
        operation: Operation,
        timeout_s: float | None,
        ledger_id: LedgerId | None,
        entry_id: EntryId | None,
        *,
        may_change: bool,
    ) -> Call:
        deadline_s = self._deadline_s(timeout_s)
        return Call(self._loop.create_future(), deadline_s, operation, ledger_id, entry_id, may_change)

    def _deadline_s(self, timeout_s: float | None) -> float:
        return self._clock.monotonic() + (self.settings.request_timeout_s if timeout_s is None else timeout_s)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _check_version(self, version: int) -> None:
        """Refuse what cannot be sent now. After version 2 that is version 3: Java bookies would misread it."""
        self._check_sendable()
        if version == 2:
            self._spoke_v2 = True
        elif self._spoke_v2:
            raise InvalidArgument(
                f"the channel to bookie {self.bookie} has spoken version 2 and cannot go back to version 3",
                hint="Open a second channel for what only version 3 has.",
                bookie=self.bookie,
            )

    # --- Answers ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        adds: list[AddRun] = []
        adds_v3: list[tuple[Status, int]] = []
        reads: list[ReadAnswer] = []
        decode_read = v2.decode_read_response
        violation: ProtocolViolation | None = None
        rest: bytes | memoryview = data
        if not self._starting_tls:
            if 0 < self._splitter.pending_bytes < ADD_ANSWER_BYTES:
                data = rest = self._splitter.take_half() + data  # Else every chunk would begin in the middle of one.
            if not self._splitter.pending_bytes:
                adds, taken = decode_add_answers(data)
                rest = memoryview(data)[taken:]
        bodies = self._splitter.split(rest)
        try:
            for body in self._alone(bodies) if self._starting_tls else bodies:
                if len(body) >= _READ_ANSWER_BYTES and body[0] == v2.VERSION and body[1] == v2.READ_ENTRY:
                    reads.append(decode_read(body))
                elif protocol_version(body) == 3:
                    self._on_v3(body, adds_v3)
                else:
                    self._on_v2(body, adds, reads)
        except ProtocolViolation as error:
            violation = error
        if adds or adds_v3:  # What came before a violation was still said.
            self._on_add_answers(adds, adds_v3)
        for run in self._reads.on_answers(reads):
            if not run.future.done():
                run.future.set_result(None)
        if violation is not None:
            self._abort(f"it sent what the protocol does not know: {violation}", violation)

    def _on_v3(self, body: memoryview, adds: list[tuple[Status, int]]) -> None:
        from quire.codec.wire import v3

        response = v3.decode_response(body)
        if response.operation is Operation.ADD_ENTRY:
            adds.append((response.status, response.txn_id))
            return
        call = self._calls.take(response.txn_id, response.operation)
        if call is not None:
            self._settle(call, response.status, response.content)
            if response.operation is Operation.START_TLS:
                self._transport.pause_reading()  # What comes now is for the handshake, which reads again.

    def _on_v2(self, body: memoryview, adds: list[AddRun], reads: list[ReadAnswer]) -> None:
        _, opcode, _ = v2.decode_header(body)
        if opcode == v2.READ_ENTRY:
            reads.append(v2.decode_read_response(body))
        elif opcode == v2.BATCH_READ_ENTRY:
            status, _, _, number, entries = v2.decode_batch_read_response(body)
            call = self._calls.take(number, Operation.BATCH_READ_ENTRY)
            if call is not None:
                self._settle(call, status, entries)
        elif opcode == v2.ADD_ENTRY:
            status, ledger_id, entry_id = v2.decode_add_response(body)
            adds.append((status, ledger_id, (entry_id,)))

    def _settle(self, call: Call, status: Status, value: object) -> None:
        if call.future.done():
            return  # Its sender was cancelled.
        if status is Status.EOK:
            call.future.set_result(value)
        else:
            error = status_error(status, bookie=self.bookie, ledger_id=call.ledger_id, entry_id=call.entry_id)
            call.future.set_exception(error)

    def _alone(self, bodies: Iterator[memoryview]) -> Iterator[memoryview]:
        """The one answer that may come in clear. What follows it was slipped in: the bookie has to wait for us."""
        for body in bodies:
            yield body
            if next(bodies, None) is not None or self._splitter.pending_bytes:
                raise ProtocolViolation("more came in clear after the agreement to TLS")

    # --- Deadlines and endings ----------------------------------------------------------------------------------

    def _on_tick(self, now_s: float) -> bool:
        for call in self._calls.expire(now_s):
            self._fail(call, TIMED_OUT)
        for run in self._reads.expire(now_s):
            self._fail_run(run, TIMED_OUT)
        if self._reads.abandoned > ABANDONED_MAX:
            self._abort(f"it left more than {ABANDONED_MAX} reads unanswered")
        return bool(self._calls) or bool(self._reads)

    def _on_end(self, problem: str, cause: BaseException | None) -> None:
        for call in self._calls.take_all():
            self._fail(call, problem, cause)
        for run in self._reads.take_all():
            self._fail_run(run, problem, cause)

    def _fail(self, call: Call, problem: str, cause: BaseException | None = None) -> None:
        error = unanswered_error(
            problem,
            bookie=self.bookie,
            may_be_done=call.may_change,
            timed_out=problem is TIMED_OUT,
            ledger_id=call.ledger_id,
            entry_id=call.entry_id,
            cause=cause,
        )
        call.future.set_exception(error)

    def _fail_run(self, run: ReadRun, problem: str, cause: BaseException | None = None) -> None:
        error = unanswered_error(
            problem,
            bookie=self.bookie,
            may_be_done=run.fences,
            timed_out=problem is TIMED_OUT,
            ledger_id=run.ledger_id,
            entry_id=run.entries[0] if len(run.entries) == 1 else None,
            cause=cause,
        )
        run.future.set_exception(error)
