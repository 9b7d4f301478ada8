"""Stopping in good order: every stream is given up, and its clients are sent on to where it goes.

    1  leave the live set, and take no further streams
    2  give up stream after stream, those with the most to do last: what was begun is answered and the lock given back;
       then whoever waited, and every Write call that named it, is sent on to the next proxy of the ring, which is told
       to take it
    3  DOWN; for a while clients are still told where their streams went

Invariant: a client is sent on only when the lock is free, so that it is sent on once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NotOwner, ProxyDraining, QuireError
from quire.protocol.rate_limits import load
from quire.proxy.write.owned_stream import OwnedStream
from quire.proxy.write.routing import Routing
from quire.proxy.write.settings import WriteProxySettings
from quire.proxy.write.stream_table import StreamTable
from quire.proxy.write.write_calls import WriteCall
from quire.rpc.serving.methods import HEARTBEAT
from quire.rpc.serving.transport import Transport
from quire.runtime import Clock
from quire.telemetry.events import logger

_log = logger("proxy.write")
_AGAIN_S: Final = 0.05


class Drain:
    """Gives up everything that one proxy has."""

    def __init__(
        self,
        table: StreamTable,
        routing: Routing,
        settings: WriteProxySettings,
        clock: Clock,
        address: pb.Owner,
        namespace: str,
        calls: Callable[[], Iterable[WriteCall]],
        transport: Transport | None,
    ) -> None:
        self._table, self._routing, self._settings, self._clock = table, routing, settings, clock
        self._own = f"{address.host}:{address.port}"
        self._namespace, self._calls, self._transport = namespace, calls, transport

    async def run(self, leave: Callable[[], Awaitable[None]], *, streams_per_s: float) -> None:
        """Return when nothing is owned any more, and everybody was told for long enough."""
        table = self._table
        table.is_draining = True
        _log.info("proxy.draining", streams=len(table))
        self._routing.on_status()
        await leave()
        await self._give_up_all(streams_per_s)
        table.is_down = True
        self._routing.on_status()
        _log.info("proxy.down", graceful_s=self._settings.graceful_period_s)
        await self._clock.sleep(self._settings.graceful_period_s)
        for call in self._calls():
            call.end(ProxyDraining("this proxy is stopped"))

    async def _give_up_all(self, streams_per_s: float) -> None:
        moving: set[asyncio.Task[None]] = set()
        try:
            while streams := sorted(self._table, key=self._load):
                for stream in streams:
                    moving.add(asyncio.create_task(self.move(stream), name=f"give up {stream.name}"))
                    await self._clock.sleep(1 / streams_per_s)
                await asyncio.wait(moving)
        finally:
            for task in moving:
                task.cancel()
            if moving:
                await asyncio.wait(moving)

    def _load(self, stream: OwnedStream) -> float:
        now_s = self._clock.monotonic()
        return load(bytes_per_s=stream.bytes.per_s(now_s), requests_per_s=stream.requests.per_s(now_s))

    async def move(self, stream: OwnedStream, to: pb.Owner | None = None) -> None:
        """Give a stream up, to this proxy or to the one where it belongs."""
        target = to or self._routing.place(stream.name, but_not=self._own)
        if target is not None and self._table.is_draining:
            self._table.moved[stream.name] = target
        await give_up(self._table, stream, target)
        for call in list(self._calls()):
            call.advise(pb.GoAway(stream=stream.name, suggested_owner=target))
        if target is not None:
            await self._announce(stream.name, target)

    async def _announce(self, stream: str, target: pb.Owner) -> None:
        """Have the next owner take the stream before the first client asks for it: it would do so anyway, later."""
        if self._transport is None:
            return
        channel = self._transport.channel(f"{target.host}:{target.port}")
        request = pb.HeartbeatRequest(namespace=self._namespace, stream=stream, handed_over=True)
        timeout_s = self._settings.close_timeout_s
        ends_s = self._clock.monotonic() + timeout_s
        while True:
            try:
                await channel.call(HEARTBEAT, request, timeout_s=timeout_s)
                return
            except QuireError as error:
                # It may have asked for the lock while we still had it, and our request waited for that answer.
                if not isinstance(error, NotOwner) or self._clock.monotonic() >= ends_s:
                    to = f"{target.host}:{target.port}"
                    _log.info("stream.not_announced", stream=stream, to=to, error=str(error))
                    return
            await self._clock.sleep(_AGAIN_S)


async def give_up(table: StreamTable, stream: OwnedStream, target: pb.Owner | None) -> None:
    """Close a stream in good order. Whoever waits for it meanwhile is sent on to `target`, if that is known."""
    if target is None:
        stream.close(lambda _: ProxyDraining("this proxy has given the stream up"))
    else:
        owner = target
        stream.close(lambda operation: table.refusals.not_owner(stream.name, owner, operation.tried))
    await stream.wait_closed()
