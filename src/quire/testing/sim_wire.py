"""One direction of a simulated TCP connection: bytes go in at one end and come out, later and in other pieces.

A wire keeps what TCP keeps, and no more: bytes arrive in order and at most once, but in pieces that have nothing to do
with the writes, so that a parser sees frames split in the middle and several frames at once. A partition holds what is
under way; it arrives after the healing, unless the connection was reset meanwhile.
"""

import asyncio
import enum
from collections import deque
from typing import Final, Protocol

from quire.testing.sim_loop import SimLoop
from quire.testing.sim_rng import SimRng

_RECEIVE_BYTES_MAX: Final = 256 * 1024  # As much as asyncio reads from a socket at once.
_CUTS_MAX: Final = 3


class Link(Protocol):
    """The way from one host to another, as the network sees it at this moment."""

    def delay_s(self, source: str, target: str) -> float:
        """How long the next piece travels."""
        ...

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether a partition holds what travels this way."""
        ...

    def loses_connection(self) -> bool:
        """Whether chance breaks the connection at this delivery."""
        ...


class Sender(Protocol):
    """The end that a wire leads away from."""

    def on_room(self) -> None:
        """Bytes have left the wire at its far end."""
        ...

    def break_off(self, error: Exception) -> None:
        """The connection broke."""
        ...


class Receiver(Protocol):
    """The end that a wire leads to."""

    def can_receive(self) -> bool: ...

    def receive(self, data: bytes) -> None: ...

    def receive_eof(self) -> None: ...

    def receive_reset(self) -> None: ...

    def break_off(self, error: Exception) -> None: ...


class _Signal(enum.Enum):
    EOF = enum.auto()
    RESET = enum.auto()


class Wire:
    """Bytes under way from one end to the other, at most `window_bytes` of them."""

    sender: Sender
    receiver: Receiver

    def __init__(self, loop: SimLoop, rng: SimRng, link: Link, *, source: str, target: str, window_bytes: int) -> None:
        self._loop = loop
        self._rng = rng
        self._link = link
        self._source = source
        self._target = target
        self._window_bytes = window_bytes
        self._under_way: deque[tuple[float, bytes | _Signal]] = deque()  # With the moment of arrival, never decreasing.
        self._bytes = 0
        self._last_arrival = 0.0
        self._sent: set[_Signal] = set()
        self._timer: asyncio.TimerHandle | None = None

    def room(self) -> int:
        """How many bytes may be sent now."""
        return self._window_bytes - self._bytes

    def send(self, data: bytes) -> None:
        """Put bytes on the wire, in pieces with a delay each."""
        self._bytes += len(data)
        cuts: list[int] = []
        if len(data) > 1 and self._rng.random() < 0.5:
            cuts = sorted(self._rng.randrange(1, len(data)) for _ in range(self._rng.randrange(1, _CUTS_MAX + 1)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if start < end:
                self._put(data[start:end])
        self.poke()

    def send_eof(self) -> None:
        """No bytes will follow."""
        self._send_signal(_Signal.EOF)

    def send_reset(self) -> None:
        """The other end is to break off."""
        self._send_signal(_Signal.RESET)

    def send_abort(self) -> None:
        """What the other end sees of an aborted connection: its end, or an error. It cannot count on either."""
        self._send_signal(self._rng.choice([_Signal.EOF, _Signal.RESET]))

    def clear(self) -> None:
        """Lose everything under way."""
        self._under_way.clear()
        self._bytes = 0

    def poke(self) -> None:
        """Something changed (a new piece, a reader that reads again, a healed partition): see to the next arrival."""
        if self._under_way and self._timer is None and self._may_arrive():
            self._timer = self._loop.call_at(max(self._loop.time(), self._under_way[0][0]), self._arrive)

    def poke_later(self) -> None:
        """The same after one delay: a sender notices only after a while that the way is free again."""
        self._loop.call_later(self._link.delay_s(self._source, self._target), self.poke)

    def _send_signal(self, signal: _Signal) -> None:
        if signal not in self._sent:
            self._sent.add(signal)
            self._put(signal)
            self.poke()

    def _put(self, item: bytes | _Signal) -> None:
        arrival = self._loop.time() + self._link.delay_s(self._source, self._target)
        self._last_arrival = max(self._last_arrival, arrival)
        self._under_way.append((self._last_arrival, item))

    def _may_arrive(self) -> bool:
        return self.receiver.can_receive() and not self._link.is_blocked(self._source, self._target)

    def _arrive(self) -> None:
        self._timer = None
        if not self._under_way or not self._may_arrive():
            return
        if self._link.loses_connection():
            error = ConnectionResetError("connection lost by chance (simulated)")
            self.sender.break_off(error)
            self.receiver.break_off(error)
            return
        data = self._take_bytes()
        self._loop.trace(f"{self._source}>{self._target} {len(data)} bytes")
        if data:
            self._bytes -= len(data)
            self.receiver.receive(data)
            self.sender.on_room()
        else:
            _, signal = self._under_way.popleft()
            if signal is _Signal.EOF:
                self.receiver.receive_eof()
            else:
                self.receiver.receive_reset()
        self.poke()

    def _take_bytes(self) -> bytes:
        """Everything that has arrived by now, up to the next signal: pieces that come together are read together."""
        taken: list[bytes] = []
        count = 0
        while self._under_way and count < _RECEIVE_BYTES_MAX:
            arrival, item = self._under_way[0]
            if arrival > self._loop.time() or isinstance(item, _Signal):
                break
            taken.append(item)
            count += len(item)
            self._under_way.popleft()
        return b"".join(taken)
