"""Whole streams in turns: what a benchmark of them does on each side, and what a side has to be able to do.

A turn writes to one or many streams at once with a bounded number of records in flight, reads them back, and then
appends to others at a fixed rate while readers wait at their tails. Before anything is measured each stream has its
first record, and so its first segment. With a peer the two sides take turns on the same machine, and one begins only
when the bookies of both have come to rest.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, Protocol

from benchmarks.ledger.figures import Work
from benchmarks.stream.figures import (
    Delivery,
    DeliveryRow,
    StreamCase,
    StreamRound,
    StreamThroughputRow,
    delivery_rows,
    stream_throughput_rows,
)
from quire.values import dataclass

OPENING_MAX: Final = 32  # Streams that are opened, closed or deleted at the same time.
WINDOW_BYTES_MAX: Final = 16 << 20
_TURN_BYTES_MAX: Final = 64 << 20  # Of large records there are fewer.
_CALL_BYTES_MAX: Final = 64 << 10  # What fits into an entry of ours. On Java's side a call is an entry, too.
_HEADER_BYTES: Final = 20  # Of a record, beside its payload.
_PACED_S: Final = 5.0
_WARM_UP_TURNS_MAX: Final = 12
_WARM_UP_RATE: Final = 5000
_REST_S, _REST_CPU_S, _REST_WITHIN_S = 0.25, 0.03, 10.0


@dataclass(frozen=True, slots=True)
class StreamBench:
    """What to measure."""

    cases: tuple[StreamCase, ...]
    records: int
    call_records: int
    window: int
    rates: tuple[int, ...]
    rounds: int
    warm_up: int

    @property
    def bookies(self) -> int:
        return max(case.quorum[0] for case in self.cases)

    def load_of(self, case: StreamCase) -> "Load":
        """What each stream of a turn gets."""
        record_bytes = _HEADER_BYTES + case.record_bytes
        records = min(self.records, _TURN_BYTES_MAX // record_bytes)
        window = min(self.window, WINDOW_BYTES_MAX // record_bytes) // case.streams
        call_records = max(1, min(self.call_records, _CALL_BYTES_MAX // record_bytes, window))
        return Load(max(1, records // case.streams), call_records, max(1, window // call_records))


@dataclass(frozen=True, slots=True)
class Load:
    """Of one stream."""

    records: int  # After its first one, which is not measured.
    call_records: int  # Records that are appended with one call.
    calls: int  # That may be under way at once.


class StreamSide(Protocol):
    """A client and its bookies. Whatever fails raises a `QuireError`."""

    name: str

    def cpu_s(self) -> float:
        """What its bookies have used."""

    async def write(self, turn: int, case: StreamCase, load: Load) -> tuple[Work, Work]:
        """Write the streams of this turn. What opening them took, with their first records, and then the others."""

    async def read(self, turn: int, case: StreamCase, load: Load) -> Work:
        """Open a reader on each of them, and read all records."""

    async def deliver(self, turn: int, case: StreamCase, records: int, rate: int) -> Delivery:
        """Append so many at this rate, to the streams of this turn one after the other, while each has a reader."""

    async def delete(self, turn: int, case: StreamCase) -> None: ...


OpenStreamSide = Callable[[str, StreamBench], AbstractAsyncContextManager[StreamSide]]


async def bench_stream(
    bench: StreamBench, sides: Sequence[OpenStreamSide], folder: str, on_round: Callable[[], None]
) -> tuple[list[StreamThroughputRow], list[DeliveryRow]]:
    """Measure every case on every side, in turns, with all data in `folder`. Raises what the sides raise."""
    async with AsyncExitStack() as stack:
        turns = _Turns(bench)
        opened = [await stack.enter_async_context(open_side(folder, bench)) for open_side in sides]
        throughput, delivery = [], []
        for side in opened:
            await turns.warm_up(side)
        for case in bench.cases:
            for side in opened:
                await turns.write_and_read(side, case)
            rounds: dict[str, list[StreamRound]] = {side.name: [] for side in opened}
            for _ in range(bench.rounds):
                for side in opened:
                    await _rest(opened)
                    rounds[side.name].append(await turns.measured(side, case))
                    on_round()
            throughput += stream_throughput_rows(case, rounds, rates=bench.rates)
            delivery += delivery_rows(case, rounds, rates=bench.rates)
        return throughput, delivery


class _Turns:
    """Turns, each with streams of its own."""

    def __init__(self, bench: StreamBench) -> None:
        self._bench, self._turn = bench, 0

    async def measured(self, side: StreamSide, case: StreamCase) -> StreamRound:
        opened, written, read = await self.write_and_read(side, case)
        delivered = {}
        for rate in self._bench.rates:
            records = max(1, min(self._bench.records, round(rate * _PACED_S)))
            delivered[rate] = await self._deliver(side, case, records, rate)
        return StreamRound(opened, written, read, delivered)

    async def write_and_read(self, side: StreamSide, case: StreamCase) -> tuple[Work, Work, Work]:
        turn, load = self._next(), self._bench.load_of(case)
        opened, written = await side.write(turn, case, load)
        read = await side.read(turn, case, load)
        await side.delete(turn, case)
        return opened, written, read

    async def warm_up(self, side: StreamSide) -> None:
        """The same work, unmeasured. Java compiles what it does often: so entries must be many, too, not only records.

        Paced appends make an entry of each record.
        """
        bench = self._bench
        widest = max(bench.cases, key=lambda case: (case.quorum[1], -case.streams, -case.record_bytes))
        records = widest.streams * bench.load_of(widest).records
        for _ in range(min(-(-bench.warm_up // records), _WARM_UP_TURNS_MAX)):
            await self.write_and_read(side, widest)
        entries = min(bench.warm_up // 10, bench.records, round(_WARM_UP_RATE * _PACED_S))
        if entries:
            await self._deliver(side, widest, entries, _WARM_UP_RATE)

    async def _deliver(self, side: StreamSide, case: StreamCase, records: int, rate: int) -> Delivery:
        turn = self._next()
        delivered = await side.deliver(turn, case, records, rate)
        await side.delete(turn, case)
        return delivered

    def _next(self) -> int:
        self._turn += 1
        return self._turn


async def _rest(sides: Sequence[StreamSide]) -> None:
    """Wait until no bookie has much left to do for what came before; not for ever, since some never rest."""
    deadline_s = time.monotonic() + _REST_WITHIN_S
    while time.monotonic() < deadline_s:
        before = sum(side.cpu_s() for side in sides)
        await asyncio.sleep(_REST_S)
        if sum(side.cpu_s() for side in sides) - before < _REST_CPU_S * len(sides):
            return
