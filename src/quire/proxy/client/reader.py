"""Opening a reader whose entries come from read proxies. The reader itself is the one that everybody uses."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from quire.codec.pb import quire_v1_pb2 as pb
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.remote_source import RemoteLock, RemoteSource, lock_lost
from quire.proxy.client.requests import Requests
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving.methods import COMMIT_POSITION, GET_POSITION
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.rpc.serving.transport import Transport
from quire.stream.metrics import StreamMetrics
from quire.stream.read_ahead import ReadAhead
from quire.stream.reader import StreamReader, minding
from quire.stream.settings import StreamSettings
from quire.stream.start import Start, Txid
from quire.types import DLSN


class RemotePositions:
    """Named positions of one stream, which a read proxy stores."""

    def __init__(
        self, transport: Transport, requests: Requests, hosts: Hosts, stream: str, *, timeout_s: float
    ) -> None:
        self._transport, self._requests, self._namespace = transport, requests, hosts.namespace
        self._stream, self._timeout_s = stream, timeout_s

    async def read(self, name: str) -> DLSN | None:
        """The position that was committed last; None if none was."""
        request = pb.GetPositionRequest(namespace=self._namespace, stream=self._stream, subscription=name)
        answer = await self._requests.to_reader(GET_POSITION, request, self._stream, timeout_s=self._timeout_s)
        return dlsn_of(answer.position) if answer.HasField("position") else None

    async def commit(
        self, name: str, source: RemoteSource, lock: RemoteLock | None, position: DLSN, *, may_go_back: bool
    ) -> DLSN:
        """Store a position, unless a later one is stored; return what is stored then.

        For an exclusive reader the proxy that holds its lock does it, and refuses once the lock is lost.
        """
        request = pb.CommitPositionRequest(
            namespace=self._namespace,
            stream=self._stream,
            subscription=name,
            position=dlsn_message(position),
            reset=may_go_back,
            incarnation=source.incarnation,
        )
        if lock is None:
            answer = await self._requests.to_reader(COMMIT_POSITION, request, self._stream, timeout_s=self._timeout_s)
        else:
            if lock.lost or source.address is None:
                raise lock_lost(self._stream)
            channel = self._transport.channel(source.address)
            answer = await channel.call(COMMIT_POSITION, request, timeout_s=self._timeout_s)
        return dlsn_of(answer.position)


@asynccontextmanager
async def open_remote_reader(
    transport: Transport,
    hosts: Hosts,
    requests: Requests,
    client: ProxyClientSettings,
    metrics: StreamMetrics,
    stream: str,
    settings: StreamSettings,
    *,
    start: Start,
    subscription: str | None,
    exclusive: bool,
    skip_truncated: bool,
    incarnation: str = "",
) -> AsyncIterator[StreamReader]:
    """As `quire.stream.reader.open_stream_reader`, with `incarnation` for that stream only; also raises
    `ProxyUnreachable` if there is no read proxy.
    """
    positions = RemotePositions(transport, requests, hosts, stream, timeout_s=settings.call_timeout_s)
    lock = RemoteLock() if exclusive else None
    async with AsyncExitStack() as stack:
        source = RemoteSource(
            transport,
            hosts,
            requests,
            client,
            metrics,
            stream,
            settings,
            start=start,
            subscription=subscription,
            lock=lock,
            skip_truncated=skip_truncated,
            incarnation=incarnation,
        )
        ahead = await stack.enter_async_context(ReadAhead(source.runs(), bytes_max=source.ready_bytes_max))
        at = await source.opened
        txid_min = start.value if isinstance(start, Txid) else None
        if txid_min is not None and subscription is not None and await positions.read(subscription) is not None:
            txid_min = None  # It goes on where it was, whatever the txids are there.

        async def find_end() -> DLSN:
            opening = open_remote_reader(
                transport,
                hosts,
                requests,
                client,
                metrics,
                stream,
                settings,
                start="latest",
                subscription=None,
                exclusive=False,
                skip_truncated=False,
                incarnation=source.incarnation,
            )
            async with opening as other:
                return other.position

        reader = StreamReader(
            stream,
            source,
            ahead,
            settings,
            metrics,
            start=at,
            txid_min=txid_min,
            commit=None if subscription is None else partial(positions.commit, subscription, source, lock),
            lock=lock,
            find_end=find_end,
        )
        stack.callback(reader.stop)
        stack.enter_context(metrics.open(metrics.readers))
        if lock is not None:
            await stack.enter_async_context(minding(lock, reader, lock_lost(stream)))
        yield reader
