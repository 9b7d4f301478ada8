"""The backends that the metadata contract is checked on, and what a test can do to each of them."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from quire.metadata import MetadataStore, SessionEvent, StoreSettings, parse_uri
from quire.metadata.drivers._sqlite_worker import Call
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.metadata.drivers.sqlite import SqliteDriver
from quire.metadata.registry import load_driver
from quire.runtime import real_runtime
from tests.support.servers.link import Link
from tests.support.waiting import eventually

SESSION_TIMEOUT_S = 2.0

# What the other process runs: open the store, create one ephemeral node, say so, and wait to be killed.
_OWNER_PROGRAM = """
import asyncio, sys
from quire.metadata import StoreSettings, open_store

async def main(uri, path, timeout_s, sequential):
    async with open_store(uri, settings=StoreSettings(session_timeout_s=float(timeout_s))) as store:
        await store.create(path, b"mine", ephemeral=True, sequential=bool(sequential))
        print("created", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class Backend(Protocol):
    """One store under test. `open` gives a new client, each with a session of its own; `root` is an empty node."""

    name: str
    root: str

    async def open(
        self, *, session_timeout_s: float = SESSION_TIMEOUT_S, operation_timeout_s: float = 10.0
    ) -> MetadataStore: ...

    async def cut(self, store: MetadataStore) -> None:
        """Keep this client from reaching the store, and wait until it knows, where it can."""

    async def mend(self, store: MetadataStore) -> None: ...

    def dying_client(self, path: str, *, sequential: bool = False) -> AbstractAsyncContextManager[None]:
        """Another client, which has created an ephemeral node; at the end of the block it dies without a word."""


class _Clients:
    """Opens clients and closes them with the test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def _keep(self, store: MetadataStore) -> MetadataStore:
        return await self._stack.enter_async_context(store)


class MemoryBackend(_Clients):
    name = "memory"
    root = "/contract"

    def __init__(self, stack: AsyncExitStack) -> None:
        super().__init__(stack)
        self._tree = MemoryTree()

    async def open(
        self, *, session_timeout_s: float = SESSION_TIMEOUT_S, operation_timeout_s: float = 10.0
    ) -> MetadataStore:
        settings = StoreSettings(operation_timeout_s, session_timeout_s)
        return await self._keep(MetadataStore(MemoryDriver(self._tree, settings, real_runtime())))

    async def cut(self, store: MetadataStore) -> None:
        self._tree.disconnect(store.session)

    async def mend(self, store: MetadataStore) -> None:
        self._tree.reconnect(store.session)

    @asynccontextmanager
    async def dying_client(self, path: str, *, sequential: bool = False) -> AsyncIterator[None]:
        store = await self.open()
        await store.create(path, ephemeral=True, sequential=sequential)
        yield
        self._tree.disconnect(store.session)


class _ServedBackend(_Clients):
    """A backend that other processes can reach by URI."""

    def __init__(self, stack: AsyncExitStack, uri: str) -> None:
        super().__init__(stack)
        self._uri = uri

    async def _open_uri(self, uri: str, settings: StoreSettings) -> tuple[MetadataStore, object]:
        parsed = parse_uri(uri)
        driver = await load_driver(parsed.backend)(parsed, settings, real_runtime())
        return await self._keep(MetadataStore(driver)), driver

    @asynccontextmanager
    async def dying_client(self, path: str, *, sequential: bool = False) -> AsyncIterator[None]:
        arguments = [self._uri, path, str(SESSION_TIMEOUT_S), "yes" if sequential else ""]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _OWNER_PROGRAM, *arguments, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                assert await process.stdout.readline() == b"created\n"
            yield
        finally:
            process.kill()
            await process.wait()


class SqliteBackend(_ServedBackend):
    """Cutting a client off means stalling its thread, as a stopped process would be."""

    name = "sqlite"
    root = "/contract"

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        super().__init__(stack, f"sqlite:{folder}/metadata.db")
        self._drivers: dict[MetadataStore, SqliteDriver] = {}
        self._stalls: dict[MetadataStore, threading.Event] = {}
        stack.callback(self._release_all)

    async def open(
        self, *, session_timeout_s: float = SESSION_TIMEOUT_S, operation_timeout_s: float = 10.0
    ) -> MetadataStore:
        store, driver = await self._open_uri(self._uri, StoreSettings(operation_timeout_s, session_timeout_s))
        assert isinstance(driver, SqliteDriver)
        self._drivers[store] = driver
        return store

    async def cut(self, store: MetadataStore) -> None:
        stalled, release = threading.Event(), threading.Event()

        def stall(*_: object) -> None:
            stalled.set()
            release.wait(60)

        self._stalls[store] = release
        self._drivers[store]._worker.submit(Call(stall, deadline_s=time.monotonic() + 60))
        await asyncio.to_thread(stalled.wait, 10)

    async def mend(self, store: MetadataStore) -> None:
        self._stalls.pop(store).set()

    def _release_all(self) -> None:
        for release in self._stalls.values():
            release.set()


class NetworkBackend(_ServedBackend):
    """A real server behind one cuttable link for each client."""

    def __init__(self, stack: AsyncExitStack, name: str, scheme: str, port: int) -> None:
        self.name = name
        self.root = f"/contract-{uuid4().hex}"
        self._stack_of_links = stack
        self._scheme, self._port = scheme, port
        super().__init__(stack, f"{scheme}://127.0.0.1:{port}{self.root}")
        self._links: dict[MetadataStore, Link] = {}

    async def open(
        self, *, session_timeout_s: float = SESSION_TIMEOUT_S, operation_timeout_s: float = 10.0
    ) -> MetadataStore:
        link = await self._stack_of_links.enter_async_context(Link(self._port))
        uri = f"{self._scheme}://127.0.0.1:{link.port}{self.root}"
        store, _ = await self._open_uri(uri, StoreSettings(operation_timeout_s, session_timeout_s))
        self._links[store] = link
        return store

    async def cut(self, store: MetadataStore) -> None:
        with store.watch_session() as session:
            self._links[store].cut()
            async with asyncio.timeout(20):
                while await session.wait_event() is not SessionEvent.SUSPENDED:
                    pass

    async def mend(self, store: MetadataStore) -> None:
        self._links[store].mend()


@asynccontextmanager
async def ready(backend: Backend, stack: AsyncExitStack) -> AsyncIterator[Backend]:
    """Create the backend's root, and close every client when the test ends."""
    async with stack:
        await (await backend.open()).create(backend.root)
        yield backend


async def expire(backend: Backend, store: MetadataStore) -> None:
    """Cut a client off until the store has given up its session, as another client sees it; then mend the link."""
    marker = f"{backend.root}/expiry-{uuid4().hex}"
    await store.create(marker, ephemeral=True)
    observer = await backend.open()
    await backend.cut(store)

    async def gone() -> bool:
        return await observer.exists(marker) is None

    await eventually(gone, what="the cut-off client's ephemeral node is removed")
    await backend.mend(store)
