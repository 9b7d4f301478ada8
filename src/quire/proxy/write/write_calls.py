"""The Write call: one client sends batches for many streams without waiting, and gets an answer to each.

Requests are read one after the other while the window has room: a batch takes its bytes and its place when it is read,
and gives them back when its answer is handed to the network. So a client that does not take its answers is not read
from any more, and what is kept for it has a bound.

Invariants:
  FailBehind        batches of a stream behind one that failed are refused, until the client raises the attempt; and so
                    are those that wait when the call ends.
  AnswersInOrder    of one stream; those of different streams come as they come.
  InBandOrOver      what is wrong with a batch is told in its answer. Only a client that breaks the rules of the call,
                    or a proxy that goes down, ends it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, Outcome, QuireError
from quire.protocol.write_order import StreamOrder
from quire.proxy.write.answers import batch_result, placed, predecessor_failed
from quire.proxy.write.batches import checked_batch
from quire.proxy.write.counting import WriteCounts
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.stream_table import StreamTable
from quire.proxy.write.submissions import Submission
from quire.rpc.serving.results import result_of
from quire.rpc.serving.transport import Caller
from quire.runtime import Clock

_PONGS_MAX: Final = 16  # That wait to be taken by the network.


class _Answer:
    """An ack, and what it gives back of the window."""

    __slots__ = ("response", "size_bytes")

    def __init__(self, response: pb.WriteResponse, size_bytes: int) -> None:
        self.response, self.size_bytes = response, size_bytes


class WriteCall:
    """One call. `responses` runs it."""

    def __init__(
        self,
        table: StreamTable,
        settings: WriteProxySettings,
        clock: Clock,
        counts: WriteCounts,
        caller: Caller,
        opened: pb.Opened,
    ) -> None:
        self._table, self._settings, self._clock, self._counts = table, settings, clock, counts
        self._caller, self._opened = caller, opened
        self._orders: dict[str, StreamOrder[_Answer]] = {}
        self._ready: deque[_Answer] = deque()
        self._asides: deque[pb.WriteResponse] = deque()  # Pongs, and advice to go elsewhere.
        self._news = asyncio.Event()  # Something to send, or the end.
        self._room = asyncio.Event()  # Something was sent.
        self._last_seq = 0
        self.batches = self.size_bytes = 0  # Read, and not yet answered.
        self._is_read = False  # To the end.
        self._is_over = False
        self._problem: Exception | None = None

    @property
    def streams(self) -> list[str]:
        return list(self._orders)

    # --- The call

    async def responses(self, requests: AsyncIterator[pb.WriteRequest]) -> AsyncGenerator[pb.WriteResponse]:
        """Everything that the client is told, until both sides are done. Raises what ends the call early."""
        reading = asyncio.create_task(self._read(requests), name=f"write call of {self._caller.client_id}")
        try:
            while True:
                while self._asides:
                    yield self._asides.popleft()
                    self._room.set()
                while self._ready:
                    answer = self._ready.popleft()
                    self.batches -= 1
                    self.size_bytes -= answer.size_bytes
                    self._room.set()
                    yield answer.response
                if self._problem is not None and not self.batches:
                    raise self._problem
                if self._is_read and not self.batches:
                    return
                if not (self._asides or self._ready):
                    self._news.clear()
                    await self._news.wait()
        finally:
            self._is_over = True
            reading.cancel()
            await asyncio.wait([reading])
            self._table.named.subtract(self._orders.keys())
            for stream in self._orders:
                if not self._table.named[stream]:
                    del self._table.named[stream]

    def advise(self, go_away: pb.GoAway) -> None:
        """Tell the client to go elsewhere with a stream, or with all of them."""
        if not go_away.stream or go_away.stream in self._orders:
            self._asides.append(pb.WriteResponse(go_away=go_away))
            self._news.set()

    def end(self, error: QuireError) -> None:
        """End the call once everything that was read is answered."""
        self._problem = self._problem or error
        self._news.set()

    # --- Reading

    async def _read(self, requests: AsyncIterator[pb.WriteRequest]) -> None:
        try:
            await self._open(requests)
            while self._problem is None:
                request = await anext(requests, None)
                if request is None or not await self._on_request(request):
                    break
            self._is_read = True
        except QuireError as error:
            if isinstance(error, InvalidArgument):
                self._counts.on_violation(self._caller, error)
            self._problem = self._problem or error
        except Exception as error:  # A bug, or a network that broke: whoever yields raises it.
            self._problem = self._problem or error
        finally:
            self._news.set()

    async def _open(self, requests: AsyncIterator[pb.WriteRequest]) -> None:
        first = await anext(requests, None)
        if first is None:
            return
        if first.WhichOneof("message") != "open":
            raise InvalidArgument("a Write call begins with Open")
        self._counts.check_namespace(first.open.namespace)
        self._asides.append(pb.WriteResponse(opened=self._opened))
        self._news.set()

    async def _on_request(self, request: pb.WriteRequest) -> bool:
        """False if it was the last one."""
        kind = request.WhichOneof("message")
        if kind == "batch":
            self._on_batch(request.batch)
            while self._is_full():
                self._room.clear()
                await self._room.wait()
        elif kind == "ping":
            self._asides.append(pb.WriteResponse(pong=pb.Pong(number=request.ping.number)))
            self._news.set()
            while len(self._asides) >= _PONGS_MAX:
                self._room.clear()
                await self._room.wait()
        elif kind == "close":
            return False
        else:
            raise InvalidArgument(f"a Write call that is open takes batches, pings and Close, not {kind or 'nothing'}")
        return True

    def _is_full(self) -> bool:
        return self.batches >= self._settings.window_batches or self.size_bytes >= self._settings.window_bytes

    # --- Batches

    def _on_batch(self, batch: pb.Batch) -> None:
        number, name = batch.call_seq, batch.stream
        if number != self._last_seq + 1:
            raise InvalidArgument(f"batch {self._last_seq + 1} should follow, not {number}")
        order = self._orders.get(name)
        if order is None:
            order = self._new_order(name)
        self._last_seq = number
        size_bytes = batch.ByteSize()
        self.batches += 1
        self.size_bytes += size_bytes
        may_try = order.on_batch(number, batch.attempt)
        now_s = self._clock.monotonic()
        if not may_try:
            self._decide(order, number, name, size_bytes, None, predecessor_failed(name))
            return
        try:
            submission = checked_batch(batch, self._settings, self._caller, now_s)
        except QuireError as error:
            self._decide(order, number, name, size_bytes, None, error)
            return
        attempt = batch.attempt
        # A call that has ended hands nothing over any more: nobody would say whether what comes behind may follow.
        submission.may_append = lambda: not self._is_over and order.may_append(number, attempt)

        def on_decided(decided: Submission) -> None:
            error = decided.error
            if error is not None and error.outcome is Outcome.NOT_APPLIED and not order.may_append(number, attempt):
                error = predecessor_failed(name)  # Whatever else is the matter: the first one was told.
            self._decide(order, number, name, size_bytes, decided, error)

        submission.on_decided = on_decided
        self._table.submit_batch(submission)

    def _new_order(self, name: str) -> StreamOrder[_Answer]:
        if len(self._orders) >= self._settings.streams_per_call_max:
            raise InvalidArgument(
                f"a Write call names {self._settings.streams_per_call_max} streams at most", hint="Open another one."
            )
        order = self._orders[name] = StreamOrder[_Answer]()
        self._table.named[name] += 1
        return order

    def _decide(
        self,
        order: StreamOrder[_Answer],
        number: int,
        name: str,
        size_bytes: int,
        submission: Submission | None,
        error: QuireError | None,
    ) -> None:
        if self._is_over:
            return  # Nobody listens any more.
        ack = pb.Ack(call_seq=number)
        if error is not None:
            ack.result.CopyFrom(result_of(error))
        elif submission is not None:
            ack.result.CopyFrom(batch_result(None, is_duplicate=submission.is_duplicate))
            ack.placed.extend(placed(submission.runs))
            ack.txid_first, ack.txid_last = submission.txid_first, submission.txid_last
        self._counts.on_batch("Write", submission, error)
        answer = _Answer(pb.WriteResponse(ack=ack), size_bytes)
        self._ready += order.on_decided(number, answer, failed=error is not None)
        self._news.set()
