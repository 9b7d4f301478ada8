"""The invariants of `quire.rpc.serving.transport`: PulledNotPushed, EndsTogether, Certainty; and of its server:
WritesRunToTheirEnd.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import OverCapacity, ProxyOutcomeUnknown, ProxyUnreachable
from quire.rpc.serving.methods import READ, READ_SESSION, SEAL, WRITE, WRITE_ONCE
from quire.rpc.serving.settings import CallSettings, ServingSettings
from quire.rpc.serving.transport import Caller, Channel, Handlers, Take
from tests.contract.serving.world import OnWorld, World


class Proxy:
    """Handlers that tell what happens to them."""

    def __init__(self) -> None:
        self.begun = self.finished = self.closed = self.yielded = self.taken = 0
        self.gate = asyncio.Event()

    def handlers(self) -> Handlers:
        return {WRITE_ONCE: self.once, SEAL: self.seal, READ: self.read, WRITE: self.write, READ_SESSION: self.session}

    async def seal(self, request: Any, caller: Caller) -> pb.StreamResponse:
        """Answers at once."""
        return pb.StreamResponse()

    async def once(self, request: Any, caller: Caller) -> pb.WriteOnceResponse:
        """Answers when the gate is open."""
        self.begun += 1
        await self.gate.wait()
        self.finished += 1
        return pb.WriteOnceResponse(txid_first=self.begun)

    async def read(self, request: Any, caller: Caller) -> AsyncIterator[pb.ReadEvent]:
        """As much as is taken, a kilobyte each; and if asked for an exclusive one, nothing after the first."""
        self.begun += 1
        try:
            while True:
                self.yielded += 1
                yield pb.ReadEvent(entries=[pb.Entry(entry_id=self.yielded, data=bytes(1000))])
                if request.exclusive:
                    await asyncio.Event().wait()
        finally:
            self.closed += 1

    async def write(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.WriteResponse]:
        """Takes one request, and the others when the gate is open."""
        self.begun += 1
        try:
            async for _ in requests:
                self.taken += 1
                yield pb.WriteResponse(pong=pb.Pong(number=self.taken))
                await self.gate.wait()
        finally:
            self.closed += 1

    async def session(self, requests: AsyncIterator[Any], caller: Caller) -> AsyncIterator[pb.SessionEvent]:
        """Waits for requests that never come."""
        self.begun += 1
        try:
            async for _ in requests:
                yield pb.SessionEvent()
        finally:
            self.closed += 1


class Offers:
    """Responses that are handed out by whoever tests them; the first one is there to be asked for."""

    def __init__(self) -> None:
        self.take: Take | None = None
        self._first = True

    def offer_to(self, take: Take) -> None:
        self.take = take

    def offer(self, number: int) -> bool:
        assert self.take is not None
        return self.take(pb.ReadEvent(entries=[pb.Entry(entry_id=number, data=bytes(1000))]).SerializeToString())

    def __aiter__(self) -> "Offers":
        return self

    async def __anext__(self) -> pb.ReadEvent:
        if self._first:
            self._first = False
            return pb.ReadEvent(entries=[pb.Entry(entry_id=0)])
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes it")


async def is_alive(channel: Channel) -> None:
    await channel.call(SEAL, pb.StreamRequest(), timeout_s=5)


def big_ping() -> pb.WriteRequest:
    return pb.WriteRequest(batch=pb.Batch(records=[bytes(1000)]))


# --- PulledNotPushed


def test_a_reader_that_stops_holds_its_handler_and_nobody_else(on_world: OnWorld) -> None:
    """Method: one reader takes one event of an endless stream, another one takes thousands over the same connection."""

    async def check(world: World) -> None:
        slow, quick = Proxy(), Proxy()
        server = await world.serve({**quick.handlers(), READ: slow.read})
        channel = world.channel(server)
        async with channel.stream(READ, pb.ReadRequest()) as lazy:
            await anext(lazy)
            for _ in range(20):
                await is_alive(channel)
            await world.pass_time(0.05)
            stopped_at = slow.yielded
            assert stopped_at <= 2 * CallSettings().window_bytes // 1000
            for _ in range(20):
                await is_alive(channel)
            assert slow.yielded == stopped_at
            seen = [(await anext(lazy)).entries[0].entry_id for _ in range(2_000)]
            assert seen == list(range(2, 2_002))

    on_world(check)


def test_offers_are_taken_in_order_while_there_is_room_and_refused_when_there_is_none(on_world: OnWorld) -> None:
    """Method: one call is offered more than its window holds and reads nothing. Another one, on the same connection, is
    offered as much and reads."""

    async def check(world: World) -> None:
        slow, fast = Offers(), Offers()

        def read(request: Any, caller: Caller) -> Offers:
            return slow if request.stream == "slow" else fast

        channel = world.channel(await world.serve({**Proxy().handlers(), READ: read}))
        async with (
            channel.stream(READ, pb.ReadRequest(stream="slow")) as lazy,
            channel.stream(READ, pb.ReadRequest(stream="fast")) as quick,
        ):
            for events in (lazy, quick):
                assert (await anext(events)).entries[0].entry_id == 0
            taken = 0
            while slow.offer(taken + 1):
                taken += 1
            assert taken <= CallSettings().window_bytes // 1000
            assert not slow.offer(taken + 1), "what was refused is kept, and there is no room yet"
            for number in range(1, 1000):
                while not fast.offer(number):
                    await world.pass_time(0.001)
                assert (await anext(quick)).entries[0].entry_id == number
            seen = [(await anext(lazy)).entries[0].entry_id for _ in range(taken)]
            assert seen == list(range(1, taken + 1))
            await world.until(lambda: slow.offer(taken + 1), "there is room again")
            assert (await anext(lazy)).entries[0].entry_id == taken + 1
        await world.until(lambda: not slow.offer(1) and not fast.offer(1), "calls that are over take nothing")

    on_world(check)


def test_a_handler_that_stops_holds_whoever_sends(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        channel = world.channel(await world.serve(proxy.handlers()))
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(2_000):
                await call.send(big_ping())
                sent += 1
            await call.done_sending()

        async with channel.duplex(WRITE) as call:
            sending = asyncio.create_task(send())
            await anext(call)
            for _ in range(20):
                await is_alive(channel)
            await world.pass_time(0.05)
            assert sent < 2_000
            assert sent <= 2 * CallSettings().window_bytes // 1000
            assert proxy.taken == 1
            proxy.gate.set()
            assert len([answer async for answer in call]) == 1_999
            await sending

    on_world(check)


# --- EndsTogether


@pytest.mark.parametrize("how", ["leaves", "is_cancelled", "closes_its_transport", "loses_its_connection"])
@pytest.mark.parametrize("idle", [False, True], ids=["blocked", "idle"])
def test_a_handler_is_closed_when_its_caller(on_world: OnWorld, how: str, idle: bool) -> None:
    """Whether it waits for the caller to take something, or for something of its own."""

    async def check(world: World) -> None:
        proxy = Proxy()
        link = await world.link(await world.serve(proxy.handlers()))
        transport = world.transport()
        channel = transport.channel(f"{link.address[0]}:{link.address[1]}")
        leave = asyncio.Event()

        async def read() -> None:
            async with channel.stream(READ, pb.ReadRequest(exclusive=idle)) as events:
                await anext(events)
                await leave.wait()

        async def talk() -> None:
            async with channel.duplex(READ_SESSION):
                await leave.wait()

        reading, talking = asyncio.create_task(read()), asyncio.create_task(talk())
        await world.until(lambda: proxy.begun == 2)
        match how:
            case "leaves":
                leave.set()
            case "is_cancelled":
                reading.cancel()
                talking.cancel()
            case "closes_its_transport":
                await transport.aclose()
            case "loses_its_connection":
                link.cut()
        await world.until(lambda: proxy.closed == 2)
        leave.set()
        await asyncio.gather(reading, talking, return_exceptions=True)

    on_world(check)


def test_when_the_server_closes_callers_hear_of_it(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        server = await world.serve(proxy.handlers())
        channel = world.channel(server)
        async with channel.stream(READ, pb.ReadRequest(exclusive=True)) as events, channel.duplex(WRITE) as duplex:
            await anext(events)
            await duplex.send(big_ping())
            await anext(duplex)
            unary = asyncio.create_task(channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=20))
            await world.until(lambda: proxy.begun == 3)
            await server.aclose()
            for wait in (anext(events), anext(duplex), unary):
                with pytest.raises(ProxyOutcomeUnknown):
                    await wait
        assert proxy.closed == 2
        assert proxy.finished == 0
        with pytest.raises(ProxyUnreachable):
            await is_alive(channel)

    on_world(check)


def test_a_server_that_closes_lets_calls_finish_for_a_while(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        server = await world.serve(proxy.handlers())
        channel = world.channel(server)
        waiting = asyncio.create_task(channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=20))
        await world.until(lambda: proxy.begun == 1)
        closing = asyncio.create_task(server.aclose(grace_s=20))
        await world.pass_time(0.1)
        with pytest.raises(ProxyUnreachable):
            await is_alive(channel)
        proxy.gate.set()
        assert (await waiting).txid_first == 1
        await closing

    on_world(check)


def test_a_channel_finds_a_proxy_that_was_started_again(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        server = await world.serve(Proxy().handlers())
        channel = world.channel(server)
        await is_alive(channel)
        await server.aclose()
        with pytest.raises(ProxyUnreachable):
            await is_alive(channel)
        await world.serve(Proxy().handlers(), port=server.address[1])
        await is_alive(channel)

    on_world(check)


# --- Certainty


def test_what_nobody_listens_to_is_unreachable(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        server = await world.bind()
        await server.aclose()
        channel = world.channel(server)
        with pytest.raises(ProxyUnreachable):
            await is_alive(channel)
        with pytest.raises(ProxyUnreachable):
            async with channel.stream(READ, pb.ReadRequest()):
                pass
        with pytest.raises(ProxyUnreachable):
            async with channel.duplex(WRITE):
                pass

    on_world(check)


def test_a_proxy_that_has_not_started_sees_nothing(on_world: OnWorld) -> None:
    """Goal: a call given up before the start is certain not to have happened, even once the proxy has started."""

    async def check(world: World) -> None:
        server, proxy = await world.bind(), Proxy()
        channel = world.channel(server)
        with pytest.raises(ProxyUnreachable):
            await channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=0.1)
        patient = asyncio.create_task(is_alive(channel))
        await world.pass_time(0.05)
        await server.start(proxy.handlers())
        await patient
        assert proxy.begun == 0

    on_world(check)


def test_a_call_whose_connection_breaks_has_an_unknown_outcome(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        link = await world.link(await world.serve(proxy.handlers()))
        channel = world.channel(link)
        waiting = asyncio.create_task(channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=20))
        async with channel.stream(READ, pb.ReadRequest(exclusive=True)) as events:
            await anext(events)
            await world.until(lambda: proxy.begun == 2)
            link.cut()
            with pytest.raises(ProxyOutcomeUnknown):
                await waiting
            with pytest.raises(ProxyOutcomeUnknown):
                await anext(events)
        await is_alive(channel)
        proxy.gate.set()
        await world.until(lambda: proxy.finished == 1, "WritesRunToTheirEnd")

    on_world(check)


def test_a_proxy_that_says_nothing_any_more_is_given_up(on_world: OnWorld) -> None:
    """Method: a link that swallows everything, and short keep-alive times at the client."""

    async def check(world: World) -> None:
        proxy = Proxy()
        quick = CallSettings(keep_alive_s=0.2, keep_alive_timeout_s=0.2)
        link = await world.link(await world.serve(proxy.handlers(), settings=ServingSettings(quick)))
        channel = world.channel(link, settings=quick)
        async with channel.stream(READ, pb.ReadRequest(exclusive=True)) as events:
            await anext(events)
            await world.pass_time(1.0)  # Silence alone is nothing bad.
            link.hold()
            with pytest.raises(ProxyOutcomeUnknown):
                await anext(events)
        await world.until(lambda: proxy.closed == 1)

    on_world(check)


# --- Deadlines, and WritesRunToTheirEnd


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
def test_a_write_runs_to_its_end_though_nobody_waits_for_it(on_world: OnWorld, how: str) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        server = await world.serve(proxy.handlers())
        channel = world.channel(server)
        await is_alive(channel)  # Connecting takes nothing of the deadline.
        if how == "deadline":
            with pytest.raises(ProxyOutcomeUnknown, match="within"):
                await channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=0.2)
        else:
            call = asyncio.create_task(channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=5))
            await world.until(lambda: proxy.begun == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await is_alive(channel)
        assert (proxy.begun, proxy.finished) == (1, 0)
        proxy.gate.set()
        await world.until(lambda: proxy.finished == 1)
        await world.until(lambda: server.counts()["calls"] == 0)

    on_world(check)


# --- Limits


def test_a_client_spreads_calls_over_connections_as_the_proxy_wants(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        server = await world.serve(proxy.handlers(), settings=ServingSettings(calls_per_connection_max=3))
        channel = world.channel(server)
        calls = [asyncio.create_task(channel.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=20)) for _ in range(10)]
        await world.until(lambda: proxy.begun == 10)
        assert server.counts() == {"connections": 4, "calls": 10}
        proxy.gate.set()
        await asyncio.gather(*calls)

    on_world(check)


def test_a_proxy_refuses_more_calls_than_it_can_hold(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        server = await world.serve(proxy.handlers(), settings=ServingSettings(calls_max=5))
        greedy, other = world.channel(server), world.channel(server, client_id="other")
        calls = [asyncio.create_task(greedy.call(WRITE_ONCE, pb.WriteOnceRequest(), timeout_s=20)) for _ in range(5)]
        await world.until(lambda: proxy.begun == 5)
        with pytest.raises(OverCapacity):
            await is_alive(other)
        assert server.counts()["too_many_calls"] == 1
        proxy.gate.set()
        await asyncio.gather(*calls)
        await is_alive(other)

    on_world(check)


def test_connections_are_renewed_and_short_calls_do_not_notice(on_world: OnWorld) -> None:
    async def check(world: World) -> None:
        proxy = Proxy()
        settings = ServingSettings(connection_age_s=0.3, connection_age_grace_s=0.3)
        channel = world.channel(await world.serve(proxy.handlers(), settings=settings))
        async with channel.stream(READ, pb.ReadRequest(exclusive=True)) as events:
            await anext(events)
            for _ in range(40):
                await is_alive(channel)
                await world.pass_time(0.02)
            with pytest.raises(ProxyOutcomeUnknown):
                await anext(events)
        await world.until(lambda: proxy.closed == 1)

    on_world(check)


def test_a_call_may_come_in_any_turn_of_the_loop_while_a_channel_connects(on_world: OnWorld) -> None:
    """Method: one comes in every turn; so also in that in which the connection is there, and nobody was told yet."""

    async def check(world: World) -> None:
        server, calls = await world.serve(Proxy().handlers()), list[asyncio.Task[None]]()
        channel = world.channel(server)
        while len(calls) < 200 and not any(call.done() for call in calls):
            calls.append(asyncio.create_task(is_alive(channel)))
            await asyncio.sleep(0)
        first, *others = calls
        await first
        for call in others:
            call.cancel()
        await asyncio.wait(calls)

    on_world(check)
