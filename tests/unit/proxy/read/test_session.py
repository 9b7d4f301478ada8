"""Several streams on one call."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.support.proxies.read_world import CALLER, EARLIEST, World, at, numbered, on_proxy, settings

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, OverCapacity


@dataclass
class Call:
    """One call of `ReadSession`."""

    world: World
    requests: "asyncio.Queue[pb.SessionRequest | None]" = field(default_factory=asyncio.Queue)
    events: dict[int, list[pb.ReadEvent]] = field(default_factory=dict)
    ended: dict[int, pb.Result] = field(default_factory=dict)
    came_bytes: Counter[int] = field(default_factory=Counter)
    task: "asyncio.Task[None] | None" = None

    def begin(self) -> "Call":
        self.task = self.world.sim.host("proxy").spawn(self._run())
        return self

    async def _run(self) -> None:
        async for message in self.world.proxy.read_session(self._sent(), CALLER):
            assert isinstance(message, bytes)
            event = pb.SessionEvent.FromString(message)
            if event.HasField("ended"):
                self.ended[event.id] = event.ended
            else:
                self.events.setdefault(event.id, []).append(event.event)
                self.came_bytes[event.id] += len(event.event.SerializeToString())

    async def _sent(self) -> AsyncIterator[pb.SessionRequest]:
        while (request := await self.requests.get()) is not None:
            yield request

    def start(self, id: int, stream: str, start: pb.Position = EARLIEST, *, credit: int = 1 << 20) -> None:
        request = pb.ReadRequest(stream=stream, start=start, format=pb.RECORDS, max_frame_bytes=100)
        self.requests.put_nowait(pb.SessionRequest(start=pb.SessionStart(id=id, request=request, credit_bytes=credit)))

    def credit(self, id: int, size_bytes: int) -> None:
        self.requests.put_nowait(pb.SessionRequest(credit=pb.SessionCredit(id=id, bytes=size_bytes)))

    def stop(self, id: int) -> None:
        self.requests.put_nowait(pb.SessionRequest(stop=pb.SessionStop(id=id)))

    def payloads(self, id: int) -> list[bytes]:
        return [record.payload for event in self.events.get(id, []) for record in event.records]

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])


def test_several_streams_come_on_one_call() -> None:
    async def check(world: World) -> None:
        for stream in ("a", "b"):
            await world.write(20, stream=stream)
        call = Call(world).begin()
        call.start(1, "a")
        call.start(2, "b")
        await world.until(lambda: len(call.payloads(1)) == len(call.payloads(2)) == 20)
        assert call.payloads(1) == call.payloads(2) == numbered(20)
        await world.write(5, first=20, stream="b")
        await world.until(lambda: len(call.payloads(2)) == 25)
        await call.end()

    on_proxy(check)


def test_nothing_comes_without_credit() -> None:
    async def check(world: World) -> None:
        await world.write(100, stream="a")
        call = Call(world).begin()
        call.start(1, "a", credit=500)
        await world.pass_time(5.0)
        first = call.came_bytes[1]
        assert 500 <= first <= 1000, "the last one may exceed it"
        call.credit(1, 500)
        await world.pass_time(5.0)
        assert first < call.came_bytes[1] <= first + 1000
        call.credit(1, 1 << 20)
        await world.until(lambda: len(call.payloads(1)) == 100)
        assert call.payloads(1) == numbered(100)
        call.credit(7, 100)  # Of one that is not there: it may have ended a moment ago.
        await call.end()

    on_proxy(check)


def test_a_stream_is_started_elsewhere_and_stopped() -> None:
    async def check(world: World) -> None:
        places = await world.write(50, stream="a")
        call = Call(world).begin()
        call.start(1, "a")
        await world.until(lambda: len(call.payloads(1)) == 50)
        call.start(1, "a", at(*places[40]))
        await world.until(lambda: len(call.payloads(1)) >= 60)
        assert call.payloads(1)[50:] == numbered(10, first=40)
        call.stop(1)
        await world.pass_time(1.0)
        await world.write(5, first=50, stream="a")
        await world.pass_time(1.0)
        assert len(call.payloads(1)) == 60
        await call.end()

    on_proxy(check)


def test_a_stream_that_fails_or_ends_says_so_and_the_others_go_on() -> None:
    async def check(world: World) -> None:
        await world.write(3, stream="a")
        await world.write(3, stream="b")
        await world.writers.seal_stream("b")
        call = Call(world).begin()
        call.start(1, "a")
        call.start(2, "missing")
        call.start(3, "b")
        await world.until(lambda: set(call.ended) == {2, 3} and len(call.payloads(1)) == 3)
        assert call.ended[2].code == pb.LOG_NOT_FOUND
        assert call.ended[3].code == pb.OK
        assert call.payloads(3) == numbered(3)
        assert call.events[3][-1].end_of_stream
        await world.write(3, first=3, stream="a")
        await world.until(lambda: len(call.payloads(1)) == 6)
        await call.end()

    on_proxy(check)


def test_a_session_ends_when_all_was_asked_and_all_has_ended() -> None:
    async def check(world: World) -> None:
        await world.write(3, stream="a")
        await world.writers.seal_stream("a")
        call = Call(world).begin()
        call.start(1, "a")
        call.requests.put_nowait(None)
        await world.until(lambda: call.task is not None and call.task.done())
        assert call.ended[1].code == pb.OK
        assert world.proxy.statistics()["readers"] == 0

    on_proxy(check)


def test_a_session_that_asks_for_nonsense_or_too_much_is_ended() -> None:
    async def check(world: World) -> None:
        for ask, error in (("nothing", InvalidArgument), ("too much", OverCapacity)):
            call = Call(world).begin()
            if ask == "nothing":
                call.requests.put_nowait(pb.SessionRequest())
            else:
                for id in range(3):
                    call.start(id, "s")
            assert call.task is not None
            await asyncio.wait([call.task])
            assert isinstance(call.task.exception(), error)
        await world.until(lambda: world.proxy.statistics()["readers"] == 0)

    on_proxy(check, settings=settings(session_streams_max=2), seeds=1)
