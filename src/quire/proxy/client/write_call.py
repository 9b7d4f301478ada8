"""One call to one proxy, over which all batches go that this client has for it.

Batches are made when there is room for them: while the proxy owes as many answers, or as many bytes, as it allowed,
records gather. A proxy that owes answers and says nothing is asked whether it lives, and given up if it does not say.

Invariants:
  WithinWindow   never more batches or bytes are unanswered than the proxy said.
  OnlyOpened     no batch is sent before the proxy has opened the call: until then nothing can have happened.
"""

import asyncio
from typing import Final, NamedTuple, Protocol

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import ProtocolViolation, ProxyOutcomeUnknown, ProxyUnreachable, QuireError
from quire.proxy.client.appends import Parcel
from quire.proxy.client.lane import Lane
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving.methods import WRITE
from quire.rpc.serving.transport import Channel, Duplex

_WINDOW_BATCHES: Final = 256  # Until the proxy says otherwise.


class _Sent(NamedTuple):
    lane: Lane
    parcel: Parcel


class CallOwner(Protocol):
    """Who opens calls, and hears of what comes back."""

    settings: ProxyClientSettings
    client_id: str
    namespace: str

    def on_call_open(self, call: "WriteCall") -> None: ...

    def on_call_over(self, call: "WriteCall", error: QuireError) -> None: ...

    def on_ack(self, call: "WriteCall", lane: Lane, parcel: Parcel, ack: pb.Ack) -> None: ...

    def on_go_away(self, call: "WriteCall", go_away: pb.GoAway) -> None: ...


class WriteCall:
    """A call that is open, or being opened."""

    def __init__(self, writing: CallOwner, channel: Channel) -> None:
        self._writing, self._channel, self._settings = writing, channel, writing.settings
        self.address = channel.address
        self.lanes: dict[Lane, None] = {}  # Whose batches go here.
        self.is_open = False
        self._turns: dict[Lane, None] = {}  # Those that have something to send, whose turn it is first.
        self._unanswered: dict[int, _Sent] = {}
        self._unanswered_bytes = 0
        self._window_bytes, self._window_batches = self._settings.window_bytes, _WINDOW_BATCHES
        self._last_seq = self._pings = 0
        self._is_ping_due = False
        self._wake = asyncio.Event()
        self._heard_s = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._broken: QuireError | None = None
        self.task = asyncio.create_task(self._run(), name=f"write to {self.address}")

    # --- What is to be sent

    def want(self, lane: Lane) -> None:
        """The lane has something to send."""
        if lane not in self._turns and lane.can_send:
            self._turns[lane] = None
            self._wake.set()

    def forget(self, lane: Lane) -> None:
        """Its batches go elsewhere."""
        self.lanes.pop(lane, None)
        self._turns.pop(lane, None)

    def _next(self) -> pb.WriteRequest | None:
        """The next batch, if there is one and room for it."""
        unanswered = self._unanswered
        while self._turns and len(unanswered) < self._batches_max:
            lane = next(iter(self._turns))
            if not lane.can_send:
                del self._turns[lane]
                continue
            parcel = lane.take()
            if unanswered and self._unanswered_bytes + parcel.size_bytes > self._window_bytes:
                lane.put_back(parcel)
                return None
            del self._turns[lane]
            self.want(lane)  # Behind the others.
            self._on_sending(lane, parcel)
            return self._message(lane, parcel)
        return None

    @property
    def _batches_max(self) -> int:
        """One less than allowed: a proxy whose window is full reads nothing, and so would not hear a ping."""
        return max(1, self._window_batches - 1)

    def _on_sending(self, lane: Lane, parcel: Parcel) -> None:
        if not self._unanswered:
            self._heard_s = self._loop_s()  # Until now it owed nothing.
            if self._look is None:
                self._look_later()
        self._last_seq += 1
        self._unanswered[self._last_seq] = _Sent(lane, parcel)
        self._unanswered_bytes += parcel.size_bytes

    def _message(self, lane: Lane, parcel: Parcel) -> pb.WriteRequest:
        request = pb.WriteRequest()
        batch = request.batch
        batch.call_seq, batch.stream, batch.attempt = self._last_seq, lane.stream, lane.attempt
        batch.crc32c = batch_checksum(lane.stream, parcel.records)
        batch.create_if_missing = parcel.outbox.rules.create_if_missing
        if parcel.members:
            batch.record_set.count, batch.record_set.data = parcel.members, parcel.records[0]
        else:
            batch.records.extend(parcel.records)
        if parcel.txids is not None:
            batch.txids.extend(parcel.txids)
        if parcel.producer is not None:
            batch.producer.id, batch.producer.first_seq = parcel.producer.id, parcel.first_seq
        return request

    # --- The call

    async def _run(self) -> None:
        error: QuireError = ProxyOutcomeUnknown(f"proxy {self.address} ended the call")
        try:
            async with self._channel.duplex(WRITE) as duplex:
                try:
                    async with asyncio.timeout(self._settings.silence_s):
                        await self._open(duplex)
                except TimeoutError as silent:
                    raise ProxyUnreachable(f"proxy {self.address} does not answer") from silent
                await self._talk(duplex)
        except QuireError as raised:
            error = raised
        except asyncio.CancelledError:
            if self._broken is None:
                raise
            error = self._broken
        finally:
            if self._look is not None:
                self._look.cancel()
        self._writing.on_call_over(self, self._told(error))

    async def _open(self, duplex: Duplex) -> None:
        writing = self._writing
        opening = pb.Open(
            client_id=writing.client_id, namespace=writing.namespace, want_window_bytes=self._settings.window_bytes
        )
        await duplex.send(pb.WriteRequest(open=opening))
        response = await anext(aiter(duplex), None)
        if response is None or not response.HasField("opened"):
            raise ProtocolViolation(f"proxy {self.address} did not open the call")
        opened = response.opened
        self._window_bytes = opened.window_bytes or self._window_bytes
        self._window_batches = opened.window_batches or self._window_batches
        self.is_open = True
        writing.on_call_open(self)

    async def _talk(self, duplex: Duplex) -> None:
        sending = asyncio.create_task(self._send_all(duplex), name=f"send to {self.address}")
        try:
            async for response in duplex:
                self._heard_s = self._loop_s()
                match response.WhichOneof("message"):
                    case "ack":
                        self._on_ack(response.ack)
                    case "window":
                        self._window_bytes = response.window.bytes or self._window_bytes
                        self._window_batches = response.window.batches or self._window_batches
                        self._wake.set()
                    case "go_away":
                        self._writing.on_go_away(self, response.go_away)
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send_all(self, duplex: Duplex) -> None:
        try:
            while True:
                while (request := self._next()) is not None:
                    await duplex.send(request)
                self._wake.clear()
                await self._wake.wait()
                if self._is_ping_due:
                    self._is_ping_due = False
                    self._pings += 1
                    await duplex.send(pb.WriteRequest(ping=pb.Ping(number=self._pings)))
        except QuireError as error:
            self._break(error)

    def _on_ack(self, ack: pb.Ack) -> None:
        sent = self._unanswered.pop(ack.call_seq, None)
        if sent is None:
            raise ProtocolViolation(f"proxy {self.address} answered batch {ack.call_seq}, which it was not sent")
        self._unanswered_bytes -= sent.parcel.size_bytes
        self._writing.on_ack(self, sent.lane, sent.parcel, ack)
        self._wake.set()

    # --- Silence, and the end

    def _loop_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(self._settings.ping_s, self._look_now)

    def _look_now(self) -> None:
        """Whether it still speaks, while it owes answers."""
        self._look = None
        if not self._unanswered:
            return
        silent_s = self._loop_s() - self._heard_s
        if silent_s >= self._settings.silence_s:
            self._break(ProxyOutcomeUnknown(f"proxy {self.address} has said nothing for {silent_s:.1f} s"))
            return
        if silent_s >= self._settings.ping_s:
            self._is_ping_due = True
            self._wake.set()
        self._look_later()

    def _break(self, error: QuireError) -> None:
        """End the call from our side."""
        if self._broken is None:
            self._broken = error
            self.task.cancel()

    def _told(self, error: QuireError) -> QuireError:
        """What the end means: a call that was never opened did nothing."""
        if self.is_open or isinstance(error, ProxyUnreachable) or not isinstance(error, ProxyOutcomeUnknown):
            return error
        unreachable = ProxyUnreachable(f"proxy {self.address} did not open a call: {error}")
        unreachable.__cause__ = error
        return unreachable
