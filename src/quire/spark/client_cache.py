"""One open client for each log that a process of Spark works with, for as long as that process has work.

    with borrowed("distributedlog://zk1:2181/ns") as access:
        info = access.run(access.namespace.stream_info("orders"))

    borrowed(uri: str) -> AbstractContextManager[Access]
    Access.namespace: quire.stream.namespace.Namespace      the open client; use it from coroutines given to `run` only
    Access.uri: str                                         what other processes give to `borrowed` for the same log
    Access.run(work: Coroutine[Any, Any, T]) -> T           does the work in the loop's thread, and waits for it
    Access.each(source: AsyncIterator[T]) -> Generator[T]   iterates in the loop's thread

Spark calls `read`, `write`, `commit` and the rest in processes that it forks and uses again, without an event loop and
without a word when they end. So a client is opened by whoever needs it first, in a thread with a loop, and the next
ones find it open. `file:` is served by a process of its own (`quire.embedded.host`), since a folder has one holder and
Spark has many processes. `quire:` is refused: Spark reads from bookies directly.

Invariants:
  OnePerLog         a process has one client for each URI, and one loop thread for all of them.
  ForksAreStrangers a forked child begins with nothing: clients, threads and locks of its parent are of no use to it.
  IdleIsClosed      a client that nobody borrowed for a while is closed, and so is every one when the process ends.
"""

import asyncio
import atexit
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote

from quire.client import parse
from quire.embedded.folder import NAMESPACE, is_file_uri, parse_file_uri
from quire.embedded.host import hosted
from quire.errors import InvalidUri
from quire.spark.explain import explained
from quire.stream.namespace import Namespace, open_namespace
from quire.sync.loop_thread import LoopThread, borrow_thread, return_thread
from quire.sync.pump import Pump

T = TypeVar("T")

_IDLE_S: Final = 60.0


class Access:
    """An open client, in the hands of whoever borrowed it."""

    def __init__(self, thread: LoopThread, namespace: Namespace, uri: str) -> None:
        self._thread, self.namespace, self.uri = thread, namespace, uri
        self._at_close: list[Callable[[], Awaitable[None]]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` in the loop's thread; return, or raise, what it does. Not to be called from that thread."""
        return self._thread.call(lambda: work)

    def call_at_close(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Have something that was opened through the client closed before it, in the loop's thread."""
        self._at_close.append(callback)

    async def close_opened(self) -> None:
        for callback in reversed(self._at_close):
            await callback()

    def each(self, source: AsyncIterator[T]) -> Generator[T]:
        """What an async iterator gives, which is read ahead by one item. Close the generator, or use all of it."""
        pump = Pump(source, lambda task: None)
        try:
            while items := self._thread.call(pump.take):
                yield from items
        finally:
            if not pump.is_over:
                self._thread.call(pump.aclose)


@contextmanager
def borrowed(uri: str) -> Iterator[Access]:
    """The client of `uri`, open. Any thread may borrow it, several at a time.

    Raises `InvalidUri`, `FolderInUse`, `FolderUnusable`, and what `quire.connect` raises at the beginning of its block.
    """
    settle_worker()
    with explained():
        client = _cache.take(uri)
        try:
            yield client.access
        finally:
            _cache.give_back(client)


def settle_worker() -> None:
    """Once in each Python worker of Spark: take what is loaded by now out of the collector's sight.

    Workers collect garbage after every task, and would look at all of PySpark and of Quire each time.
    """
    taskcontext = sys.modules.get("pyspark.taskcontext")
    if not _cache.is_settled and taskcontext is not None and taskcontext.TaskContext.get() is not None:
        _cache.is_settled = True
        gc.collect()
        gc.freeze()


# --- Where a log is


def direct_uri(uri: str) -> str:
    """`uri` in a form that means the same in every process of this machine. Raises `InvalidUri`."""
    if is_file_uri(uri):
        found = parse_file_uri(uri)
        namespace = "" if found.namespace == NAMESPACE else f"?namespace={quote(found.namespace)}"
        return f"file:{quote(found.folder.path)}{namespace}"
    if uri.partition(":")[0].lower() in ("quire", "quires"):
        raise InvalidUri(
            f"{uri!r} leads to proxies, and Spark reads from bookies directly",
            hint="Give the namespace itself: distributedlog://zk1:2181/ns, distributedlog+etcd://host:2379/ns, or what "
            "`quire up` shows as its direct URI.",
            uri=uri,
        )
    parsed = parse(uri)
    if parsed.store.backend != "sqlite":
        return parsed.text
    return f"distributedlog+sqlite:{quote(os.path.abspath(parsed.store.location))}?namespace={quote(parsed.path)}"


@asynccontextmanager
async def _opened(uri: str) -> AsyncIterator[tuple[Namespace, str, Callable[[], None]]]:
    """A client, how others reach the same log, and what to do before it is used again."""
    if not is_file_uri(uri):
        async with open_namespace(parse(uri)) as namespace:
            yield namespace, uri, _nothing
        return
    found = parse_file_uri(uri)
    async with hosted(found.folder) as hosting:
        direct = found.folder.streams(found.namespace)
        async with open_namespace(direct, create=True, copies_max=hosting.bookies) as namespace:
            yield namespace, uri, hosting.ensure


def _nothing() -> None:
    """There is nobody to start."""


# --- The clients of this process


class _Client:
    """A client, open or being opened. Entered and left by one task, as asyncio's blocks want it."""

    def __init__(self, uri: str, thread: LoopThread) -> None:
        self.uri, self._thread = uri, thread
        self.users = 0
        self.access: Access
        self.ensure: Callable[[], None]
        self.idle: threading.Timer | None = None
        self._end: asyncio.Event
        self._holding: asyncio.Task[None]

    def open(self) -> None:
        self._thread.call(self._open)

    def close(self) -> None:
        self._thread.call(self._close)

    async def _open(self) -> None:
        self._end = asyncio.Event()
        is_open = asyncio.Event()
        opening = asyncio.create_task(is_open.wait())
        self._holding = asyncio.create_task(self._hold(is_open), name=f"hold {self.uri}")
        await asyncio.wait([opening, self._holding], return_when=asyncio.FIRST_COMPLETED)
        if not is_open.is_set():
            opening.cancel()
            self._holding.result()  # Raises why it cannot be opened.

    async def _hold(self, is_open: asyncio.Event) -> None:
        async with _opened(self.uri) as (namespace, uri, self.ensure):
            self.access = Access(self._thread, namespace, uri)
            is_open.set()
            await self._end.wait()
            await self.access.close_opened()

    async def _close(self) -> None:
        self._end.set()
        await asyncio.wait([self._holding])


class _Cache:
    """What this process has open."""

    def __init__(self) -> None:
        self.is_settled = False
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}  # One opens, and the others wait for it.
        self._clients: dict[str, _Client] = {}
        self._thread: LoopThread | None = None

    def take(self, uri: str) -> _Client:
        uri = direct_uri(uri)
        with self._lock:
            turn = self._turns.setdefault(uri, threading.Lock())
        with turn:
            with self._lock:
                client = self._clients.get(uri)
                if client is not None:
                    client.users += 1
                    self._calm(client)
                elif self._thread is None:
                    self._thread = borrow_thread()
                thread = self._thread
            if client is not None:
                try:
                    client.ensure()
                except BaseException:
                    self.give_back(client)
                    raise
                return client
            assert thread is not None
            client = _Client(uri, thread)
            client.open()
            with self._lock:
                client.users = 1
                self._clients[uri] = client
            return client

    def give_back(self, client: _Client) -> None:
        with self._lock:
            client.users -= 1
            if client.users == 0 and self._clients.get(client.uri) is client:
                client.idle = threading.Timer(_IDLE_S, self._close_idle, [client])
                client.idle.daemon = True
                client.idle.start()

    def _calm(self, client: _Client) -> None:
        if client.idle is not None:
            client.idle.cancel()
            client.idle = None

    def _close_idle(self, client: _Client) -> None:
        with self._lock:
            if client.users or self._clients.get(client.uri) is not client:
                return
            del self._clients[client.uri]
        client.close()

    def close(self) -> None:
        """Everything, and the thread."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
            thread, self._thread = self._thread, None
        for client in clients:
            self._calm(client)
            client.close()
        if thread is not None:
            return_thread(thread)


_cache = _Cache()


def close_all() -> None:
    """Close every client of this process that is open. Those who borrowed one have to be done with it."""
    _cache.close()


def _forget_after_fork() -> None:
    global _cache
    _cache = _Cache()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(close_all)
