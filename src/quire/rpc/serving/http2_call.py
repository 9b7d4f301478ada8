"""One call on a connection of HTTP/2, as either end sees it: whole messages in both directions, and how it ended.

Flow control is per message as far as users see it: `send` returns when the connection has taken the whole message, and
the other end gets room for more only as `receive` hands messages out. A call keeps at most its window of unread bytes,
plus the one message that its reader waits for, however large that is. The memory for all of them, whole or not, is
reserved at the connection until they are handed out, or the call is over.

The connection has a window, too, but gives back its room at once: else a call that nobody reads would stop the others.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from quire.codec import http2
from quire.errors import invariant
from quire.rpc.serving.settings import CallSettings

_MESSAGE_BYTES_MIN: Final = 64  # What a message takes in memory, however small it is.


class CallOver(Exception):
    """The call ended, and this says nothing about why: whoever ended it knows, or will be told."""


class MessageRefused(Exception):
    """A message arrived that is not taken: too large, compressed, or too much for our memory."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class CallConnection(Protocol):
    """The connection of a call, as far as the call needs it."""

    settings: CallSettings
    peer_window_bytes: int

    def reserve(self, size: int) -> bool:
        """Whether there is memory for so much."""

    def release(self, size: int) -> None: ...

    def write(self, data: bytes | memoryview) -> None: ...

    def write_control(self, data: bytes, *, share: int = 1) -> None: ...

    def send_at_once(self, call: "Call", message: bytes, *, end: bool) -> bool:
        """Whether the whole message could be sent."""

    def send_when_possible(self, call: "Call") -> None: ...

    def reset(self, call: "Call", code: int) -> None: ...


class Call:
    """One call. `error` is what its end raises in whoever waits for it; None if it ended well, or goes on."""

    __slots__ = (
        "_announced",
        "_consumed",
        "_granted",
        "_inbox",
        "_partial",
        "_received",
        "_reserved",
        "_unread_bytes",
        "_waiter",
        "connection",
        "error",
        "headers_sent",
        "id",
        "is_over",
        "is_read_out",
        "received_any",
        "sending",
        "sent_end",
        "unsent",
        "window_out",
    )

    def __init__(self, connection: CallConnection, id: int) -> None:
        self.connection, self.id = connection, id
        self.error: BaseException | None = None
        self.is_over = False
        self.is_read_out = False  # The other end sends nothing more.
        self.headers_sent = self.sent_end = False
        self.received_any = False
        self.window_out = connection.peer_window_bytes
        self.unsent: memoryview | None = None  # What is left of the message being sent.
        self.sending: asyncio.Future[None] | None = None
        self._inbox: deque[bytes] = deque()
        self._partial = bytearray()
        self._announced: int | None = None  # The size of the message that has begun.
        self._unread_bytes = 0  # What the messages in the inbox cost.
        self._reserved = 0  # For those, and for the one that has begun.
        self._waiter: asyncio.Future[None] | None = None
        # Bytes that came, that were handed out, and that the other end was given room for again.
        self._received = self._consumed = self._granted = 0

    @property
    def received_message(self) -> bool:
        """Whether a whole message came, ever."""
        return bool(self._inbox) or self._consumed > 0

    # --- Receiving --------------------------------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        """The next message; None when the other end has sent its last one. Raises `error`, once all is handed out."""
        while not self._inbox:
            if self.error is not None:
                raise self.error
            if self.is_read_out or self.is_over:
                return None
            invariant(self._waiter is None, "two read one call")
            self._waiter = asyncio.get_running_loop().create_future()
            self._give_room()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._inbox.popleft()
        self._consumed += len(message) + http2.MESSAGE_PREFIX_BYTES
        self._unread_bytes -= max(len(message), _MESSAGE_BYTES_MIN)
        self._reserve()
        self._give_room()
        return message

    def on_data(self, payload: bytes, size: int, *, ends: bool) -> None:
        """`size` bytes came, of which `payload` is no padding. Raises `MessageRefused`."""
        self._received += size
        self._consumed += size - len(payload)
        if self._received - self._granted > self.connection.settings.window_bytes:
            raise http2.Http2Violation("more data than a call has room for", http2.FLOW_CONTROL_ERROR)
        if (
            not self._partial
            and http2.MESSAGE_PREFIX_BYTES <= len(payload) <= self.connection.settings.message_bytes_max
            and http2.prefix_of(payload) == (False, len(payload) - http2.MESSAGE_PREFIX_BYTES)
        ):
            self._deliver(payload[http2.MESSAGE_PREFIX_BYTES :])  # The usual case: a message to a frame.
        elif payload:
            self._partial += payload
            self._cut_messages()
        self._reserve()
        if ends:
            self.is_read_out = True
            if self._partial:
                raise MessageRefused("broken_message", "the call ended in the middle of a message")
        self._give_room()
        if self._inbox or ends:
            self.wake()

    def _deliver(self, message: bytes) -> None:
        self._inbox.append(message)
        self._unread_bytes += max(len(message), _MESSAGE_BYTES_MIN)

    def _cut_messages(self) -> None:
        partial = self._partial
        while len(partial) >= http2.MESSAGE_PREFIX_BYTES:
            if self._announced is None:
                self._announced = self._checked_size()
            end = http2.MESSAGE_PREFIX_BYTES + self._announced
            if len(partial) < end:
                return
            self._deliver(bytes(partial[http2.MESSAGE_PREFIX_BYTES : end]))
            del partial[:end]
            self._announced = None

    def _checked_size(self) -> int:
        compressed, size = http2.prefix_of(self._partial)
        settings = self.connection.settings
        if compressed:
            raise MessageRefused("compressed_message", "compressed messages are not taken")
        if size > settings.message_bytes_max:
            raise MessageRefused(
                "message_too_large", f"a message of {size} bytes; {settings.message_bytes_max} is the most"
            )
        return size

    def _reserve(self) -> None:
        """Have as much memory as is needed for what is kept, and for all of a message that is larger than the window.
        Raises `MessageRefused`."""
        if self.is_over:
            return
        kept = len(self._partial)
        if self._announced is not None and self._announced > self.connection.settings.window_bytes:
            kept = self._announced
        more = self._unread_bytes + kept - self._reserved
        if more > 0 and not self.connection.reserve(more):
            raise MessageRefused("too_many_bytes", "no memory is left for messages now")
        if more < 0:
            self.connection.release(-more)
        self._reserved += more

    def drop_unread(self) -> None:
        """Nobody will read what has arrived."""
        self._inbox.clear()

    def _give_room(self) -> None:
        """Tell the other end of room, if that is worth a frame."""
        waiting = self._waiter is not None and not self._inbox
        consumed = self._consumed + (len(self._partial) if waiting else 0)
        room = consumed - self._granted
        if room >= self.connection.settings.window_bytes // 2 and not (self.is_read_out or self.is_over):
            self._granted += room
            self.connection.write_control(http2.number_frame(http2.WINDOW_UPDATE, self.id, room))

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- Sending ----------------------------------------------------------------------------------------------

    async def send(self, message: bytes, *, end: bool = False) -> None:
        """Returns when the connection has taken the message. `end`: it is the last one.

        Raises `error` or `CallOver` if the call is over. Cancelled in the middle of a message, it ends the call.
        """
        self._check_open()
        if not self.connection.send_at_once(self, message, end=end):
            invariant(self.unsent is None, "two write to one call")
            self.unsent = memoryview(http2.message_prefix(len(message)) + message)
            whole, self.sent_end = len(self.unsent), end
            self.sending = asyncio.get_running_loop().create_future()
            self.connection.send_when_possible(self)
            try:
                await self.sending
            except asyncio.CancelledError:
                if self.unsent is not None and len(self.unsent) == whole:
                    self.sent_end = False  # As if it had never been called.
                elif self.unsent is not None:
                    self.connection.reset(self, http2.CANCEL)
                raise
            finally:
                self.unsent = self.sending = None
            self._check_open()

    def finish_sending(self) -> None:
        """Nothing more will be sent."""
        if not (self.sent_end or self.is_over):
            self.sent_end = True
            self.connection.write(http2.data_header(self.id, 0, end_stream=True))

    def _check_open(self) -> None:
        if self.is_over:
            raise self.error or CallOver("the call is over")

    # --- Ending -----------------------------------------------------------------------------------------------

    def finish(self, error: BaseException | None) -> None:
        """The call is over: whoever waits for it goes on. The first end counts."""
        if not self.is_over:
            self.is_over, self.error = True, error
            if self._reserved:
                self.connection.release(self._reserved)
            self._partial.clear()
            self.wake()
            if self.sending is not None and not self.sending.done():
                self.sending.set_result(None)
