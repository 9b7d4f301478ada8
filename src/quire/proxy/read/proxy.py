"""The read proxy: entries are read once from storage, for however many readers.

    async with open_read_proxy(namespace, settings, address=owner) as proxy:
        await server.start(proxy.handlers())
        async with proxy.join(shard=0): ...

What it keeps is a copy of what bookies have: a proxy that dies loses nothing, and readers go on at any other one, from
the position that they were told last. `lane` says how entries are read, `reading` how a reader gets them,
`stream_lanes` how readers find each other.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument
from quire.metadata.paths import join
from quire.proxy.catalog import Catalog
from quire.proxy.counted_calls import code_of, count_expiries, counted
from quire.proxy.membership import READ_PROXIES, WRITE_PROXIES, LiveSet, Member
from quire.proxy.read.fetching import fetch
from quire.proxy.read.openings import start_of
from quire.proxy.read.reading import open_reading
from quire.proxy.read.service import ReadService, open_read_service
from quire.proxy.read.session import Session
from quire.proxy.read.settings import ReadProxySettings
from quire.rpc.serving import methods
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.rpc.serving.transport import Caller, Handlers, Take
from quire.stream.namespace import Namespace
from quire.telemetry.metrics import Registry
from quire.types import DLSN


class ReadProxy:
    """One read proxy of one namespace. Made by `open_read_proxy`."""

    def __init__(
        self, namespace: Namespace, service: ReadService, address: pb.Owner, readers: LiveSet, writers: LiveSet
    ) -> None:
        self.namespace, self.address = namespace, address
        self._service, self._readers, self._writers = service, readers, writers
        self._catalog = Catalog(namespace)
        self._membership = AsyncExitStack()
        self._has_joined = False
        self.draining = asyncio.Event()  # Somebody wants it to stop in good order.

    def handlers(self) -> Handlers:
        others: Handlers = {
            **self._catalog.handlers(),
            methods.READ_SESSION: self.read_session,
            methods.FETCH: self.fetch,
            methods.RESOLVE_POSITION: self.resolve_position,
            methods.COMMIT_POSITION: self.commit_position,
            methods.GET_POSITION: self.get_position,
            methods.DELETE_SUBSCRIPTION: self.delete_subscription,
            methods.HANDSHAKE: self.handshake,
        }
        return {methods.READ: self.read, **counted(others, self._service.metrics.request)}  # `read` counts itself.

    # --- Being found

    @property
    def name(self) -> str:
        """Of the namespace, as requests call it."""
        return self._service.name

    @asynccontextmanager
    async def join(self, *, shard: int = 0) -> AsyncIterator[None]:
        """Be listed among the read proxies that are alive, for the block or until it is drained."""
        await self._membership.enter_async_context(self._readers.join(Member.of(self.address, shard=shard)))
        self._has_joined = True
        try:
            yield
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self._has_joined = False
        await self._membership.aclose()

    @property
    def status(self) -> pb.ServerStatus:
        return pb.DOWN if self._service.is_draining else pb.WRITE_AND_ACCEPT

    def ask_to_drain(self) -> None:
        """Send all readers elsewhere, and take no new ones. Whoever runs the proxy waits for it."""
        self._service.drain()
        self.draining.set()

    async def wait_asked_to_drain(self) -> None:
        await self.draining.wait()

    async def drain(self) -> None:
        """Leave the live set, so that nobody comes any more, and send all readers elsewhere."""
        await self._leave()
        self.ask_to_drain()

    async def handshake(self, request: pb.HandshakeRequest, caller: Caller) -> pb.HandshakeResponse:
        """Who we are, and which proxies are alive."""
        self._service.check_namespace(request.namespace)
        sets = ((self._writers, pb.WRITE_PROXY), (self._readers, pb.READ_PROXY))
        return pb.HandshakeResponse(
            server_id=f"{self.address.host}:{self.address.port}",
            role=pb.READ_PROXY,
            status=self.status,
            namespace=self._service.name,
            members=[member.message(role) for live, role in sets for member in sorted(live.current, key=str)],
        )

    # --- Reading

    def read(self, request: pb.ReadRequest, caller: Caller) -> AsyncIterator[bytes]:
        """The stream from a position on, until it ends or the caller goes."""
        return _Responses(self._service, request)

    async def read_session(self, requests: AsyncIterator[pb.SessionRequest], caller: Caller) -> AsyncIterator[bytes]:
        async for message in Session(self._service).run(requests):
            yield message

    async def fetch(self, request: pb.FetchRequest, caller: Caller) -> pb.FetchResponse:
        self._service.check_namespace(request.namespace)
        return await fetch(self._service, request)

    async def resolve_position(self, request: pb.ResolvePositionRequest, caller: Caller) -> pb.ResolvePositionResponse:
        """Where a reader would begin. Raises what that raises."""
        self._service.check_namespace(request.namespace)
        start = start_of(request.position)
        found = await self._service.openings.find(request.stream, start, skip_truncated=False)
        return pb.ResolvePositionResponse(dlsn=dlsn_message(found.at))

    # --- Positions of subscribers

    async def commit_position(self, request: pb.CommitPositionRequest, caller: Caller) -> pb.CommitPositionResponse:
        self._service.check_namespace(request.namespace)
        if not request.HasField("position"):
            raise InvalidArgument("a commit has to say a position")
        stored = await self._service.commits.commit(
            self._service.stream_name(request.stream),
            request.subscription,
            dlsn_of(request.position),
            may_go_back=request.reset,
            incarnation=request.incarnation,
        )
        return pb.CommitPositionResponse(position=dlsn_message(stored))

    async def get_position(self, request: pb.GetPositionRequest, caller: Caller) -> pb.GetPositionResponse:
        self._service.check_namespace(request.namespace)
        await self._service.openings.incarnation(self._service.stream_name(request.stream))
        found: DLSN | None = await self._service.subscriptions_of(request.stream).read(request.subscription)
        return pb.GetPositionResponse(position=None if found is None else dlsn_message(found))

    async def delete_subscription(self, request: pb.GetPositionRequest, caller: Caller) -> pb.StreamResponse:
        self._service.check_namespace(request.namespace)
        await self.namespace.delete_subscription(request.stream, request.subscription)
        return pb.StreamResponse()

    # --- What is going on

    @property
    def metrics(self) -> Registry:
        return self._service.metrics.registry

    @property
    def not_ready(self) -> list[str]:
        reasons = ["it is being stopped"] if self._service.is_draining else []
        if not self._has_joined:
            reasons.append("it is not in the list of proxies that are alive")
        return reasons

    def debug(self) -> dict[str, Any]:
        return {
            "streams": self._service.debug_streams(),
            "readers": self._service.debug_readers(),
            "cache": self._service.debug_cache(),
            "ring": [each.address for live in (self._writers, self._readers) for each in sorted(live.current, key=str)],
        }

    def statistics(self) -> dict[str, Any]:
        """The figures without the lists."""
        return {
            "status": pb.ServerStatus.Name(self.status),
            "readers": len(self._service.readings),
        } | self._service.debug_cache()


class _Responses:
    """Of one call of `Read`."""

    def __init__(self, service: ReadService, request: pb.ReadRequest) -> None:
        self._service, self._request = service, request
        self._take: Take | None = None
        self._messages = self._read()
        self.aclose = self._messages.aclose

    def offer_to(self, take: Take) -> None:
        self._take = take

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._messages

    def __anext__(self) -> Awaitable[bytes]:
        return anext(self._messages)

    async def _read(self) -> AsyncGenerator[bytes]:
        ended: BaseException | None = None
        try:
            self._service.check_namespace(self._request.namespace)
            async with open_reading(self._service, self._request, take=self._take) as reading:
                while (message := await reading.next_message()) is not None:
                    yield message
        except BaseException as error:
            ended = error
            raise
        finally:
            self._service.metrics.request(methods.READ.name, code_of(ended))


@asynccontextmanager
async def open_read_proxy(
    namespace: Namespace, settings: ReadProxySettings | None = None, *, address: pb.Owner
) -> AsyncIterator[ReadProxy]:
    """A proxy that is ready to be served at `address`. It is in no list yet: see `ReadProxy.join`."""
    context = namespace.context
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(open_read_service(namespace, settings or ReadProxySettings()))
        sets = [
            LiveSet(context.store, context.runtime.clock, join(context.path, name))
            for name in (READ_PROXIES, WRITE_PROXIES)
        ]
        readers, writers = [await stack.enter_async_context(each) for each in sets]
        expiries = count_expiries(context.store, service.metrics.session_expiries)
        counting = asyncio.create_task(expiries, name="mind the session")
        try:
            yield ReadProxy(namespace, service, address, readers, writers)
        finally:
            counting.cancel()
            await asyncio.wait([counting])
