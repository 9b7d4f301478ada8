"""A peer for channels that says what the test tells it to, and a sink that remembers what it was told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

from quire.codec.wire import v2, v3
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import FrameSplitter, protocol_version
from quire.codec.wire.v3_messages import Request
from quire.errors import QuireError
from quire.rpc import AddAnswers, BookieChannel, ChannelSettings
from quire.testing import Simulation, simulate
from quire.types import EntryId, LedgerId

DEADLINE_S = 600.0  # Of virtual time, or far more than a real run takes.
LEDGER = LedgerId(7)
KEY = bytes(range(20))

Heard: TypeAlias = tuple[int, tuple[Any, ...]] | Request  # Opcode and fields in version 2.


def add_frame(entry_id: int, *, ledger_id: LedgerId = LEDGER, payload: bytes = b"payload", flags: int = 0) -> bytes:
    """An add of version 2, whole. Nobody looks at its digest."""
    entry = b"".join(number.to_bytes(8, "big", signed=True) for number in (ledger_id, entry_id, entry_id - 1, 0))
    entry += payload
    return v2.add_request_prefix(KEY, entry_bytes=len(entry), flags=flags) + entry


def add_ok(entry_id: int, *, ledger_id: LedgerId = LEDGER, status: Status = Status.EOK) -> bytes:
    return v2.encode_add_response(status, ledger_id, EntryId(entry_id))


def ids(*numbers: int) -> list[EntryId]:
    return [EntryId(number) for number in numbers]


class _Waits:
    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once `condition` holds. It is asked after every event."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class ScriptedBookie(_Waits, asyncio.Protocol):
    """One connection's server side: remembers every request, answers only what it is told to."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Heard] = []
        self.received = bytearray()
        self.made = self.lost = False
        self._splitter = FrameSplitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.made = True
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._changed.set()

    def data_received(self, data: bytes) -> None:
        self.received += data
        for body in self._splitter.split(data):
            self.heard.append(v3.decode_request(body) if protocol_version(body) == 3 else _decode_v2(body))
        self._changed.set()

    async def hear(self, count: int) -> list[Heard]:
        """The first `count` requests, once they are here."""
        await self.until(lambda: len(self.heard) >= count)
        assert len(self.heard) == count
        return self.heard

    async def hear_v3(self) -> Request:
        """The next request that was not asked for yet, which must be of version 3."""
        await self.until(lambda: bool(self.heard))
        request = self.heard.pop(0)
        assert isinstance(request, Request)
        return request

    def say(self, *frames: bytes) -> None:
        self.transport.write(b"".join(frames))


def _decode_v2(body: memoryview) -> tuple[int, tuple[Any, ...]]:
    _, opcode, _ = v2.decode_header(body)
    decode: Callable[[memoryview], tuple[Any, ...]] = {
        v2.ADD_ENTRY: v2.decode_add_request,
        v2.READ_ENTRY: v2.decode_read_request,
        v2.BATCH_READ_ENTRY: v2.decode_batch_read_request,
    }[opcode]
    return opcode, decode(body)


class Sink(_Waits):
    """An `AddSink` that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[tuple[EntryId, Status]]] = []
        self.lost: list[tuple[list[EntryId], QuireError]] = []

    @property
    def answers(self) -> list[tuple[EntryId, Status]]:
        return [answer for batch in self.batches for answer in batch]

    @property
    def lost_ids(self) -> list[EntryId]:
        return [entry_id for entry_ids, _ in self.lost for entry_id in entry_ids]

    def on_add_answers(self, answers: AddAnswers) -> None:
        self.batches.append([(entry_id, status) for status, entry_ids in answers for entry_id in entry_ids])
        self._changed.set()

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        self.lost.append((entry_ids, error))
        self._changed.set()


class World:
    """A channel and the bookie at its other end, in one simulation."""

    def __init__(self, sim: Simulation, channel: BookieChannel, bookie: ScriptedBookie) -> None:
        self.sim, self.channel, self.bookie = sim, channel, bookie

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by, for things that must not happen."""
        await asyncio.sleep(seconds)

    def send(self, entries: range | Sequence[EntryId], sink: Sink) -> list[bytes]:
        """Add `entries` in version 2, each with a payload of its own."""
        frames = [add_frame(entry_id, payload=b"entry %d" % entry_id) for entry_id in entries]
        self.channel.send_adds(LEDGER, frames, entries, sink)
        return frames


Check: TypeAlias = Callable[[World], Awaitable[None]]


def on_channel(check: Check, *, seed: int = 1, settings: ChannelSettings | None = None) -> None:
    """Run `check` in a simulation with one channel, connected."""

    async def main(sim: Simulation) -> None:
        bookies: list[ScriptedBookie] = []

        def accept() -> ScriptedBookie:
            bookies.append(ScriptedBookie())
            return bookies[-1]

        await sim.host("bookie").runtime.network.serve("bookie", 3181, accept)
        channel = await BookieChannel.connect(sim.host("client").runtime, "bookie", 3181, settings or ChannelSettings())
        await bookies[0].until(lambda: bookies[0].made)
        await check(World(sim, channel, bookies[0]))

    simulate(seed, main, time_limit_s=3600)
