"""The streams of a namespace, through proxies: everything that can be done with them by name.

    async with open_proxy_client("quire://proxy1:7400,proxy2:7400/ns", settings=…) as client:
        async with client.open_writer("orders") as writer: ...
        async with client.open_reader("orders", start="latest") as reader: ...

Calls are those of `quire.stream.namespace.Namespace`, and raise what those raise; if no proxy answers in time, they
raise `ProxyUnreachable`, or `ProxyOutcomeUnknown` if the call may have happened.

Invariants:
  EveryCallEnds      no call takes longer than `call_timeout_s` (and, where it waits for a lock, `lock_timeout_s`).
  RepeatedCallsFit   creating a stream that is there, and going on with a deletion that was interrupted, succeed.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Unpack

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidArgument, NoSuchStream, ProxyUnreachable
from quire.metadata import ANY_VERSION, Version
from quire.protocol.ownership_cache import OwnershipCache
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.listing import Listing
from quire.proxy.client.operating import Operating
from quire.proxy.client.places import info_of, position_message, positions_of
from quire.proxy.client.reader import open_remote_reader
from quire.proxy.client.requests import Requests
from quire.proxy.client.settings import ProxyClientSettings, check_ours, with_overrides
from quire.proxy.client.uri import SCHEME, TLS_SCHEME, ProxyUri, parse_proxy_uri
from quire.proxy.client.watching import Watching
from quire.proxy.client.writer import ProxyWriter, open_proxy_writer
from quire.proxy.client.writing import Writing
from quire.rpc.serving import methods
from quire.rpc.serving.grpc_channel import GrpcTransport
from quire.rpc.serving.results import dlsn_of
from quire.rpc.serving.tls import TlsFiles, client_context
from quire.rpc.serving.transport import Transport
from quire.runtime import Runtime, real_runtime
from quire.runtime.opening import Opened, Opening
from quire.stream.info import StreamInfo
from quire.stream.metrics import StreamMetrics
from quire.stream.namespace import this_client
from quire.stream.positions import parse_position
from quire.stream.reader import StreamReader
from quire.stream.settings import StreamOverrides, StreamSettings
from quire.stream.start import Start, Txid
from quire.telemetry.metrics import Registry
from quire.types import DLSN

_STREAM_DEFAULTS: Final = StreamSettings()
_CLIENT_DEFAULTS: Final = ProxyClientSettings()


class ProxyClient(Operating, Opened):
    """All streams of one namespace. Made by `open_proxy_client`."""

    def __init__(
        self,
        uri: ProxyUri,
        runtime: Runtime,
        transport: Transport,
        hosts: Hosts,
        requests: Requests,
        writing: Writing,
        settings: StreamSettings,
        client_settings: ProxyClientSettings,
    ) -> None:
        super().__init__(requests, hosts.namespace, settings)
        self.uri = uri
        self.registry = Registry(runtime.clock.monotonic)
        """What this client counts."""
        self._runtime, self._transport, self._hosts, self._writing = runtime, transport, hosts, writing
        self._client_settings = client_settings
        self._metrics = StreamMetrics(self.registry)
        self._listing = Listing(transport, hosts, requests, timeout_s=settings.call_timeout_s)

    def settings_for(self, stream: str, **overrides: Unpack[StreamOverrides]) -> StreamSettings:
        """The settings of a stream here: those of the client, then `overrides`. Raises `InvalidArgument` for those that
        only a proxy could follow: see `quire.proxy.client.settings`."""
        stream_name(stream)
        return with_overrides(self._settings, overrides)

    # --- Which streams there are

    async def stream_exists(self, stream: str) -> bool:
        """Whether there is a stream of this name. Raises `InvalidName`."""
        try:
            await self.stream_metadata(stream)
        except NoSuchStream:
            return False
        return True

    async def list_streams(self, prefix: str = "") -> list[str]:
        """The streams whose names begin with `prefix`, depth first: each before those that are nested in it."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                return [name async for name in self.scan_streams(prefix)]
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ProxyUnreachable(f"no proxy could list all streams within {self._timeout_s:g} s") from error

    def scan_streams(self, prefix: str = "") -> AsyncIterator[str]:
        """The same one by one, for namespaces that are too large for a list. Takes as long as it takes."""
        return self._listing.scan(prefix)

    def watch_streams(self) -> AsyncIterator[frozenset[str]]:
        """The top-level names now, and again whenever they changed: see `quire.stream.listing.watch_streams`."""
        return self._listing.watch()

    # --- Changing that

    async def create_stream(self, stream: str) -> None:
        """Create a stream; fine if it is there. Raises `InvalidName`."""
        name = stream_name(stream)
        request = pb.CreateStreamRequest(namespace=self._namespace, stream=name)
        await self._requests.to_writer(methods.CREATE_STREAM, request, name, timeout_s=self._timeout_s)

    async def delete_stream(self, stream: str) -> None:
        """Delete a stream and its ledgers, once nobody writes it. Streams that are nested in it stay.

        The proxy that owns it gives it up first. Raises `NoSuchStream`, and `StreamOwned` if a writer that is no proxy
        does not give it up within `lock_timeout_s`. Readers find out that it is gone.
        """
        await self._to_owner(methods.DELETE_STREAM, stream)
        self._requests.owners.forget([stream_name(stream)])

    async def rename_stream(self, stream: str, new_name: str) -> None:
        """Give a stream another name, in one step. What is nested in it keeps its own.

        Raises `NoSuchStream`, `StreamExists`, `StreamOwned` if somebody who is no proxy writes it or has its read lock,
        and `RequestTooLarge` if it has more segments than the store moves in one step.
        """
        old, new = stream_name(stream), stream_name(new_name)
        request = pb.RenameStreamRequest(namespace=self._namespace, stream=old, new_name=new)
        await self._requests.to_owner(
            methods.RENAME_STREAM,
            request,
            old,
            timeout_s=self._timeout_s,
            attempt_timeout_s=self._timeout_s,
            may_repeat=False,  # Twice, it would say that there is no such stream.
        )
        self._requests.owners.forget([old, new])

    # --- The old end of a stream, and its last

    async def truncate_stream(self, stream: str, *, before: DLSN | Txid) -> DLSN:
        """Hide all records before a place, or with lower txids, from readers. Returns the first place that is left.

        A segment in progress stays as it is. Nothing is deleted by this: see `purge_stream`. Raises `NoSuchStream`,
        `PositionInFuture`, `DamagedMetadata`, and for a txid what reading raises.
        """
        name = stream_name(stream)
        request = pb.TruncateRequest(namespace=self._namespace, stream=name, before=position_message(before))
        answer = await self._requests.to_owner(
            methods.TRUNCATE, request, name, timeout_s=self._timeout_s, attempt_timeout_s=self._timeout_s
        )
        return dlsn_of(answer.first)

    async def purge_stream(self, stream: str, *, before: Txid | None = None) -> int:
        """Delete the oldest segments: those with lower txids only, or without one those that are truncated as a whole.

        Returns how many went. The last completed segment stays in any case: the next one goes on from its end. Raises
        `NoSuchStream`, `DamagedMetadata`.
        """
        name = stream_name(stream)
        request = pb.PurgeStreamRequest(namespace=self._namespace, stream=name)
        if before is not None:
            request.before_txid = before.value
        answer = await self._requests.to_writer(methods.PURGE_STREAM, request, name, timeout_s=self._timeout_s)
        return int(answer.segments)

    async def seal_stream(self, stream: str) -> None:
        """End a stream for ever: see `ProxyWriter.seal`. Fine if it has ended. Raises `NoSuchStream`."""
        await self._to_owner(methods.SEAL, stream)

    # --- What is known of a stream, and of its readers

    async def stream_info(self, stream: str, *, sizes: bool = False) -> StreamInfo:
        """What the metadata says of a stream. With `sizes` also the bytes of its segments, and how far the one in
        progress has come: that costs the proxy a look at the ledger of each. Raises `NoSuchStream`, `DamagedMetadata`.
        """
        return info_of(await self._get_stream(stream, with_sizes=sizes))

    async def subscriptions(self, stream: str) -> dict[str, DLSN | None]:
        """Where each named reader goes on, by name; None if it never said so. Raises `NoSuchStream`,
        `DamagedMetadata`.
        """
        return positions_of(await self._get_stream(stream))

    async def delete_subscription(self, stream: str, subscription: str) -> None:
        """Forget a named reader and its position; fine if there is none. A reader that is open may commit it anew.

        Raises `NoSuchStream`, `InvalidName`, and `StreamOwned` while an exclusive reader is open under this name.
        """
        name = stream_name(stream)
        request = pb.GetPositionRequest(namespace=self._namespace, stream=name, subscription=subscription)
        await self._requests.to_reader(methods.DELETE_SUBSCRIPTION, request, name, timeout_s=self._timeout_s)

    # --- What an application keeps at a stream

    async def stream_metadata(self, stream: str) -> tuple[bytes, Version]:
        """What was stored with `set_stream_metadata`, empty if nothing was, and its version. Raises `NoSuchStream`."""
        name = stream_name(stream)
        request = pb.StreamRequest(namespace=self._namespace, stream=name)
        answer = await self._requests.to_writer(methods.GET_STREAM_METADATA, request, name, timeout_s=self._timeout_s)
        return answer.data, Version(answer.version)

    async def set_stream_metadata(self, stream: str, data: bytes, *, expected: Version = ANY_VERSION) -> None:
        """Keep a few bytes at a stream. Raises `NoSuchStream`, `VersionConflict` unless they have the `expected`
        version, `RequestTooLarge`.
        """
        name = stream_name(stream)
        request = pb.SetStreamMetadataRequest(namespace=self._namespace, stream=name, data=data)
        if expected != ANY_VERSION:
            request.expected = expected
        await self._requests.to_writer(
            methods.SET_STREAM_METADATA,
            request,
            name,
            timeout_s=self._timeout_s,
            may_repeat=expected == ANY_VERSION,  # Twice, the version would be another one.
        )

    # --- Writing and reading

    def open_writer(self, stream: str, **overrides: Unpack[StreamOverrides]) -> Opening[ProxyWriter]:
        """A writer of a stream, for an `async with` block, or to be awaited. There may be others, here and elsewhere.

        `overrides` are settings for this writer alone. Raises `InvalidName`, `InvalidArgument`, and what
        `quire.proxy.client.writer.open_proxy_writer` raises.
        """
        name = stream_name(stream)
        settings = self.settings_for(name, **overrides)
        opened = open_proxy_writer(self._runtime, self._writing, self._requests, name, settings)
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
        Raises `InvalidName`, `InvalidArgument`, and what `quire.proxy.client.reader.open_remote_reader` raises.
        """
        begin = parse_position(start) if isinstance(start, str) else start
        position_message(begin)  # Raises for what is no place, before anything is opened.
        name = stream_name(stream)
        opened = open_remote_reader(
            self._transport,
            self._hosts,
            self._requests,
            self._client_settings,
            self._metrics,
            name,
            self.settings_for(stream, **overrides),
            start=begin,
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

    async def _get_stream(self, stream: str, *, with_sizes: bool = False) -> pb.GetStreamResponse:
        name = stream_name(stream)
        request = pb.StreamRequest(namespace=self._namespace, stream=name, with_sizes=with_sizes)
        answer: pb.GetStreamResponse = await self._requests.to_writer(
            methods.GET_STREAM, request, name, timeout_s=self._timeout_s
        )
        return answer


def _tls_of(uri: ProxyUri, settings: ProxyClientSettings) -> ssl.SSLContext | None:
    """What the URI says counts: nobody shall believe that a connection is encrypted which is not."""
    if uri.is_tls:
        return client_context(settings.tls or TlsFiles())
    if settings.tls is not None:
        raise InvalidArgument(
            f"{uri.text!r} leads to proxies without TLS, so there is nothing for its files to say",
            hint=f"Write {TLS_SCHEME}:// in place of {SCHEME}://.",
        )
    return None


@asynccontextmanager
async def open_proxy_client(
    uri: str | ProxyUri,
    *,
    settings: StreamSettings = _STREAM_DEFAULTS,
    client_settings: ProxyClientSettings = _CLIENT_DEFAULTS,
    client_id: str | None = None,
    transport: Transport | None = None,
    tls: ssl.SSLContext | None = None,
    runtime: Runtime | None = None,
) -> AsyncIterator[ProxyClient]:
    """The streams at `uri`, through proxies, for the block. `client_id` is how proxies know us: unless given, it is our
    host and process. With `tls`, or behind `quires:`, connections are encrypted. A `transport` that is given is kept.

    Raises `InvalidUri`, `InvalidArgument` for settings that are the proxies' business, or if the proxies serve another
    namespace, `NotAuthenticated` or `RequestDenied` if they do not take our token, and `ProxyUnreachable` if none of
    them answers within `connect_timeout_s`.
    """
    parsed = parse_proxy_uri(uri) if isinstance(uri, str) else uri
    check_ours(settings)
    tls = tls or _tls_of(parsed, client_settings)
    runtime, client_id = runtime or real_runtime(), client_id or this_client()
    hosts = Hosts(runtime.clock, namespace=parsed.namespace, seeds=parsed.seeds, blackout_s=client_settings.blackout_s)
    owners = OwnershipCache(streams_max=client_settings.owners_max)
    carrying = transport or GrpcTransport(runtime, client_id, tls=tls, token=client_settings.token)
    try:
        requests = Requests(runtime, carrying, hosts, owners, client_settings)
        writing = Writing(runtime, carrying, hosts, requests, client_settings, client_id=client_id)
        watching = Watching(runtime, carrying, hosts, owners, client_settings, client_id=client_id)
        hosts.on_change, watching.on_owner = writing.on_news, writing.on_news
        async with watching.running(), writing.running():
            yield ProxyClient(parsed, runtime, carrying, hosts, requests, writing, settings, client_settings)
    finally:
        if transport is None:
            await carrying.aclose()
