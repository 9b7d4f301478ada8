"""All that a client writes: a lane for each stream, a call for each proxy, and what is decided about both.

The lanes know what is to be sent and in which order, `Route` knows where to try next, the calls carry it there. This is
where their news meet.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from math import inf

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import AppendOutcomeUnknown, ProtocolViolation, ProxyOutcomeUnknown, QuireError
from quire.protocol.redirects import Advice, GiveUp, Route, Send
from quire.proxy.client.appends import Append, Outbox, Parcel
from quire.proxy.client.failures import address_of
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.lane import Lane
from quire.proxy.client.requests import Requests, nobody_there
from quire.proxy.client.settings import ProxyClientSettings
from quire.proxy.client.write_call import WriteCall
from quire.rpc.serving.methods import WRITE
from quire.rpc.serving.results import error_of, is_not_applied
from quire.rpc.serving.transport import Transport
from quire.runtime import Runtime


class Writing:
    """The lanes and calls of one client."""

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        hosts: Hosts,
        requests: Requests,
        settings: ProxyClientSettings,
        *,
        client_id: str,
    ) -> None:
        self._runtime, self._transport, self._requests = runtime, transport, requests
        self._hosts, self._owners = hosts, requests.owners
        self.settings, self.client_id, self.namespace = settings, client_id, hosts.namespace
        self._lanes: dict[str, Lane] = {}
        self._calls: dict[str, WriteCall] = {}
        self._attempts = count(1)
        self._is_closed = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._is_closed = True
            tasks = [call.task for call in self._calls.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            closed = ProxyOutcomeUnknown("the client was closed before an answer came")
            for lane in list(self._lanes.values()):
                lane.end(closed)

    # --- Writers

    def join(self, stream: str, outbox: Outbox) -> Lane:
        """A writer of a stream begins."""
        lane = self._lanes.get(stream)
        if lane is None:
            lane = self._lanes[stream] = Lane(stream, self._attempts)
        lane.outboxes.add(outbox)
        return lane

    def leave(self, lane: Lane, outbox: Outbox) -> None:
        """It has nothing to send any more, and will not."""
        lane.outboxes.discard(outbox)
        self._drop_if_done(lane)

    def _drop_if_done(self, lane: Lane) -> None:
        if not lane.outboxes and lane.is_idle and self._lanes.get(lane.stream) is lane:
            del self._lanes[lane.stream]
            self._unbind(lane)
            for timer in (lane.pause, lane.expiry):
                if timer is not None:
                    timer.cancel()

    def push(self, lane: Lane, outbox: Outbox, append: Append) -> None:
        """Records were appended."""
        outbox.push(append)
        lane.on_append(outbox)
        if lane.expiry is None:
            lane.expiry = asyncio.get_running_loop().call_at(append.deadline_s, self._expire, lane)
        if lane.call is not None:
            lane.call.want(lane)
        elif lane.pause is None:
            self._advance(lane)

    def _expire(self, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        again_s = lane.expire(loop.time(), self.settings.append_timeout_s)
        lane.expiry = None if again_s is None else loop.call_at(again_s, self._expire, lane)
        self._drop_if_done(lane)

    # --- Where a lane goes

    def _advance(self, lane: Lane) -> None:
        """Find the lane a call, unless it has one or nothing to send."""
        if lane.pause is not None:
            lane.pause.cancel()
            lane.pause = None
        if lane.is_leaving and not lane.in_flight and not lane.failed:
            lane.is_leaving = False
            self._unbind(lane)
        if self._is_closed or not lane.can_send:
            return
        if lane.call is None and not self._choose(lane):
            return
        assert lane.call is not None
        lane.call.want(lane)

    def _choose(self, lane: Lane) -> bool:
        route = lane.route = lane.route or Route(self.settings.retries, deadline_s=inf, may_repeat=True)
        loop = asyncio.get_running_loop()
        owner, candidates = self._owners.owner(lane.stream), self._hosts.writers_of(lane.stream)
        step = route.next(loop.time(), owner=owner, candidates=candidates, draw=self._runtime.rng.random())
        if isinstance(step, Send):
            lane.call = self._call_to(step.host)
            lane.call.lanes[lane] = None
            return True
        if isinstance(step, GiveUp):
            lane.route = None
            lane.fail_all(nobody_there(WRITE, lane.problem))
        else:
            lane.pause = loop.call_at(step.until_s, self._advance, lane)
        return False

    def _call_to(self, address: str) -> WriteCall:
        call = self._calls.get(address)
        if call is None:
            call = self._calls[address] = WriteCall(self, self._transport.channel(address))
        return call

    def _unbind(self, lane: Lane) -> None:
        if lane.call is not None:
            lane.call.forget(lane)
            lane.call = None

    def on_news(self, stream: str | None = None) -> None:
        """An owner was heard of, or other proxies: lanes that wait for just that need not wait any longer."""
        lanes = self._lanes.values() if stream is None else filter(None, [self._lanes.get(stream)])
        for lane in list(lanes):
            if lane.pause is not None and lane.route is not None:
                lane.route.on_news()
                self._advance(lane)

    # --- What a call says

    def on_call_open(self, call: WriteCall) -> None:
        self._hosts.on_answer(call.address)

    def on_ack(self, call: WriteCall, lane: Lane, parcel: Parcel, ack: pb.Ack) -> None:
        if not lane.on_answered(parcel):
            raise ProtocolViolation(f"proxy {call.address} answered for stream {lane.stream!r} out of order")
        if ack.result.code in (pb.OK, pb.DUPLICATE):
            self._on_stored(call, lane, parcel, ack)
        else:
            error = error_of(ack.result)
            lane.on_failed(parcel, error, may_be_stored=not is_not_applied(error))
        if lane.failed and not lane.in_flight:
            self._on_settled(lane, call.address)
        elif lane.is_leaving:
            self._advance(lane)
        elif lane.call is call:
            call.want(lane)
        self._drop_if_done(lane)

    def _on_stored(self, call: WriteCall, lane: Lane, parcel: Parcel, ack: pb.Ack) -> None:
        if ack.placed:
            dlsns = parcel.on_stored(ack.placed)
            epoch = dlsns[-1].lssn
            self._owners.update(lane.stream, call.address, epoch=epoch, expected=call.address)
            parcel.outbox.on_stored(parcel, dlsns[-1], ack.txid_last)
        else:
            for part in parcel.parts:
                part.append.fail(_places_forgotten(lane.stream))
        lane.on_stored(parcel)

    def _on_settled(self, lane: Lane, address: str) -> None:
        """Everything that was sent is answered, and some of it failed: begin the next attempt."""
        error = lane.failed[0].error
        assert error is not None
        goes_on = self._on_failure(lane, address, error)
        lane.rewind(is_final=not goes_on)
        if not goes_on:
            lane.route = None  # What follows is another matter.
        self._unbind(lane)
        lane.is_leaving = False
        self._advance(lane)

    def _on_failure(self, lane: Lane, address: str, error: QuireError) -> bool:
        lane.problem = error
        route = lane.route = lane.route or Route(self.settings.retries, deadline_s=inf, may_repeat=True)
        failure = self._requests.learned(address, error, stream=lane.stream)
        if failure.advice is Advice.HERE and self._owners.owner(lane.stream) is None:
            self._owners.update(lane.stream, address)  # It takes the stream, or has it: going elsewhere is no use.
        now_s = asyncio.get_running_loop().time()
        return route.on_failure(
            address, replace(failure, may_have_happened=False), now_s, draw=self._runtime.rng.random()
        )

    def on_go_away(self, call: WriteCall, go_away: pb.GoAway) -> None:
        """Finish what is on its way there, and send what follows elsewhere."""
        suggested = address_of(go_away.suggested_owner) if go_away.suggested_owner.host else None
        lanes = [lane for lane in call.lanes if not go_away.stream or lane.stream == go_away.stream]
        for stream in {lane.stream for lane in lanes} | ({go_away.stream} - {""}):
            if suggested is not None and suggested != call.address:
                self._owners.update(stream, suggested, expected=call.address)
            else:
                self._owners.drop(stream, expected=call.address)
        for lane in lanes:
            lane.is_leaving = True
            self._advance(lane)

    def on_call_over(self, call: WriteCall, error: QuireError) -> None:
        """Nothing more comes from it."""
        if self._calls.get(call.address) is call:
            del self._calls[call.address]
        lanes, call.lanes = call.lanes, {}
        self._owners.drop_owner(call.address)
        for lane in lanes:
            lane.call = None
            lane.on_lost(error)
            if lane.failed:
                self._on_settled(lane, call.address)
            elif lane.has_more:
                lane.is_leaving = False
                if self._on_failure(lane, call.address, error):
                    self._advance(lane)
                else:
                    lane.route = None
                    lane.fail_all(error)
            self._drop_if_done(lane)


def _places_forgotten(stream: str) -> AppendOutcomeUnknown:
    return AppendOutcomeUnknown(
        f"the records are in stream {stream!r}, but its owner does not remember where: the answer came too late",
        hint="Do not append them again. Read the end of the stream to find them.",
        stream=stream,
        is_stored=True,
    )
