"""Logs for the tests of programs that use Quire: one in a folder, and a cluster of real bookies in the test's process.

    with local_log("/tmp/some-folder") as log, log.connect_sync() as client: ...

    with local_cluster("/tmp/other-folder") as cluster:
        program_under_test(cluster.uri)
        cluster.stop_bookie(1)
        program_under_test(cluster.uri)

Both are plain `with` blocks, for pytest (whose fixtures `quire_log` and `quire_cluster` they are, see
`quire.testing.plugin`), for unittest and for anything else. Code under test may be blocking or async, or run in other
processes: all it needs is the URI.

The bookies of a cluster are those of production: they listen on ports of the loopback interface, speak the wire
protocol, keep a journal and entry logs. Since nothing in a temporary folder has to outlive the machine, they do not
wait until the disk says that bytes are safe from a loss of power, and keep their index in memory. They run in the
thread of `quire.sync`, so that neither a blocked event loop of a test nor a debugger stops them.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import quire
from quire import sync
from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.embedded.folder import DataFolder, hold_folder
from quire.errors import BookieFailed, FolderUnusable, InvalidArgument
from quire.metadata import Cluster, StoreSettings, init_cluster, open_store
from quire.runtime import AsyncioClock, AsyncioNetwork, Runtime, StrPath, SystemRng
from quire.stream.binding import binding_for, write_binding
from quire.sync.handles import Handle, Scope, open_handle
from quire.sync.loop_thread import LoopThread
from quire.testing.memory_index import MemoryIndexFolder
from quire.testing.unsynced_disk import UnsyncedDisk
from quire.values import dataclass

_STOP_S: Final = 10.0  # A bookie gives its clients two seconds for their last answers.
_BOOKIES_MAX: Final = 99

# Little, and enough for records of any size.
_STORAGE: Final = StorageSettings(
    cache_bytes_max=16 << 20,
    read_cache_bytes_max=4 << 20,
    ledgers_cached_max=1000,
    log_bytes_max=64 << 20,
    journal=JournalSettings(
        file_bytes_max=16 << 20, preallocate_bytes=64 << 10, group_bytes_max=4 << 20, queue_bytes_max=16 << 20
    ),
)
_SPACE: Final = SpaceSettings(free_bytes_min=32 << 20, reserve_bytes=0)

# A process may be stopped in a debugger for as long as somebody likes. If it dies, so do its bookies.
_STORE: Final = StoreSettings(session_timeout_s=3600.0)


class EmbeddedLog:
    """A log in a folder. Nothing runs until somebody opens it, one client at a time. Whoever opens it again finds what
    has stayed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"file:{quote(str(folder))}"
        """For `quire.connect`, here or in another process."""

    def connect(self, **options: Any) -> AbstractAsyncContextManager[quire.Client]:
        """`quire.connect` with this log's URI."""
        return quire.connect(self.uri, **options)

    def connect_sync(self, **options: Any) -> sync.Client:
        """The same for blocking code: `quire.sync.connect`."""
        return sync.connect(self.uri, **options)


@contextmanager
def local_log(folder: StrPath) -> Iterator[EmbeddedLog]:
    """A log in `folder`, which is made when it is first opened."""
    yield EmbeddedLog(Path(folder).absolute())


# --- A cluster


@dataclass(frozen=True, slots=True)
class LocalBookie:
    """A bookie of a cluster, as it was when somebody asked."""

    number: int
    """What `stop_bookie` and `start_bookie` take: from 1 on."""

    name: str
    """Its bookie id."""

    is_running: bool
    address: tuple[str, int] | None
    """Where it listens, while it runs: another port after each start."""


class LocalCluster(Handle):
    """Bookies that run, their metadata in a SQLite file, and a namespace on them. Made by `local_cluster`.

    All methods block, until what they are about has happened. Any thread may call them.
    """

    def __init__(self, thread: LoopThread, scope: Scope, bookies: "_Bookies") -> None:
        super().__init__(thread, scope)
        self._bookies = bookies
        self.folder = Path(bookies.folder.path)
        self.uri = bookies.folder.streams().text
        """For `quire.connect`, here or in another process."""
        self.ledgers_uri = bookies.folder.ledgers.text
        """For `quire.ledgers`."""

    def connect(self, **options: Any) -> AbstractAsyncContextManager[quire.Client]:
        """`quire.connect` with this cluster's URI."""
        return quire.connect(self.uri, **options)

    def connect_sync(self, **options: Any) -> sync.Client:
        """The same for blocking code. A client that a test forgets to close is closed with the cluster."""
        return self._open(lambda: quire.connect(self.uri, **options), sync.Client, f"the client of {self.uri}")

    @property
    def bookies(self) -> list[LocalBookie]:
        """All of them, by number."""
        return self._ask(self._bookies.all)

    def stop_bookie(self, number: int) -> None:
        """Stop a bookie; what it has stays. Its clients lose their connections. Fine if it does not run."""
        self._call(lambda: self._bookies.stop(number))

    def start_bookie(self, number: int) -> None:
        """Start a bookie on what it had, and return when it serves. Fine if it runs."""
        self._call(lambda: self._bookies.start(number))


def local_cluster(folder: StrPath, *, bookies: int = 3) -> LocalCluster:
    """A cluster of `bookies` in a folder that is new or empty, for a `with` block.

    The folder is of no use afterwards: the index of its bookies is gone. Raises `InvalidArgument`, `FolderUnusable`,
    `FolderInUse`, `DiskFull`.
    """
    if not 1 <= bookies <= _BOOKIES_MAX:
        raise InvalidArgument(
            f"a test's cluster cannot have {bookies} bookies", hint=f"Ask for 1 to {_BOOKIES_MAX}.", bookies=bookies
        )
    data = DataFolder(str(Path(folder).absolute()))
    return open_handle(lambda: _serve(data, bookies), LocalCluster, f"the cluster in {data.path!r}", parent=None)


# --- In the loop thread


@asynccontextmanager
async def _serve(folder: DataFolder, count: int) -> "AsyncIterator[_Bookies]":
    disk = UnsyncedDisk()
    runtime = Runtime(clock=AsyncioClock(), disk=disk, network=AsyncioNetwork(), rng=SystemRng())
    try:
        async with hold_folder(runtime, folder):
            if folder.bookie_numbers():
                raise FolderUnusable(
                    f"bookies have been in {folder.path!r} before",
                    hint="Give each cluster of a test a new folder.",
                    path=folder.path,
                )
            async with open_store(folder.ledgers, settings=_STORE, runtime=runtime) as store:
                cluster = await init_cluster(store, folder.ledgers, runtime)
                namespace = folder.streams()
                await write_binding(store, namespace.path, binding_for(namespace), create=True)
                bookies = _Bookies(runtime, cluster, folder, count)
                try:
                    await bookies.start_all()
                    yield bookies
                finally:
                    await bookies.stop_all()
    finally:
        await disk.aclose()


class _Bookies:
    """The bookies of a cluster, each running or not."""

    def __init__(self, runtime: Runtime, cluster: Cluster, folder: DataFolder, count: int) -> None:
        self.folder = folder
        self._runtime, self._cluster = runtime, cluster
        self._indexes = {number: MemoryIndexFolder() for number in range(1, count + 1)}
        self._turns = {number: asyncio.Lock() for number in self._indexes}
        self._running: dict[int, Bookie] = {}

    def all(self) -> list[LocalBookie]:
        return [self._shown(number, self._running.get(number)) for number in self._indexes]

    def _shown(self, number: int, bookie: Bookie | None) -> LocalBookie:
        runs = bookie is not None and bookie.failure is None
        return LocalBookie(number, self.folder.bookie_id(number), runs, bookie.address if bookie and runs else None)

    async def start_all(self) -> None:
        await _all_of([self.start(number) for number in self._indexes])

    async def stop_all(self) -> None:
        await _all_of([self.stop(number) for number in self._indexes])

    async def start(self, number: int) -> None:
        self._check(number)
        async with self._turns[number]:
            if number in self._running:
                if self._running[number].failure is None:
                    return
                await self._stop(number)
            index = self._indexes[number]
            bookie = Bookie(
                self._runtime,
                self._cluster,
                self._settings(number),
                open_index=lambda position: index.open(create=position is None, position_min=position),
            )
            self._running[number] = await bookie.__aenter__()

    async def stop(self, number: int) -> None:
        self._check(number)
        async with self._turns[number]:
            await self._stop(number)

    async def _stop(self, number: int) -> None:
        bookie = self._running.pop(number, None)
        if bookie is None:
            return
        try:
            async with asyncio.timeout(_STOP_S):
                await bookie.__aexit__(None, None, None)
        except TimeoutError as error:
            raise BookieFailed(f"bookie {bookie.bookie_id!r} did not stop within {_STOP_S:g} s") from error

    def _check(self, number: int) -> None:
        if number not in self._indexes:
            raise InvalidArgument(
                f"there is no bookie {number!r} in this cluster",
                hint=f"Its bookies have the numbers 1 to {len(self._indexes)}.",
                number=number,
            )

    def _settings(self, number: int) -> BookieSettings:
        return BookieSettings(
            self.folder.bookie(number),
            port=0,
            bookie_id=self.folder.bookie_id(number),
            storage=_STORAGE,
            space=_SPACE,
        )


async def _all_of(steps: list[Coroutine[Any, Any, None]]) -> None:
    """Do them at the same time, each to its end. Raises the first error there was."""
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if result is not None:
            raise result
