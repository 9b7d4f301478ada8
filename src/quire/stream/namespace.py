"""A namespace, open: the streams in it, and everything that can be done with them by name.

    async with open_namespace("distributedlog://zk1:2181/ns") as namespace:
        await namespace.create_stream("orders")
        async with namespace.open_writer("orders") as writer: ...
        async with namespace.open_reader("orders", start="latest") as reader: ...

Invariants:
  EveryCallEnds      no call takes longer than `call_timeout_s` (and, where it waits for a lock, `lock_timeout_s`). The
                     error then says whether the call may have happened.
  RepeatedCallsFit   creating a stream that is there, and going on with a deletion that was interrupted, succeed.
"""

import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar, Unpack

from quire.codec.stream_metadata.names import stream_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.cold import ColdStores
from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, QuireError
from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import open_ledgers
from quire.ledger.deadlines import Deadline
from quire.ledger.settings import LedgerSettings
from quire.metadata import ANY_VERSION, MetadataStore, StoreSettings, Version
from quire.protocol.placement import Placement
from quire.runtime import Runtime, StrPath, real_runtime
from quire.runtime.opening import Opened, Opening
from quire.stream.binding import bound_ledgers, open_bound
from quire.stream.context import StreamContext
from quire.stream.creation import create_stream
from quire.stream.dynamic_settings import RELOAD_INTERVAL_S, DynamicSettings, adopted, follow_settings
from quire.stream.info import SegmentSizes, StreamInfo, read_info, read_subscriptions
from quire.stream.kept_bytes import keep, read_kept
from quire.stream.listing import scan_streams, watch_streams
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.positions import parse_position
from quire.stream.reader import StreamReader, open_stream_reader
from quire.stream.removal import delete_stream
from quire.stream.renaming import rename_stream
from quire.stream.settings import StreamOverrides, StreamSettings
from quire.stream.start import Start, Txid
from quire.stream.subscriptions import Subscriptions
from quire.stream.upkeep import check_exists, delete_subscription, purge_stream, seal_stream, truncate_stream
from quire.stream.uri import StreamUri, parse_stream_uri
from quire.stream.writer import StreamWriter
from quire.types import DLSN

T = TypeVar("T")

_DEFAULTS: Final = StreamSettings()


class Namespace(Opened):
    """All streams of one namespace. Made by `open_namespace`."""

    def __init__(self, context: StreamContext, uri: StreamUri, dynamic: DynamicSettings) -> None:
        self.context, self.uri, self._dynamic = context, uri, dynamic
        self._store = context.store

    def settings_for(self, stream: str, **overrides: Unpack[StreamOverrides]) -> StreamSettings:
        """The settings of a stream now: those of the namespace, then the settings file, then `overrides`."""
        return self._dynamic.of(stream_name(stream), **overrides)

    # --- Which streams there are

    async def stream_exists(self, stream: str) -> bool:
        """Whether there is a stream of this name. Raises `InvalidName`."""
        paths = self._paths(stream)

        async def look() -> bool:
            await self._store.sync()
            return await self._store.exists(paths.segments) is not None

        return await self._read(look, f"whether there is a stream {paths.stream!r}")

    async def list_streams(self, prefix: str = "") -> list[str]:
        """The streams whose names begin with `prefix`, depth first: each before those that are nested in it."""

        async def collect() -> list[str]:
            return [name async for name in self.scan_streams(prefix)]

        return await self._read(collect, f"which streams there are in {self.context.path!r}")

    def scan_streams(self, prefix: str = "") -> AsyncIterator[str]:
        """The same one by one, for namespaces that are too large for a list. Takes as long as it takes."""
        return scan_streams(self._store, self.context.path, prefix)

    def watch_streams(self) -> AsyncIterator[frozenset[str]]:
        """The top-level names now, and again whenever they changed: see `quire.stream.listing.watch_streams`."""
        return watch_streams(self._store, self.context.runtime.clock, self.context.path)

    # --- Changing that

    async def create_stream(self, stream: str) -> None:
        """Create a stream; fine if it is there. Raises `InvalidName`, and `NotBound` if the namespace has no node."""
        paths = self._paths(stream)

        async def create() -> None:
            await create_stream(self._store, paths, self.context.runtime.rng)

        await self._write(create, f"stream {paths.stream!r} is created", "Create it again: that does no harm.")

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its ledgers, once nobody writes it. Streams that are nested in it stay.

        Raises `NoSuchStream`, and `StreamOwned` if a writer does not give it up within `lock_timeout_s`. Readers find
        out that it is gone, also those that hold its read lock.
        """
        paths, patience_s = self._paths(stream), self.settings_for(stream).lock_timeout_s

        async def delete() -> None:
            await delete_stream(self.context, paths.stream, lock_timeout_s=patience_s)

        hint = "Delete it again: that goes on where this call stopped."
        await self._write(delete, f"stream {paths.stream!r} is deleted", hint, more_s=patience_s)

    async def rename_stream(self, stream: str, new_name: str) -> None:
        """Give a stream another name, in one step. What is nested in it keeps its own.

        Raises `NoSuchStream`, `StreamExists`, `StreamOwned` at once if somebody writes it or holds its read lock, and
        `RequestTooLarge` if it has more segments than the store moves in one step.
        """
        old, new = self._paths(stream), self._paths(new_name)

        async def rename() -> None:
            await self._store.sync()
            await rename_stream(self._store, old, new)

        await self._write(rename, f"stream {old.stream!r} is {new.stream!r} now", "Look which of the two exists.")

    # --- The old end of a stream, and its last

    async def truncate_stream(self, stream: str, *, before: DLSN | Txid) -> DLSN:
        """Hide all records before a place, or with lower txids, from readers. Returns the first place that is left.

        A segment in progress stays as it is. Nothing is deleted by this: see `purge_stream`. Raises `NoSuchStream`,
        `PositionInFuture`, `DamagedMetadata`, and for a txid what reading raises.
        """
        paths, settings = self._paths(stream), self.settings_for(stream)
        return await self._write(
            lambda: truncate_stream(self.context, paths, settings, before),
            f"stream {paths.stream!r} is truncated",
            "Truncate it again: that does no harm.",
        )

    async def purge_stream(self, stream: str, *, before: Txid | None = None) -> int:
        """Delete the oldest segments: those with lower txids only, or without one those that are truncated as a whole.

        Returns how many went. The last completed segment stays in any case: the next one goes on from its end. Raises
        `NoSuchStream`, `DamagedMetadata`.
        """
        paths, settings = self._paths(stream), self.settings_for(stream)
        return await self._write(
            lambda: purge_stream(self.context, paths, before, settings),
            f"stream {paths.stream!r} is purged",
            "Purge it again: that goes on where this call stopped.",
        )

    async def seal_stream(self, stream: str) -> None:
        """End a stream for ever, as its writer: see `StreamWriter.seal`. Fine if it has ended.

        Raises `NoSuchStream`, `StreamOwned` if a writer does not give it up within `lock_timeout_s`, and what opening a
        writer raises.
        """
        paths, settings = self._paths(stream), self.settings_for(stream, create_if_missing=False)
        await self._write(
            lambda: seal_stream(self.context, paths, settings),
            f"stream {paths.stream!r} is sealed",
            "Seal it again: that does no harm.",
            more_s=settings.lock_timeout_s + settings.call_timeout_s,
        )

    # --- What is known of a stream, and of its readers

    async def stream_info(self, stream: str, *, sizes: bool = False) -> StreamInfo:
        """What the metadata says of a stream. With `sizes` also the bytes of its segments, and how far the one in
        progress has come: that costs a look at the ledger of each. Raises `NoSuchStream`, `DamagedMetadata`.
        """
        paths = self._paths(stream)
        nodes = StreamNodes(self._store, paths)
        ledgers = SegmentSizes(self.context.ledgers, password=self.settings_for(stream).password) if sizes else None
        return await self._read(lambda: read_info(nodes, ledgers), f"what is known of stream {paths.stream!r}")

    async def subscriptions(self, stream: str) -> dict[str, DLSN | None]:
        """Where each named reader goes on, by name; None if it never said so. Raises `NoSuchStream`,
        `DamagedMetadata`.
        """
        paths = self._paths(stream)

        async def collect() -> dict[str, DLSN | None]:
            await check_exists(self._store, paths)
            return await read_subscriptions(Subscriptions(self._store, paths))

        return await self._read(collect, f"who reads stream {paths.stream!r}")

    async def delete_subscription(self, stream: str, subscription: str) -> None:
        """Forget a named reader and its position; fine if there is none. A reader that is open may commit it anew.

        Raises `NoSuchStream`, `InvalidName`, and `StreamOwned` while an exclusive reader is open under this name.
        """
        paths = self._paths(stream)
        what = f"subscription {subscription!r} of stream {paths.stream!r} is deleted"
        await self._write(
            lambda: delete_subscription(self._store, paths, subscription), what, "Delete it again: that does no harm."
        )

    # --- What an application keeps at a stream

    async def stream_metadata(self, stream: str) -> tuple[bytes, Version]:
        """What was stored with `set_stream_metadata`, empty if nothing was, and its version. Raises `NoSuchStream`."""
        paths = self._paths(stream)
        return await self._read(lambda: read_kept(self._store, paths), f"what is kept at stream {paths.stream!r}")

    async def set_stream_metadata(self, stream: str, data: bytes, *, expected: Version = ANY_VERSION) -> None:
        """Keep a few bytes at a stream. Raises `NoSuchStream`, `VersionConflict` unless they have the `expected`
        version, `RequestTooLarge`.
        """
        paths = self._paths(stream)
        what = f"the bytes are kept at stream {paths.stream!r}"
        await self._write(lambda: keep(self._store, paths, data, expected), what, "Read them back.")

    # --- Writing and reading

    def open_writer(self, stream: str, **overrides: Unpack[StreamOverrides]) -> Opening[StreamWriter]:
        """The one writer of a stream, for an `async with` block, or to be awaited.

        `overrides` are settings for this writer alone. Raises `InvalidName`, `InvalidArgument`, and what
        `quire.stream.ownership.open_stream_writer` raises.
        """
        name = stream_name(stream)
        settings = self.settings_for(name, **overrides)
        opened = open_stream_writer(self.context, name, settings, sample=self._sampler(name, settings, overrides))
        return Opening(opened, f"the writer of stream {name!r}", parent=self.opening)

    def open_reader(
        self,
        stream: str,
        *,
        start: Start | str = "earliest",
        subscription: str | None = None,
        exclusive: bool = False,
        skip_truncated: bool = False,
        **overrides: Unpack[StreamOverrides],
    ) -> Opening[StreamReader]:
        """A reader of a stream, for an `async with` block, or to be awaited.

        `overrides` are settings for this reader alone. `start` may be text, such as `>3:17:0` or
        `t:2026-01-01`: see `quire.stream.positions` for all forms.
        Raises `InvalidName`, `InvalidArgument`, and what `quire.stream.reader.open_stream_reader` raises.
        """
        name = stream_name(stream)
        opened = open_stream_reader(
            self.context,
            name,
            self.settings_for(stream, **overrides),
            start=parse_position(start) if isinstance(start, str) else start,
            subscription=subscription,
            exclusive=exclusive,
            skip_truncated=skip_truncated,
        )
        return Opening(opened, f"the reader of stream {name!r}", parent=self.opening)

    # --- Its end

    async def close(self) -> None:
        """Close the client, after all that was opened through it without a block. Fine if it is closed."""
        await self._close_opening()

    # --- For the parts

    def _sampler(self, stream: str, opened: StreamSettings, overrides: StreamOverrides) -> Callable[[], StreamSettings]:
        """How an open writer learns of a change of the settings file."""
        return lambda: adopted(opened, self._dynamic.of(stream, **overrides))

    def _paths(self, stream: str) -> StreamPaths:
        return self.context.paths(stream_name(stream))

    async def _read(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        deadline = Deadline(self._dynamic.base.call_timeout_s)

        def late() -> QuireError:
            return MetadataUnavailable(f"{what} could not be told within {deadline.timeout_s:g} s")

        async with deadline.or_raise(late):
            return await call()

    async def _write(self, call: Callable[[], Awaitable[T]], what: str, hint: str, *, more_s: float = 0.0) -> T:
        deadline = Deadline(self._dynamic.base.call_timeout_s + more_s)

        def late() -> QuireError:
            return MetadataOutcomeUnknown(
                f"whether {what} is not known: the call did not end within {deadline.timeout_s:g} s", hint=hint
            )

        async with deadline.or_raise(late):
            return await call()


@asynccontextmanager
async def open_namespace(
    uri: str | StreamUri,
    *,
    settings: StreamSettings = _DEFAULTS,
    create: bool = False,
    client_id: str | None = None,
    settings_file: StrPath | None = None,
    reload_interval_s: float = RELOAD_INTERVAL_S,
    ledger_settings: LedgerSettings | None = None,
    placement: PolicyName | Placement | PlacementSettings = "rack-aware",
    pool_settings: PoolSettings | None = None,
    store_settings: StoreSettings | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
    copies_max: int | None = None,
    store: MetadataStore | None = None,
    cold: ColdStores | None = None,
) -> AsyncIterator[Namespace]:
    """Open the namespace at `uri` and the ledger cluster that it is bound to.

    With `create` the namespace's node is made if it is missing, and in a store of this machine it is bound to the
    ledgers at `/ledgers` if nothing says where they are. `client_id` is how others see us in locks; unless given, it is
    host and process. `settings_file` is followed as `quire.stream.dynamic_settings` says. `copies_max` is for a cluster
    that will never have more bookies: settings that ask for more copies get as many as there can be. `store` is for
    who has the namespace's store open already; `cold` is for cold storage whose keys are not in the environment. Who
    gives one of these closes it.

    Raises `InvalidUri`, `NotBound`, `NotInitialised` if there is no ledger cluster where the binding says, and what
    opening a metadata store raises.
    """
    parsed, runtime = parse_stream_uri(uri) if isinstance(uri, str) else uri, runtime or real_runtime()
    async with (
        follow_settings(
            runtime, settings, settings_file, reload_interval_s=reload_interval_s, copies_max=copies_max
        ) as dynamic,
        open_bound(parsed, create=create, settings=store_settings, runtime=runtime, store=store) as (opened, found),
        open_ledgers(
            bound_ledgers(parsed, found),
            settings=ledger_settings or LedgerSettings(),
            placement=placement,
            pool_settings=pool_settings,
            store_settings=store_settings,
            tls=tls,
            runtime=runtime,
            store=store if parsed.is_local else None,  # Where the ledgers are in the same store by definition.
        ) as ledgers,
    ):
        binding = found.binding.resolved(parsed.authority)
        stores = cold or ColdStores()
        context = StreamContext(runtime, opened, ledgers, parsed.path, binding, client_id or this_client(), stores)
        try:
            yield Namespace(context, parsed, dynamic)
        finally:
            if cold is None:
                await stores.aclose()


def this_client() -> str:
    """How this process is called in locks, unless it is told otherwise: host, slash, process."""
    return f"{socket.gethostname()}/{os.getpid()}"
