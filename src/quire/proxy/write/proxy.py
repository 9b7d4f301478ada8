"""The write proxy: many clients append to streams, and each stream has one proxy that owns it.

    async with open_write_proxy(namespace, settings, address=owner) as proxy:
        await server.start(proxy.handlers())
        async with proxy.join():                      # listed among those that are alive
            await proxy.wait_drained()                # somebody asked for `drain`

Who asks for a stream that nobody owns makes this proxy take it: by the stream's lock, as a courtesy among proxies, and
by fencing what the last owner wrote, as the proof. Who asks for one that another proxy owns is sent there.

    write_calls    what a client sends, batch after batch          stream_table   which streams are here
    owned_stream   one stream, from acquiring to giving it up      serving        its batches, and its duplicates
    refusals       what is not taken, and why                      draining       the end of all of it
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.errors import (
    InvalidArgument,
    LockLost,
    ProxyDraining,
    QuireError,
    StreamSealed,
    VersionConflict,
)
from quire.metadata.paths import join, name_of
from quire.protocol.balancing import Orders
from quire.proxy.counted_calls import count_expiries, counted
from quire.proxy.membership import READ_PROXIES, WRITE_PROXIES, LiveSet, Member
from quire.proxy.write.admin import Admin
from quire.proxy.write.answers import batch_result, lock_client_id, placed
from quire.proxy.write.balancer import Balancer
from quire.proxy.write.batches import checked_batch
from quire.proxy.write.counting import WriteCounts
from quire.proxy.write.draining import Drain
from quire.proxy.write.load_board import LoadBoard
from quire.proxy.write.metrics import WriteProxyMetrics
from quire.proxy.write.operations import Use
from quire.proxy.write.owned_stream import Household, OwnedStream
from quire.proxy.write.refusals import Refusals
from quire.proxy.write.removal import OwnersCatalog
from quire.proxy.write.routing import Routing
from quire.proxy.write.serving import ServingStream
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.stream_table import StreamTable
from quire.proxy.write.submissions import Submission
from quire.proxy.write.write_calls import WriteCall
from quire.rpc.serving import methods
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.rpc.serving.transport import Caller, Handlers, Transport
from quire.stream.namespace import Namespace
from quire.stream.record_queue import TrackedCall
from quire.stream.start import Txid
from quire.telemetry.metrics import Registry
from quire.types import DLSN

_HEARTBEAT = b"heartbeat"


class WriteProxy:
    """One write proxy of one namespace. Made by `open_write_proxy`."""

    def __init__(
        self,
        namespace: Namespace,
        settings: WriteProxySettings,
        address: pb.Owner,
        writers: LiveSet,
        readers: LiveSet,
        transport: Transport | None,
    ) -> None:
        context = namespace.context
        self.namespace, self.settings, self.address = namespace, settings, address
        self._clock, self._writers = context.runtime.clock, writers
        self.name = name_of(context.path)
        self._metrics = WriteProxyMetrics(context.ledgers.metrics.registry)
        self._counts = WriteCounts(self._metrics, self._clock, self.name)
        self._refusals = Refusals(settings, writers, address, self._clock, context.runtime.rng)
        household = Household(namespace, settings, self._metrics, asyncio.Semaphore(settings.acquires_max))
        self.table = StreamTable(household, self._refusals)
        self._board = LoadBoard(context.store, self._clock, context.path)
        self.routing = Routing(
            context, self.table, self._refusals, address, self.name, self._board, writers=writers, readers=readers
        )
        self._calls: dict[WriteCall, None] = {}
        self._drain = Drain(
            self.table, self.routing, settings, self._clock, address, self.name, lambda: self._calls, transport
        )
        self._orders = Orders()
        self.balancer: Balancer | None = None
        if transport is not None:
            self.balancer = Balancer(
                context, settings, address, self.name, writers, self._board, transport, self._metrics
            )
        self._admin = Admin(self)
        self._catalog = OwnersCatalog(namespace, self.table, self._refusals, address)
        self._membership = AsyncExitStack()
        self._has_joined = False
        self._draining: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()  # To drain.
        self._metrics.status.read = lambda: self.status
        if settings.stream_metrics:
            self._metrics.show_streams(self._admin.stream_figures)

    # --- The API

    def handlers(self) -> Handlers:
        others: Handlers = {
            methods.WRITE_ONCE: self.write_once,
            methods.TRUNCATE: self.truncate,
            methods.SEAL: self.seal,
            methods.HEARTBEAT: self.heartbeat,
            methods.RELEASE: self.release,
            methods.HANDSHAKE: self.handshake,
            methods.GET_OWNER: self.get_owner,
            methods.WATCH_OWNERSHIP: self.watch_ownership,
            **self._catalog.handlers(),
            **self._admin.handlers(),
        }
        # Of a Write call each batch is counted, where it is answered.
        return {methods.WRITE: self.write, **counted(others, self._counts.on_end)}

    # --- Writing

    async def write(self, requests: AsyncIterator[pb.WriteRequest], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
        settings = self.settings
        opened = pb.Opened(
            server_id=f"{self.address.host}:{self.address.port}",
            status=self.status,
            window_bytes=settings.window_bytes,
            window_batches=settings.window_batches,
            max_batch_bytes=settings.batch_bytes_max,
            max_record_bytes=settings.record_bytes_max,
        )
        call = WriteCall(self.table, settings, self._clock, self._counts, caller, opened)
        self._calls[call] = None
        self._metrics.calls.add(1)
        try:
            async with aclosing(call.responses(requests)) as responses:
                async for response in responses:
                    yield response
        finally:
            del self._calls[call]
            self._metrics.calls.add(-1)

    async def write_once(self, request: pb.WriteOnceRequest, caller: Caller) -> pb.WriteOnceResponse:
        self._counts.check_namespace(request.namespace)
        submission = checked_batch(request.batch, self.settings, caller, self._clock.monotonic())
        decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_decided(submission: Submission) -> None:
            self._counts.on_batch("WriteOnce.batch", submission, submission.error)
            if not decided.done():
                decided.set_result(None)

        submission.on_decided = on_decided
        self.table.submit_batch(submission)
        await decided  # The append goes on if the caller leaves.
        if submission.error is not None:
            raise submission.error
        return pb.WriteOnceResponse(
            result=batch_result(None, is_duplicate=submission.is_duplicate),
            placed=placed(submission.runs),
            txid_first=submission.txid_first,
            txid_last=submission.txid_last,
        )

    # --- One stream

    async def _serving(self, stream: str, caller: Caller, *, create_if_missing: bool = False) -> ServingStream:
        """The stream, once it is served here. Raises why it is not."""
        use = Use[None](stream_name(stream), create_if_missing=create_if_missing, tried=caller.tried)
        self.table.submit(use)
        return await use.serving

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatResponse:
        """Take the stream, and prove that it can be written if that is asked for."""
        self._counts.check_namespace(request.namespace)
        if request.handed_over:
            self._refusals.on_handed_over(stream_name(request.stream))
        serving = await self._serving(request.stream, caller, create_if_missing=request.create_if_missing)
        if request.to_readers:
            settled: asyncio.Future[TrackedCall] = asyncio.get_running_loop().create_future()
            serving.prove(_HEARTBEAT, lambda call: None if settled.done() else settled.set_result(call))
            error = (await settled).error
            if error is not None:
                raise error
        writer = serving.writer
        return pb.HeartbeatResponse(owner=self.address, epoch=writer.epoch, last_txid=writer.last_txid)

    async def truncate(self, request: pb.TruncateRequest, caller: Caller) -> pb.TruncateResponse:
        self._counts.check_namespace(request.namespace)
        await self._serving(request.stream, caller)
        known = {(each.lssn, each.first_dlsn) for each in (await self.namespace.stream_info(request.stream)).segments}
        first = await self.namespace.truncate_stream(request.stream, before=_place(request.before))
        left = (await self.namespace.stream_info(request.stream)).segments
        changed = sum((each.lssn, each.first_dlsn) not in known for each in left)
        return pb.TruncateResponse(first=dlsn_message(first), segments=changed)

    async def seal(self, request: pb.StreamRequest, caller: Caller) -> pb.StreamResponse:
        """End the stream; fine if it has ended."""
        self._counts.check_namespace(request.namespace)
        try:
            serving = await self._serving(request.stream, caller)
            try:
                await serving.writer.seal()
            except QuireError as error:
                serving.fail(error)  # As with an append: otherwise a writer that is shut out would keep the stream.
                raise
            serving.fail(StreamSealed(f"stream {request.stream!r} has ended", stream=request.stream))
        except StreamSealed:
            pass
        return pb.StreamResponse()

    async def release(self, request: pb.ReleaseRequest, caller: Caller) -> pb.StreamResponse:
        """Give the stream up, to somebody if one is suggested. Fine if nobody has it."""
        self._counts.check_namespace(request.namespace)
        name = stream_name(request.stream)
        stream = self.table.get(name)
        self._check_order(request, stream)
        if stream is not None and request.HasField("suggested_owner"):
            self._refusals.on_moved(name, request.suggested_owner)
            await self._drain.move(stream, request.suggested_owner)
        else:
            await self._catalog.give_up(name, caller)
        return pb.StreamResponse()

    def _check_order(self, request: pb.ReleaseRequest, stream: OwnedStream | None) -> None:
        """A balancer may not know yet that there is a later one, or what became of a stream since it looked."""
        if not self._orders.obeys(request.term):
            raise LockLost(f"balancer {request.term} is not the latest one any more", term=request.term)
        if request.expected_life and (stream is None or self.life_of(stream) != request.expected_life):
            raise VersionConflict(
                f"stream {request.stream!r} was given up, or acquired again, since it was to be moved",
                stream=request.stream,
            )

    def life_of(self, stream: OwnedStream) -> str:
        """A name for the time since a stream was acquired, unlike that of any other one, wherever it was."""
        return f"{self.address.instance}/{stream.number}"

    # --- Who is where

    async def handshake(self, request: pb.HandshakeRequest, caller: Caller) -> pb.HandshakeResponse:
        self._counts.check_namespace(request.namespace)
        return self.routing.handshake(request)

    async def get_owner(self, request: pb.StreamRequest, caller: Caller) -> pb.GetOwnerResponse:
        self._counts.check_namespace(request.namespace)
        return await self.routing.get_owner(request.stream)

    async def watch_ownership(
        self, request: pb.WatchOwnershipRequest, caller: Caller
    ) -> AsyncIterator[pb.OwnershipChange]:
        self._counts.check_namespace(request.namespace)
        async with aclosing(self.routing.watch(request)) as changes:
            async for change in changes:
                yield change

    # --- Being found, and leaving

    @property
    def status(self) -> pb.ServerStatus:
        return self.table.status

    @asynccontextmanager
    async def join(self) -> AsyncIterator[None]:
        """Be listed among the write proxies that are alive, for the block or until it is drained."""
        member = Member.of(self.address, shard=self.settings.shard)
        await self._membership.enter_async_context(self._writers.join(member))
        if self.balancer is not None and self.settings.balance.is_on:
            await self._membership.enter_async_context(self.balancer.standing())
        self._has_joined = True
        try:
            yield
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self._has_joined = False
        await self._membership.aclose()

    def set_accepting(self, accept: bool) -> None:
        """Whether further streams are taken. Has no effect on those that are here, or while it is drained."""
        self.table.is_accepting = accept
        self.routing.on_status()

    def ask_to_drain(self, *, streams_per_s: float = 0.0) -> None:
        """Begin to give up everything. Whoever runs the proxy waits for `wait_drained`. Fine if it has begun."""
        if self._draining is None:
            rate = streams_per_s or self.settings.drain_streams_per_s
            self._draining = asyncio.create_task(self._drain.run(self._leave, streams_per_s=rate), name="drain")
            self._asked.set()

    async def drain(self, *, streams_per_s: float = 0.0) -> None:
        """Give up everything in good order. Returns when clients were told for `graceful_period_s` where to go."""
        self.ask_to_drain(streams_per_s=streams_per_s)
        await self.wait_drained()

    async def wait_asked_to_drain(self) -> None:
        await self._asked.wait()

    async def wait_drained(self) -> None:
        """Return when somebody asked for it, and it is done."""
        await self._asked.wait()
        assert self._draining is not None
        await asyncio.shield(self._draining)

    # --- While nothing else happens

    async def mind(self) -> None:
        """Look after the streams, and the session."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.table.tick(), name="mind the streams")
            expiries = count_expiries(self.namespace.context.store, self._metrics.session_expiries)
            tasks.create_task(expiries, name="mind the session")
            tasks.create_task(self._board.follow(), name="follow the loads of all proxies")

    async def close(self) -> None:
        """Give everything up, and end every call."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.wait([self._draining])
        await self._leave()
        await self.table.close_all()
        for call in list(self._calls):
            call.end(ProxyDraining("this proxy is stopped"))

    # --- What is going on

    @property
    def metrics(self) -> Registry:
        return self._metrics.registry

    @property
    def not_ready(self) -> list[str]:
        reasons = []
        if self.table.is_draining or self.table.is_down:
            reasons.append("it is being stopped")
        if not self._writers.is_loaded:
            reasons.append("it does not know which proxies are alive")
        if not self._has_joined:
            reasons.append("it is not in the list of proxies that are alive")
        return reasons

    def statistics(self) -> dict[str, Any]:
        """The figures without the lists."""
        return self._admin.figures() | {"calls": len(self._calls)}

    def debug(self) -> dict[str, Any]:
        """What is going on, part by part."""
        return self._admin.debug() | {"statistics": self.statistics()}


def _place(position: pb.Position) -> DLSN | Txid:
    match position.WhichOneof("at"):
        case "dlsn":
            return dlsn_of(position.dlsn)
        case "txid":
            return Txid(position.txid)
        case other:
            raise InvalidArgument(f"a stream is truncated before a place or a txid, not {other}")


@asynccontextmanager
async def open_write_proxy(
    namespace: Namespace,
    settings: WriteProxySettings | None = None,
    *,
    address: pb.Owner,
    transport: Transport | None = None,
) -> AsyncIterator[WriteProxy]:
    """A proxy that is ready to be served at `address`. It is in no list yet: see `WriteProxy.join`.

    The namespace's client id has to begin with `1;<shard>;<host>:<port>`, the same address: others find the owner of a
    stream by it. With a `transport` the next owner of a stream that is given up hears of it at once.
    """
    context, settings = namespace.context, settings or WriteProxySettings()
    if not context.client_id == lock_client_id(settings.shard, address):
        raise InvalidArgument(
            f"locks of this proxy should be called {lock_client_id(settings.shard, address)!r}, not "
            f"{context.client_id!r}",
            hint="Open the namespace with that client id.",
        )
    if not address.instance:
        address = pb.Owner(
            host=address.host, port=address.port, instance=context.runtime.rng.bytes(16).hex(), region=address.region
        )
    async with AsyncExitStack() as stack:
        sets = [
            LiveSet(context.store, context.runtime.clock, join(context.path, name))
            for name in (WRITE_PROXIES, READ_PROXIES)
        ]
        writers, readers = [await stack.enter_async_context(each) for each in sets]
        proxy = WriteProxy(namespace, settings, address, writers, readers, transport)
        minding = asyncio.create_task(proxy.mind(), name="mind the write proxy")
        try:
            yield proxy
        finally:
            await proxy.close()
            minding.cancel()
            await asyncio.wait([minding])
            if not minding.cancelled():
                minding.result()  # A bug comes to light.
