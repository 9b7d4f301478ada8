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
from typing import Final

from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.folder_token import folder_token
from quire.bookie.garbage import GarbageSettings
from quire.bookie.journal import JournalSettings
from quire.bookie.settings import StorageSettings
from quire.bookie.space import SpaceSettings
from quire.embedded.folder import DataFolder, FileUri, hold_folder, unusable
from quire.errors import NotInitialised, QuireError
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.placing import PlacementSettings, PolicyName
from quire.ledger.pool import PoolSettings
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster, StoreSettings, attach_cluster, init_cluster, open_store
from quire.protocol.placement import Placement
from quire.rpc import ChannelSettings
from quire.runtime import LocalNetwork, Runtime, StrPath, real_runtime
from quire.stream.dynamic_settings import RELOAD_INTERVAL_S
from quire.stream.namespace import Namespace, open_namespace
from quire.stream.settings import StreamSettings

_DEFAULTS: Final = StreamSettings()
_PORT: Final = 3181
_BOOKIES_MIN: Final = 1

# A process that is an application first: a fraction of what a bookie of its own would take.
_STORAGE: Final = StorageSettings(
    cache_bytes_max=16 << 20,
    read_cache_bytes_max=8 << 20,
    ledgers_cached_max=10_000,
    log_bytes_max=256 << 20,
    journal=JournalSettings(
        file_bytes_max=16 << 20, preallocate_bytes=1 << 20, group_bytes_max=4 << 20, queue_bytes_max=16 << 20
    ),
)
_SPACE: Final = SpaceSettings(free_bytes_min=64 << 20, reserve_bytes=0)
_GARBAGE: Final = GarbageSettings(interval_s=60.0)

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
) -> AsyncIterator[Namespace]:
    """The streams in a folder, which is made and set up if it is new. Takes what `quire.connect` takes.

    Raises `FolderInUse` with the name of who has it open, `FolderUnusable`, `DiskFull`, `WrongDisk`, and what opening a
    metadata store raises.
    """
    async with _serve(uri.folder, store_settings, tls, runtime) as (runtime, store_settings, bookies):
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
                placement=placement,
                pool_settings=pool_settings or _POOL,
                store_settings=store_settings,
                tls=tls,
                runtime=runtime,
                copies_max=len(bookies),
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
    async with _serve(uri.folder, store_settings, tls, runtime) as (runtime, store_settings, bookies):
        with _explained(bookies):
            async with open_ledgers(
                uri.folder.ledgers.text,
                settings=settings,
                placement=placement,
                pool_settings=pool_settings or _POOL,
                store_settings=store_settings,
                tls=tls,
                runtime=runtime,
            ) as ledgers:
                yield ledgers


# --- The bookies


@asynccontextmanager
async def _serve(
    folder: DataFolder, store_settings: StoreSettings | None, tls: ssl.SSLContext | None, runtime: Runtime | None
) -> AsyncIterator[tuple[Runtime, StoreSettings, Sequence[Bookie]]]:
    """Run the folder's bookies on a network of their own. Yields what a client needs to reach them."""
    async with AsyncExitStack() as stack:
        if runtime is None:
            runtime = real_runtime()
            stack.push_async_callback(runtime.disk.aclose)
        runtime = replace(runtime, network=LocalNetwork())
        await stack.enter_async_context(hold_folder(runtime, folder))
        patient = replace(store_settings or StoreSettings(), session_timeout_s=_SESSION_S)
        cluster = await _open_cluster(stack, folder, replace(patient, sole_user=True), runtime)
        numbers = folder.bookie_numbers() or list(range(1, _BOOKIES_MIN + 1))
        bookies = [Bookie(runtime, cluster, _bookie_settings(folder, number), tls=tls) for number in numbers]
        try:
            async with asyncio.TaskGroup() as starting:
                for bookie in bookies:
                    starting.create_task(stack.enter_async_context(bookie))
        except ExceptionGroup as errors:
            raise _first(errors) from errors
        yield runtime, patient, bookies


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


def _bookie_settings(folder: DataFolder, number: int) -> BookieSettings:
    bookie_id = folder.bookie_id(number)
    return BookieSettings(
        folder.bookie(number),
        host=bookie_id,
        port=_PORT,
        bookie_id=bookie_id,
        folder_token=folder_token,
        storage=_STORAGE,
        space=_SPACE,
        garbage=_GARBAGE,
    )


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


@contextmanager
def _explained(bookies: Sequence[Bookie]) -> Iterator[None]:
    """Have a client's errors, which speak of missing bookies, say that those are in this process, and why they fail."""
    try:
        yield
    except QuireError as error:
        for bookie in bookies:
            if bookie.failure is not None:
                error.add_note(f"{bookie.bookie_id}, in this process, has failed: {bookie.failure}")
            elif bookie.is_readonly and bookie.space is not None:
                why = "; ".join(bookie.space.reasons)
                error.add_note(f"{bookie.bookie_id}, in this process, takes nothing new: {why}")
        raise
