"""One bookie from start to stop: prove the folders, bring back the ledgers, serve, register, keep house.

    async with Bookie(runtime, cluster, settings) as bookie:
        await bookie.wait_failed()

The order at the start: nobody else in the folders, then cookies, then the storage with everything it acknowledged, then
(after damage) limbo, and only then clients. The port is taken at once, so that a start that cannot have it is a short
one; it is listened on when there is somebody to answer, and the cluster hears of the bookie after that. At the end the
registration goes first, so that nobody chooses this bookie any more, then clients, then the storage.

A full disk is no failed disk. If a write finds no room the bookie drops its clients, since it cannot tell how much was
written, and takes nothing new, but what it has can be read. When there is room it opens its storage anew, as after a
crash. Any other failure of a disk ends it.

Invariants:
  FailureStops      after the first error of a journal, a checkpoint or a disk nothing is acknowledged any more.
  NoFalseCleanness  the DIRTY mark goes only after everything was made durable and closed.
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from ssl import SSLContext
from typing import Any, Final, Self, TypeAlias

from quire.bookie.connection import BookieConnection, RequestHandlers
from quire.bookie.garbage import GarbageCollector, GarbageSettings
from quire.bookie.history import History
from quire.bookie.identity import (
    BookieFolders,
    Identity,
    hold_folders,
    mark_clean,
    mark_dirty,
    prove_identity,
    stored_bookie_id,
)
from quire.bookie.integrity import Limbo, settle_damage
from quire.bookie.ledger_storage import LedgerStorage, OpenIndex
from quire.bookie.measures import measure, measure_connections, measure_garbage, measure_space
from quire.bookie.metrics import READONLY, UNREGISTERED, WRITABLE, BookieMetrics
from quire.bookie.moved_ledgers import MovedLedgers
from quire.bookie.requests_v2 import on_v2_adds, on_v2_frame
from quire.bookie.reserve import SpaceReserve, is_full
from quire.bookie.service import BookieService
from quire.bookie.settings import ServerSettings, StorageSettings
from quire.bookie.space import SpaceSettings, SpaceWatch
from quire.codec.registration import BOOKIE_RPC, BookieServiceInfo, Endpoint
from quire.errors import BookieFailed, DiskFull, SessionExpired, Unavailable, WrongDisk
from quire.metadata import Cluster, Registration
from quire.protocol.space import FolderSpace, SpaceMode
from quire.runtime import OsDisk, Runtime
from quire.runtime.descriptors import is_shortage
from quire.telemetry.events import logger
from quire.types import BookieId, bookie_id
from quire.values import dataclass

_LOG = logger("bookie")

_FOLDER: Final = "quire.folder"  # The property of a registration that says which folder its process holds.
_ANNOUNCE_RETRY_S: Final = 1.0
_DRAIN_S: Final = 2.0  # How long clients may take to read their last answers.


@dataclass(frozen=True, slots=True)
class BookieSettings:
    """Everything about one bookie but its cluster."""

    folders: BookieFolders
    host: str = "127.0.0.1"
    """Where to listen."""

    port: int = 3181
    """0 takes any free port. Apache's bookies listen on 3181."""

    advertised_host: str | None = None
    """What clients connect to, if that is not where the bookie listens: another name, or an address outside."""

    bookie_id: BookieId | None = None
    """The bookie's name for life. Without one: that of its folders, else the advertised host and port."""

    checkpoint_interval_s: float = 10.0
    """How often the write cache is moved to the entry logs if it does not fill up before: less to replay later."""

    register_wait_s: float = 30.0
    """How long to wait at the start for an earlier life's registration to go. Longer than a session's timeout."""

    folder_token: Callable[[str], str] | None = None
    """What the data folder is on this machine: see `quire.bookie.folder_token`. With it a bookie that was killed comes
    back at once, instead of waiting for its registration to go."""

    storage: StorageSettings = StorageSettings()
    server: ServerSettings = ServerSettings()
    space: SpaceSettings = SpaceSettings()
    garbage: GarbageSettings = GarbageSettings()


@functools.cache
def _v3_handler() -> Callable[[BookieConnection, memoryview], None]:
    """Version 3 is protobuf, and loaded with the first frame of it: an embedded log has none before it is read."""
    from quire.bookie.requests_v3 import on_v3_frame

    return on_v3_frame


_HANDLERS: Final = RequestHandlers(on_v2_adds, on_v2_frame, lambda connection, frame: _v3_handler()(connection, frame))


ServeAdmin: TypeAlias = Callable[["Bookie"], AbstractAsyncContextManager[tuple[str, int]]]


class Bookie:
    """A running bookie, from the moment its block is entered. `address` is where it listens."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        settings: BookieSettings,
        *,
        open_index: OpenIndex | None = None,
        tls: SSLContext | None = None,
        serve_admin: ServeAdmin | None = None,
    ) -> None:
        """`serve_admin` serves its admin API, and yields where: see `quire.bookie.admin.status`."""
        self._runtime, self._cluster, self.settings, self._tls = runtime, cluster, settings, tls
        self._serve_admin = serve_admin
        self._open_index = open_index or _rocks_index(f"{settings.folders.data}/index")
        journal_count = len(settings.folders.journals)
        self.metrics = BookieMetrics(runtime.clock.monotonic, journal_count=journal_count)
        self.service = BookieService(runtime, settings.server, self.metrics, journal_count=journal_count)
        self.history = History(runtime.clock)
        self.bookie_id = BookieId("")
        self.address = (settings.host, settings.port)
        self.admin_address: tuple[str, int] | None = None
        self.identity: Identity | None = None
        self.failure: Exception | None = None
        self.reasons: tuple[str, ...] = ()
        """Why it is not writable, if so."""
        self._is_ready = False
        self._failed = asyncio.Event()
        self._full = asyncio.Event()  # The storage writes nothing any more, and has to be opened anew.
        self._changed = asyncio.Event()  # The mode that the cluster should know of.
        self._stack, self._opened = AsyncExitStack(), AsyncExitStack()
        self._closing: asyncio.Task[None] | None = None
        self._space: SpaceWatch | None = None
        self._garbage: GarbageCollector | None = None

    # --- Start

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            try:
                await self._start(stack)
            except OSError as error:
                raise _start_error(error, self.settings.folders) from error
            self._stack = stack.pop_all()
        return self

    async def _start(self, stack: AsyncExitStack) -> None:
        settings, folders, cluster, runtime = self.settings, self.settings.folders, self._cluster, self._runtime
        stack.callback(lambda: self.metrics.status.__setattr__("value", UNREGISTERED))
        await stack.enter_async_context(hold_folders(runtime, folders))
        server = await runtime.network.serve(settings.host, settings.port, self._accept, silent=True)
        stack.push_async_callback(server.aclose, grace_s=0.0)
        self.address = server.address
        measure_connections(self.metrics, server)
        self.bookie_id = settings.bookie_id or await stored_bookie_id(runtime.disk, folders.data) or self._own_name()
        self.identity = await prove_identity(
            runtime, folders, cluster.bookies, bookie_id=self.bookie_id, instance_id=await cluster.instance_id()
        )
        stack.push_async_callback(self._close_opened)
        await self._open(self._opened)
        measure_space(self.metrics, lambda: self._space, folders.all, self.service)
        stack.push_async_callback(server.aclose, grace_s=_DRAIN_S)  # Before the storage: nobody may use that any more.
        if self._serve_admin is not None:
            self.admin_address = await stack.enter_async_context(self._serve_admin(self))
        await server.listen()
        self._is_ready = True
        await self._register(stack)
        self._run(stack, self._open_anew_when_full(), "opening the storage anew")
        stack.callback(self._stop_serving)
        _LOG.info(
            "bookie.serving",
            bookie_id=self.bookie_id,
            address=f"{self.address[0]}:{self.address[1]}",
            mode=self.service.mode.name.lower(),
            unclean=self.identity.was_unclean,
        )

    async def _open(self, stack: AsyncExitStack) -> None:
        """The storage, and what works on it."""
        settings, folders, cluster, runtime = self.settings, self.settings.folders, self._cluster, self._runtime
        reserve = self._reserve = SpaceReserve(runtime.disk, folders.data, bytes_max=settings.space.reserve_bytes)
        storage = await self._open_storage(stack, reserve)
        if storage.table.is_damaged:
            await settle_damage(storage, cluster, self.bookie_id)
        await mark_dirty(runtime.disk, folders)
        self._space = await stack.enter_async_context(
            SpaceWatch(
                runtime,
                folders,
                settings.space,
                reserve=reserve,
                on_change=self._on_space,
                on_failure=self.fail,
                mode=self.service.mode,
            )
        )
        self._garbage = GarbageCollector(
            storage,
            cluster.ledgers,
            runtime,
            settings.garbage,
            free_bytes=self._free_bytes,
            make_room=reserve.given_back,
            check_cluster=self._check_cluster,
            moved=MovedLedgers(cluster, runtime, self.bookie_id),
            on_pass=self.history.on_pass,
            on_failure=self.fail,
        )
        measure_garbage(self.metrics, self._garbage)
        self._run(stack, self._checkpoints(storage), "checkpoints")
        self._run(stack, self._garbage.run(), "garbage collection")
        if storage.table.has_limbo:
            self._run(stack, Limbo(storage, cluster, runtime, self.bookie_id).run(), "limbo")

    async def _open_storage(self, stack: AsyncExitStack, reserve: SpaceReserve) -> LedgerStorage:
        settings, folders, runtime = self.settings, self.settings.folders, self._runtime
        usage = await runtime.disk.usage(folders.data)
        async with AsyncExitStack() as borrowed:
            if usage.free_bytes < settings.storage.cache_bytes_max + settings.storage.journal.preallocate_bytes:
                await borrowed.enter_async_context(reserve.given_back())
            storage = await LedgerStorage.open(
                runtime,
                folders.data,
                self._open_index,
                settings.storage,
                journal_folders=folders.journals,
                is_new=self.identity is None or self.identity.is_new,
                journal_runtime=await _journal_runtime(stack, runtime),
                on_durable=self.service.on_durable,
                on_written=self.service.on_written,
                on_failure=self.fail,
            )
        stack.push_async_callback(self._close_storage, storage)
        for damage in storage.damages:
            self.metrics.damage.journal_places.value += 1
            _LOG.error("journal.damaged", file_id=damage.file_id, offset=damage.offset, reason=damage.reason)
        self.service.attach(storage)
        measure(self.metrics, storage, self.service)
        stack.push_async_callback(self.service.aclose)
        return storage

    def _own_name(self) -> BookieId:
        return bookie_id(f"{self.settings.advertised_host or self.address[0]}:{self.address[1]}")

    def _accept(self) -> asyncio.BaseProtocol:
        return BookieConnection(self.service, _HANDLERS, self._tls)

    async def _register(self, stack: AsyncExitStack) -> None:
        host = self.settings.advertised_host or self.address[0]
        extensions = ("tls",) if self._tls is not None else ()
        token = None if self.settings.folder_token is None else self.settings.folder_token(self.settings.folders.data)
        properties = {} if token is None else {_FOLDER: token}
        endpoints = [Endpoint("bookie", host, self.address[1], BOOKIE_RPC, extensions=extensions)]
        if self.admin_address is not None:
            endpoints.append(Endpoint("httpserver", self.admin_address[0], self.admin_address[1], "http"))
        registration = await stack.enter_async_context(
            self._cluster.bookies.register(
                self.bookie_id,
                BookieServiceInfo(tuple(endpoints), properties),
                readonly=self.is_readonly,
                wait_s=self.settings.register_wait_s,
                # We hold this very folder, so whoever registered with it before is dead.
                is_dead=lambda info: token is not None and info.properties.get(_FOLDER) == token,
            )
        )
        self.metrics.status.value = READONLY if self.is_readonly else WRITABLE
        self._run(stack, self._announce(registration), "announcing the mode")
        self._run(stack, registration.wait_lost(), "registration")

    # --- While it runs

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def is_readonly(self) -> bool:
        return self.service.mode is not SpaceMode.WRITABLE

    @property
    def usage(self) -> FolderSpace:
        """The disk of the data folder, as it was when somebody last looked."""
        nothing = FolderSpace(0, 0)
        return nothing if self._space is None else self._space.spaces.get(self.settings.folders.data, nothing)

    @property
    def space(self) -> SpaceWatch | None:
        return self._space

    @property
    def garbage(self) -> GarbageCollector | None:
        return self._garbage

    async def _check_cluster(self) -> None:
        """Raise unless the metadata is still that of this bookie's cluster: in any other, all its ledgers are gone."""
        cookie = None if self.identity is None else self.identity.cookie
        stored = await self._cluster.bookies.cookie(self.bookie_id)
        instance_id = await self._cluster.instance_id()
        if cookie is None or stored is None or instance_id != cookie.instance_id or cookie.differences(stored.cookie):
            raise WrongDisk(
                f"the metadata store no longer knows bookie {self.bookie_id!r} as it was when it started",
                hint="Nothing was deleted. Was the cluster set up anew, or the bookie's cookie removed?",
            )

    async def _free_bytes(self) -> int:
        return (await self._runtime.disk.usage(self.settings.folders.data)).free_bytes

    def fail(self, error: Exception) -> None:
        """Acknowledge nothing more. Unless the disk is only full, `wait_failed` tells the caller to stop the bookie."""
        if is_full(error) and self._space is not None and self.failure is None:
            self._full.set()
            self._space.on_no_room(str(error))
            self._drop_clients()
            return
        if self.failure is None:
            self.failure = error
            _LOG.critical("bookie.failed", error=str(error), kind=type(error).__name__)
            self.metrics.damage.disk_errors.value += isinstance(error, OSError)
        self._stop_serving()
        self._failed.set()

    async def _open_anew_when_full(self) -> None:
        while True:
            await self._full.wait()
            await self._runtime.clock.sleep(self.settings.space.check_interval_s)
            storage = self.settings.storage
            if self._is_ready and not await self._reserve.can_be_had(
                storage.cache_bytes_max + storage.journal.preallocate_bytes
            ):
                continue
            self._stop_serving()
            self._drop_clients()
            await self._close_opened()
            self._full.clear()
            try:
                await self._open(self._opened)
            except OSError as error:
                if not is_full(error):
                    raise
                self._full.set()
                continue
            self.service.is_stopping, self._is_ready = False, True
            _LOG.info("bookie.opened_anew", mode=self.service.mode.name.lower())

    async def _close_opened(self) -> None:
        """Close what `_open` opened. Once begun that goes on to its end, also if a caller is cancelled."""
        if self._closing is None or self._closing.done():
            opened, self._opened = self._opened, AsyncExitStack()
            self._closing = asyncio.create_task(opened.aclose(), name=f"close {self.settings.folders.data}")
        await asyncio.shield(self._closing)

    async def wait_failed(self) -> None:
        """Return never; raise why the bookie cannot go on."""
        await self._failed.wait()
        error = self.failure
        if isinstance(error, OSError) and is_shortage(error):
            raise BookieFailed(
                f"bookie {self.bookie_id!r} stopped, since it could open no more files: {error}",
                hint="Nothing that was acknowledged is lost. Raise the limit of open files, then start it again.",
            ) from error
        if isinstance(error, OSError):
            raise BookieFailed(
                f"bookie {self.bookie_id!r} stopped, since its disk failed: {error}",
                hint="Nothing that was acknowledged is lost. Check the disk, then start the bookie again.",
            ) from error
        if error is not None:
            raise error

    def _stop_serving(self) -> None:
        self.service.is_stopping = True
        self._is_ready = False
        if self.failure is not None:
            self._drop_clients()

    def _drop_clients(self) -> None:
        for connection in list(self.service.connections):
            connection.abort()  # What was not acknowledged by now may not be, not even by mistake.

    def _run(self, stack: AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
        """Keep a task running until the bookie stops. If it fails, so does the bookie."""

        async def watched() -> None:
            try:
                await work
            except Exception as error:
                self.fail(error)

        task = asyncio.create_task(watched(), name=f"{name} of {self.settings.folders.data}")
        task.add_done_callback(lambda _: work.close())  # It may be cancelled before its first step.
        stack.push_async_callback(_end, task)

    async def _checkpoints(self, storage: LedgerStorage) -> None:
        wanted = self.service.checkpoint_wanted
        while True:
            try:
                async with asyncio.timeout(self.settings.checkpoint_interval_s):
                    await wanted.wait()
            except TimeoutError:
                pass
            wanted.clear()
            if storage.is_dirty:
                await storage.checkpoint()
            else:
                storage.shrink()
            self.service.release_throttled()

    def _on_space(self, mode: SpaceMode, reasons: tuple[str, ...]) -> None:
        self.service.mode, self.reasons = mode, reasons
        self._changed.set()
        self.history.on_mode(mode, reasons)
        _LOG.warning("bookie.mode", mode=mode.name.lower(), reasons=list(reasons))

    async def _announce(self, registration: Registration) -> None:
        """Keep the cluster informed of the mode. While the store cannot be reached, try again."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await registration.set_readonly(self.is_readonly)
                self.metrics.status.value = READONLY if self.is_readonly else WRITABLE
            except (Unavailable, SessionExpired) as error:
                _LOG.warning("bookie.mode_not_announced", error=str(error))
                await self._runtime.clock.sleep(_ANNOUNCE_RETRY_S)
                self._changed.set()

    # --- Stop

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _close_storage(self, storage: LedgerStorage) -> None:
        if self.failure is not None or self._full.is_set():
            await storage.abandon()
            return
        try:
            await storage.aclose()
        except OSError as error:
            raise _start_error(error, self.settings.folders) from error
        await mark_clean(self._runtime.disk, self.settings.folders)
        _LOG.info("bookie.stopped", bookie_id=self.bookie_id)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _journal_runtime(stack: AsyncExitStack, runtime: Runtime) -> Runtime:
    """Threads of their own for the journals, on a real machine: syncs must not stand behind reads. And no memory, since
    nobody reads a journal while the bookie runs.
    """
    if not isinstance(runtime.disk, OsDisk):
        return runtime
    disk = OsDisk(keeps_pages=False)
    stack.push_async_callback(disk.aclose)
    return replace(runtime, disk=disk)


def _rocks_index(folder: str) -> OpenIndex:
    from quire.bookie.rocks_index import RocksIndex  # Native code that a simulation does not need.

    return lambda position: RocksIndex.open(folder, create=position is None, position_min=position)


def _start_error(error: OSError, folders: BookieFolders) -> Exception:
    if is_full(error):
        return DiskFull(f"the disk of {folders.data!r} is full: {error}", path=folders.data)
    return BookieFailed(
        f"the bookie cannot use its directories or its port: {error}",
        hint="Check that the directories exist and may be written by this user, and that the port is free.",
    )
