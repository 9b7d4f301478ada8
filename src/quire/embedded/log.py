"""Open a log that lives in a folder: its bookies and its metadata run inside this process, as long as it is open.

    async with open_embedded(parse_file_uri("file:./data")) as client:
        async with client.open_writer("orders") as writer: ...

It is the whole system in small, not a second one: the client speaks to real bookies, over connections that never leave
the process, so what works here works on a cluster. A folder begins with one bookie and one copy of everything: more
copies on one disk would cost as much and save nothing. What a local cluster left there with more bookies is served by
as many.

Invariants:
  HeldWhileOpen   whoever runs a bookie of a folder holds the folder's lock, from before the first to after the last.
                  So sessions that are found in its metadata are those of processes that died, and end at once.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

from quire.cold import ColdStores
from quire.embedded.folder import DataFolder, FileUri, hold_folder, unusable
from quire.embedded.full_disks import telling_of_full_disks
from quire.errors import NotInitialised, QuireError
from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, MetadataStore, StoreSettings, attach_cluster, init_cluster, open_store
from quire.protocol.placement import Placement
from quire.rpc import ChannelSettings
from quire.runtime import LocalNetwork, Runtime, StrPath, real_runtime
from quire.stream.dynamic_settings import RELOAD_INTERVAL_S
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.settings import StreamSettings

if TYPE_CHECKING:
    from quire.bookie.bookie import Bookie

_DEFAULTS: Final = StreamSettings()
_BOOKIES_MIN: Final = 1

# An application may stop its event loop, in a debugger or in a long calculation, and the bookies with it: no answer
# means nothing for a long time. There is no other bookie to turn to, and nobody waits for our sessions.
_PATIENCE_S: Final = 300.0
_SESSION_S: Final = 3600.0
_POOL: Final = PoolSettings(
    channel=ChannelSettings(connect_timeout_s=_PATIENCE_S, request_timeout_s=_PATIENCE_S), lookup_timeout_s=_PATIENCE_S
)
_LEDGERS: Final = LedgerSettings(
    read_timeout_s=_PATIENCE_S,
    speculative_read_s=0.0,
    speculative_poll_s=0.0,
    read_patience_s=_PATIENCE_S,
    change_timeout_s=_PATIENCE_S,
    append_timeout_s=_PATIENCE_S,
)


@asynccontextmanager
async def open_embedded(
    uri: FileUri,
    *,
    settings: StreamSettings = _DEFAULTS,
    client_id: str | None = None,
    settings_file: StrPath | None = None,
    reload_interval_s: float = RELOAD_INTERVAL_S,
    ledger_settings: LedgerSettings | None = None,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
    cold: ColdStores | None = None,
) -> AsyncIterator[Namespace]:
    """The streams in a folder, which is made and set up if it is new. Takes what `quire.connect` takes.

    Raises `FolderInUse` with the name of who has it open, `FolderUnusable`, `DiskFull`, `WrongDisk`, and what opening a
    metadata store raises.
    """
    async with serve_folder(uri.folder, store_settings, tls, runtime) as (runtime, store, bookies):
        streams = uri.folder.streams(uri.namespace)
        with _explained(bookies):
            async with open_namespace(
                streams,
                settings=settings,
                create=True,
                client_id=client_id,
                settings_file=settings_file,
                reload_interval_s=reload_interval_s,
                ledger_settings=ledger_settings or _LEDGERS,
                placement=telling_of_full_disks(placement, bookies),
                pool_settings=pool_settings or _POOL,
                tls=tls,
                runtime=runtime,
                copies_max=len(bookies),
                store=store,
                cold=cold,
            ) as namespace:
                yield namespace


@asynccontextmanager
async def open_embedded_ledgers(
    uri: FileUri,
    *,
    settings: LedgerSettings,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
) -> AsyncIterator[LedgerClient]:
    """The ledgers in a folder. Takes what `quire.ledgers` takes, and raises what `open_embedded` does."""
    async with serve_folder(uri.folder, store_settings, tls, runtime) as (runtime, store, bookies):
        with _explained(bookies):
            async with open_ledgers(
                uri.folder.ledgers.text,
                settings=settings,
                placement=telling_of_full_disks(placement, bookies),
                pool_settings=pool_settings or _POOL,
                tls=tls,
                runtime=runtime,
                store=store,
            ) as ledgers:
                yield ledgers


# --- The bookies


@asynccontextmanager
async def serve_folder(
    folder: DataFolder,
    store_settings: StoreSettings | None,
    tls: ssl.SSLContext | None,
    runtime: Runtime | None,
    *,
    holder: str | None = None,
    listen: str | None = None,
) -> AsyncIterator[tuple[Runtime, MetadataStore, Sequence["Bookie"]]]:
    """Run the folder's bookies on a network of their own, or with `listen` on any ports of that address. Yields what a
    client in this process needs to reach them. It shares the store of the bookies, since they live and die together.
    """
    async with AsyncExitStack() as stack:
        if runtime is None:
            runtime = real_runtime()
            stack.push_async_callback(runtime.disk.aclose)
        if listen is None:
            runtime = replace(runtime, network=LocalNetwork())
        await stack.enter_async_context(hold_folder(runtime, folder, holder=holder))
        alone = replace(store_settings or StoreSettings(), session_timeout_s=_SESSION_S, sole_user=True)
        cluster, embedded = await asyncio.gather(
            _open_cluster(stack, folder, alone, runtime),
            asyncio.to_thread(_load_bookies),  # While the disk makes the store durable, if it is new.
        )
        numbers = folder.bookie_numbers() or list(range(1, _BOOKIES_MIN + 1))
        bookies = [embedded.bookie_of(runtime, cluster, folder, number, listen=listen, tls=tls) for number in numbers]
        try:
            async with asyncio.TaskGroup() as starting:
                for bookie in bookies:
                    starting.create_task(stack.enter_async_context(bookie))
        except ExceptionGroup as errors:
            raise _first(errors) from errors
        yield runtime, cluster.store, bookies


async def _open_cluster(
    stack: AsyncExitStack, folder: DataFolder, settings: StoreSettings, runtime: Runtime
) -> Cluster:
    try:
        store = await stack.enter_async_context(open_store(folder.ledgers, settings=settings, runtime=runtime))
        try:
            return await attach_cluster(store, folder.ledgers, runtime, create_layout=False)
        except NotInitialised:
            return await init_cluster(store, folder.ledgers, runtime)
    except OSError as error:
        raise unusable(folder.path, error) from error


def _load_bookies() -> ModuleType:
    return import_module("quire.embedded.bookies")


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


@contextmanager
def _explained(bookies: Sequence["Bookie"]) -> Iterator[None]:
    """Have a client's errors, which speak of missing bookies, say that those are in this process, and why they fail."""
    try:
        yield
    except QuireError as error:
        for bookie in bookies:
            if bookie.failure is not None:
                error.add_note(f"{bookie.bookie_id}, in this process, has failed: {bookie.failure}")
            elif bookie.is_readonly:
                error.add_note(f"{bookie.bookie_id}, in this process, takes nothing new: {'; '.join(bookie.reasons)}")
        raise
