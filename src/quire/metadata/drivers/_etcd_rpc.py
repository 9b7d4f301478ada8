"""Calls to whichever etcd server answers.

There is one channel for each server of the URI and one server at a time that is used; every server of a cluster gives
the same answers. When it cannot be reached, or stays silent, the next one is tried. gRPC would choose among addresses
by itself, but not among host names, and it would go on trusting a server whose process hangs.

A request is handed to gRPC only when the channel is connected. So a call that waits in vain for a connection has sent
nothing, and can say so; a request that was handed over and got no answer may have been carried out.

etcd carries out the requests of one client in any order, and does not take back what it has begun. So a write whose
caller is cancelled goes on to its end, and what this client asks next waits for it: whoever tidies up after a write
that was cancelled finds what it made.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import grpc
from google.protobuf.message import Message

from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, StoreClosed
from quire.metadata.drivers._etcd_errors import PASSING_CODES, translate, unavailable
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.runtime import Runtime
from quire.values import dataclass

_PORT: Final = 2379
_RETRY_DELAY_S: Final = 0.05
_RETRY_DELAY_S_MAX: Final = 1.0
_CONNECT_LOOK_S: Final = 0.002  # The first look at a connection that is being made; later ones are rarer.
_SETTLE_S: Final = 0.02

_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # etcd bounds what it sends; a listing must not fail halfway.
    ("grpc.max_send_message_length", -1),  # Too large is etcd's to say.
    ("grpc.use_local_subchannel_pool", 1),  # Two stores in one process share no connection, and no back-off.
    ("grpc.enable_http_proxy", 0),  # Metadata servers are near; a proxy for the web is no way to them.
    ("grpc.service_config_disable_resolution", 1),  # Nobody publishes one for etcd: spare the name servers.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),  # Despite its name: how long one attempt to connect may take.
    # A dead peer is noticed within 10 s. etcd calls more than one ping in 5 s an attack.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.http2.max_pings_without_data", 0),
)

Q = TypeVar("Q", bound=Message)
A = TypeVar("A", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    """One of etcd's remote procedures."""

    path: str
    request: type[Q]
    answer: type[A]

    def codec(self) -> tuple[Callable[[Q], bytes], Callable[[bytes], A]]:
        return self.request.SerializeToString, self.answer.FromString


RANGE: Final = Method("/etcdserverpb.KV/Range", pb.RangeRequest, pb.RangeResponse)
PUT: Final = Method("/etcdserverpb.KV/Put", pb.PutRequest, pb.PutResponse)
TXN: Final = Method("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
LEASE_GRANT: Final = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
LEASE_REVOKE: Final = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
LEASE_KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)


class _Endpoint:
    """One server, and the streams that are open to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self.streams: set[Stream[Any, Any]] = set()


class EtcdClient:
    """Sends requests to one of several equal servers. Belongs to one event loop."""

    def __init__(self, servers: Sequence[str], *, operation_timeout_s: float, runtime: Runtime) -> None:
        self.servers = [server if ":" in server else f"{server}:{_PORT}" for server in servers]
        self._timeout_s = operation_timeout_s
        self._clock, self._rng = runtime.clock, runtime.rng
        self._endpoints = [_Endpoint(address) for address in self.servers]
        self._current = 0
        self._calls = 0  # Under way, streams not counted.
        self._abandoned: set[asyncio.Task[Any]] = set()  # Writes that were sent, and whose callers were cancelled.
        self._closed = False

    def deadline(self, *, within_s: float = math.inf) -> float:
        """When a call that begins now must have ended: after the operation timeout, or sooner."""
        return self._clock.monotonic() + min(self._timeout_s, within_s)

    def left(self, deadline: float) -> float:
        """Seconds until `deadline`, not less than zero."""
        return max(0.0, deadline - self._clock.monotonic())

    async def call(self, method: Method[Q, A], request: Q, *, deadline: float, repeatable: bool) -> A:
        """Send `request` and return the answer. If `repeatable`, try again until the deadline.

        Raises `MetadataUnavailable` if nothing can have happened, or nothing that matters, `MetadataOutcomeUnknown` if
        the request was sent and its answer is lost, and whatever else etcd's answer means.
        """
        timeouts = 0
        if self._abandoned:  # With time left for the call itself: one of several servers may be silent.
            await asyncio.wait(tuple(self._abandoned), timeout=self.left(deadline) / 2)
        while True:
            endpoint = await self._connected(deadline)
            patience_s = self.left(deadline)
            if patience_s == 0:
                raise unavailable(self.servers, f"nothing was sent within {self._timeout_s:g} s")
            if repeatable:  # Leave the other servers a share of the time.
                patience_s /= max(1, len(self._endpoints) - timeouts)
            try:
                return await self._call_once(endpoint, method, request, patience_s, repeatable)
            except grpc.aio.AioRpcError as error:
                passing = error.code() in PASSING_CODES
                if passing:
                    self.suspect(endpoint)
                    timeouts += error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if not (passing and repeatable) or self.left(deadline) < _RETRY_DELAY_S:
                    raise translate(error, self.servers, repeatable=repeatable) from error
            await self.pause()

    async def _call_once(
        self, endpoint: _Endpoint, method: Method[Q, A], request: Q, patience_s: float, repeatable: bool
    ) -> A:
        remote = endpoint.channel.unary_unary(method.path, *method.codec())
        self._calls += 1
        try:
            sent = remote(request, timeout=patience_s)
            return cast(A, await sent if repeatable else await self._to_its_end(sent))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            closed = "the store was closed during this call"
            raise (StoreClosed(closed) if repeatable else MetadataOutcomeUnknown(closed)) from None
        finally:
            self._calls -= 1

    async def _to_its_end(self, sent: Awaitable[Any]) -> Any:
        """The answer to a write, which goes on without its caller."""
        task = asyncio.create_task(_answer(sent), name="etcd write")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                self._abandoned.add(task)
                task.add_done_callback(self._on_ended)
            raise

    def _on_ended(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()  # There is nobody to tell.

    async def open_stream(
        self, method: Method[Q, A], *, deadline: float, on_end: Callable[[], None] | None = None
    ) -> "Stream[Q, A]":
        """Open a two-way stream to a connected server. It has no deadline of its own; `on_end` tells of its end."""
        endpoint = await self._connected(deadline)
        return Stream(self, endpoint, endpoint.channel.stream_stream(method.path, *method.codec())(), on_end)

    async def pause(self, failures: int = 0, *, first_s: float = _RETRY_DELAY_S) -> None:
        """A rest between two attempts, longer after each failure and random, so that clients do not move in step."""
        delay_s = min(first_s * 2 ** min(failures, 10), _RETRY_DELAY_S_MAX)
        await self._clock.sleep(delay_s * (0.5 + self._rng.random()))

    # --- Which server

    def suspect(self, endpoint: _Endpoint) -> None:
        """Use another server from now on, if there is one: this one failed, or does not answer."""
        if len(self._endpoints) > 1 and endpoint is self._endpoints[self._current]:
            self._current = (self._current + 1) % len(self._endpoints)
            for stream in endpoint.streams:
                stream.break_off()  # A hanging server keeps its streams open and silent.

    async def _connected(self, deadline: float) -> _Endpoint:
        """The present server, or the next that can be reached."""
        while True:
            for position in range(len(self._endpoints)):
                if self._closed:
                    raise StoreClosed("the store was closed during this call")
                endpoint = self._endpoints[self._current]
                patience_s = self.left(deadline) / (len(self._endpoints) - position)
                if await self._connect(endpoint, patience_s):
                    return endpoint
                self.suspect(endpoint)
            if self.left(deadline) < _RETRY_DELAY_S:
                raise unavailable(self.servers, f"no server could be reached within {self._timeout_s:g} s")
            await self.pause()

    async def _connect(self, endpoint: _Endpoint, patience_s: float) -> bool:
        """Wait for a connection, or for the news that there is none when another server could be tried instead.

        The state is looked at again and again on purpose: a wait for its change, once begun, cannot be taken back. It
        would outlive the channel, and report to an event loop that may be closed by then.
        """
        deadline, delay_s = self._clock.monotonic() + patience_s, _CONNECT_LOOK_S
        while not self._closed:
            state = endpoint.channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                return True
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and len(self._endpoints) > 1:
                return False
            left_s = self.left(deadline)
            if left_s == 0:
                return False
            await self._clock.sleep(min(delay_s, left_s))
            delay_s = min(2 * delay_s, _RETRY_DELAY_S)
        return False

    async def aclose(self) -> None:
        """Close all channels. Calls still under way end with `StoreClosed`."""
        self._closed = True
        abandoned = tuple(self._abandoned)
        interrupted = self._calls > 0 or abandoned
        for endpoint in self._endpoints:
            await endpoint.channel.close()
        if abandoned:
            await asyncio.wait(abandoned)
        if interrupted:
            # gRPC's core reports a moment later that these calls are over, and has to find the event loop open.
            await self._clock.sleep(_SETTLE_S)


class Stream(Generic[Q, A]):
    """An open two-way stream. When it breaks, for whatever reason, `send` and `receive` raise one of our errors."""

    def __init__(self, client: EtcdClient, endpoint: _Endpoint, call: Any, on_end: Callable[[], None] | None) -> None:
        self._client, self._endpoint, self._call = client, endpoint, call
        endpoint.streams.add(self)
        if on_end is not None:
            call.add_done_callback(lambda _: on_end())

    async def send(self, request: Q) -> None:
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise translate(error, [self._endpoint.address], repeatable=True) from error
        except asyncio.InvalidStateError as error:  # So gRPC calls writing to a stream that has ended.
            raise self._broken_off() from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise self._broken_off() from None

    async def receive(self) -> A:
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise translate(error, [self._endpoint.address], repeatable=True) from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise self._broken_off() from None
        if answer is grpc.aio.EOF:
            raise self._broken_off()
        return cast(A, answer)

    def _broken_off(self) -> MetadataUnavailable:
        return unavailable([self._endpoint.address], "a stream was broken off")

    def suspect_server(self) -> None:
        """The server does not answer: use another one, if there is one."""
        self._client.suspect(self._endpoint)

    def break_off(self) -> None:
        """End the stream from this side; whoever waits on it gets an error."""
        self._call.cancel()

    def close(self) -> None:
        self._endpoint.streams.discard(self)
        self._call.cancel()


async def _answer(sent: Awaitable[Any]) -> Any:
    return await sent


def _is_cancelled() -> bool:
    """Whether a `CancelledError` is meant for this task. gRPC raises it too when a call is ended from elsewhere."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
