"""A kazoo client that belongs to one event loop: one thread talks to the servers, everything else runs on the loop.

kazoo is written for programs made of threads. Four of its habits would break our promises, and are changed here, where
kazoo lets us replace its handler and one method of its client:
  Replies and watch events come from two worker threads, and one may overtake the other. Here both are handed to the
    loop by the thread that read them, in the order in which the server sent them.
  A request made while the connection changes state may slip past the cleanup, and be carried out later, for another
    session. Here requests and state changes exclude one another: see `submit`.
  Waking the thread may block the caller, once a socket buffer is full. Here it never does.
  Closing waits for the network without a bound. Here every wait of the thread ends at `abort`.
"""

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, MarshallingError, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import Callback, KeeperState
from kazoo.retry import KazooRetry

DEFAULT_PORT: Final = 2181

_RECONNECT_DELAY_S: Final = 0.1  # Before the first new attempt; doubled after each one, with jitter.
_RECONNECT_DELAY_S_MAX: Final = 1.0
_RESTART_DELAY_S: Final = 1.0
_ABORT_PATIENCE_S: Final = 1.0

log: Final = logging.getLogger("quire.metadata.zookeeper")
log.addHandler(logging.NullHandler())  # A program that configured no logging sees no chatter about reconnects.


class _Wakeups:
    """Stands for both ends of the socket pair by which kazoo's thread is told that requests wait.

    kazoo sends one byte for each request. Here at most one byte is ever under way and the rest is a number, so that
    `send` cannot block on a full buffer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._receiver, self._sender = socket.socketpair()

    def fileno(self) -> int:
        return self._receiver.fileno()

    def send(self, data: bytes) -> int:
        with self._lock:
            if self._count == 0:
                self._sender.send(b"\0")
            self._count += 1
        return len(data)

    def recv(self, _size: int) -> bytes:
        with self._lock:
            if self._count == 0:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self._count -= 1
            if self._count == 0:
                self._receiver.recv(1)
        return b"\0"

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


class _LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """How kazoo waits, connects and calls back. Never `running`, in kazoo's words: it has no worker threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, connect_timeout_s: float) -> None:
        super().__init__()
        self._loop = loop
        self._connect_timeout_s = connect_timeout_s
        self.connecting = False  # From the first attempt to reach a server until it granted the session.
        self._aborted = False
        self._abort_receiver, self._abort_sender = socket.socketpair()
        self._closing = threading.Event()
        self.sleep_func = self._closing.wait  # A pause between two attempts ends when the client closes.
        self.last_failure = ""

    def call_on_loop(self, callback: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            pass  # The loop was closed before the driver: nobody is left to be told.

    def dispatch_callback(self, callback: Callback) -> None:
        self.call_on_loop(callback.func, *callback.args)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def spawn(self, func: Callable[..., object], *args: object, **kwargs: object) -> threading.Thread:
        thread = threading.Thread(
            target=self._run, args=(func, args, kwargs), name="quire-zookeeper-connection", daemon=True
        )
        thread.start()
        return thread

    def _run(self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        while True:
            try:
                func(*args, **kwargs)
            except Exception:  # kazoo gives up on a reply that it cannot parse. The driver must not: it starts over.
                log.exception("the connection to ZooKeeper failed in an unexpected way")
            if self._closing.wait(_RESTART_DELAY_S):
                return

    def create_socket_pair(self) -> tuple[_Wakeups, _Wakeups]:
        wakeups = _Wakeups()
        return wakeups, wakeups

    def create_connection(self, address: tuple[str, int], **_kwargs: object) -> socket.socket:
        self.connecting = True
        connection = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = connection.connect_ex(address)
            if code == errno.EINPROGRESS:
                _, writable, _ = self.select([], [connection], [])
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if writable else errno.ETIMEDOUT
            if code:
                raise OSError(code, os.strerror(code))
        except OSError as error:
            self.last_failure = str(error.strerror or error)
            connection.close()
            raise
        self.last_failure = "no answer"  # Until the session is there; only a client that waits for one looks at this.
        return connection

    def select(
        self, readers: list[Any], writers: list[Any], others: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        if self.connecting:  # kazoo would wait for a silent server until the session is as good as lost.
            timeout = min(timeout or self._connect_timeout_s, self._connect_timeout_s)
        readable, writable, failed = super().select([*readers, self._abort_receiver], writers, others, timeout)
        if self._aborted:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the client closes")
        return readable, writable, failed

    def begin_close(self) -> None:
        self._closing.set()

    def abort(self) -> None:
        """Make the thread give up whatever it waits for, now and from now on. Harmless after it ended."""
        self._aborted = True
        try:
            self._abort_sender.send(b"\0")
        except OSError:
            pass  # Closed already, so nobody waits any more.

    def close(self) -> None:
        self._abort_receiver.close()
        self._abort_sender.close()


class LoopClient(KazooClient):  # type: ignore[misc]
    """A kazoo client whose requests answer with asyncio futures and whose states are told on the loop.

    `on_state(state, epoch, session)` is called for each change, in order. The epoch counts the sessions that ended.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        session_timeout_s: float,
        connect_timeout_s: float,
        on_state: Callable[[str, int, int | None], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._epoch = 0
        self._gate = threading.Lock()  # Held while the state changes, and while a request enters the queue.
        handler = _LoopHandler(self._loop, connect_timeout_s=connect_timeout_s)
        retry = KazooRetry(
            max_tries=-1,
            delay=_RECONNECT_DELAY_S,
            max_delay=min(_RECONNECT_DELAY_S_MAX, session_timeout_s / 4),  # So that a session survives some failures.
            sleep_func=handler.sleep_func,
        )
        super().__init__(
            hosts=list(servers), timeout=session_timeout_s, handler=handler, connection_retry=retry, logger=log
        )

    @property
    def last_failure(self) -> str:
        """Why the last attempt to connect failed, in a few words; empty if none did."""
        failure: str = self.handler.last_failure
        return failure

    def _session_callback(self, state: str) -> None:
        # kazoo's thread calls this for each change of state; should a later kazoo not do so any more, `open_driver`
        # finds that it never gets connected.
        with self._gate:
            before = self.client_state
            super()._session_callback(state)
            if self.client_state == before:
                return
            session = None
            if state == KeeperState.CONNECTED:
                session = self.client_id[0]
                self.handler.connecting = False
            elif state != KeeperState.CONNECTING:
                self._epoch += 1
            self.handler.call_on_loop(self._on_state, state, self._epoch, session)

    def submit(self, send: Callable[[], Any], *, epoch: int | None = None) -> asyncio.Future[Any] | None:
        """Put a request on the present connection and return its reply to come; None if there is no connection.

        With `epoch`, raise `SessionExpiredError` if that is not the epoch of the present session. The gate makes this
        exact: while it is held the connection can neither break nor change, and when it breaks, kazoo fails all that
        was put on it. So a request never waits for another connection, let alone for another session.
        """
        with self._gate:
            if epoch is not None and epoch != self._epoch:
                raise SessionExpiredError("the session ended before the request was sent")
            if self.client_state != KeeperState.CONNECTED:
                return None
            result = send()
        reply: asyncio.Future[Any] = self._loop.create_future()
        result.rawlink(lambda _: self.handler.call_on_loop(_settle, reply, result))
        return reply

    async def aclose(self, patience_s: float) -> None:
        """End the session and the thread. A server that does not confirm within `patience_s` is left to find out."""
        closed = asyncio.Event()
        self.handler.begin_close()
        closer = threading.Thread(target=self._close, args=(closed,), name="quire-zookeeper-close", daemon=True)
        closer.start()
        try:
            if self.connected:
                await _wait(closed, patience_s)
        finally:
            self.handler.abort()
        if await _wait(closed, _ABORT_PATIENCE_S):
            closer.join()
        else:
            log.warning("a name lookup holds up the end of a ZooKeeper client; its thread ends with the lookup")

    def _close(self, closed: asyncio.Event) -> None:
        try:
            self.stop()
            self.close()
            self.handler.close()
        finally:
            self.handler.call_on_loop(closed.set)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _settle(reply: asyncio.Future[Any], result: Any) -> None:
    if reply.done():
        return  # Its caller does not wait any more.
    error = result.exception
    if error is None:
        reply.set_result(result.value)
    elif isinstance(error, KazooException):
        reply.set_exception(error)
    else:
        garbled = MarshallingError("a reply could not be read")
        garbled.__cause__ = error
        reply.set_exception(garbled)
