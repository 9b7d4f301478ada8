"""`python -m benchmarks ledger`: replicated entries, with the client and each bookie as a process of its own.

Every entry is on disk on its ack quorum before it counts. A turn is an append of many entries with a bounded window,
reading them back in order, and appends at a fixed rate. With a peer the two sides take turns on the same machine, and
one begins only when the processes of both have come to rest.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from benchmarks.ledger.figures import Case, LatencyRow, Round, ThroughputRow, Work, latency_rows, throughput_rows
from benchmarks.processes import BookieProcess, running_bookie
from quire.errors import QuireError
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.settings import LedgerSettings
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import init_cluster, open_store, parse_uri
from quire.rpc import ChannelSettings
from quire.runtime import real_runtime
from quire.values import dataclass

_RUN = 100  # Entries of one `enqueue`: what a busy writer gathers in a turn of its loop.
_WINDOW_BYTES_MAX = 32 << 20
_LEDGER_BYTES_MAX = 64 << 20  # Ledgers of large entries have fewer of them.
_WARM_UP_LEDGERS_MAX = 8
_PACED_S_MAX = 5.0
_ANSWER_WITHIN_S = 60.0
_REST_S, _REST_CPU_S, _REST_WITHIN_S = 0.25, 0.03, 10.0


@dataclass(frozen=True, slots=True)
class LedgerBench:
    """What to measure."""

    cases: tuple[Case, ...]
    entries: int
    window: int
    rate: int
    rounds: int
    warm_up: int

    @property
    def bookies(self) -> int:
        return max(case.quorum[0] for case in self.cases)

    def window_of(self, case: Case) -> int:
        """Entries in flight: a writer's window is bounded in bytes, too."""
        return max(1, min(self.window, _WINDOW_BYTES_MAX // max(case.entry_bytes, 1)))

    def entries_of(self, case: Case) -> int:
        return max(1, min(self.entries, _LEDGER_BYTES_MAX // max(case.entry_bytes, 1)))

    def paced_entries_of(self, case: Case) -> int:
        return max(1, min(self.entries_of(case), round(self.rate * _PACED_S_MAX)))


class Side(Protocol):
    """A client and its bookies. Whatever fails raises a `QuireError`."""

    name: str

    def cpu_s(self) -> float:
        """What its bookies have used."""

    async def append(self, case: Case, entries: int) -> tuple[int, Work]:
        """Write and seal a ledger, as fast as the window allows. Returns its id too."""

    async def read(self, ledger_id: int, case: Case) -> Work:
        """Read all of it in order."""

    async def append_paced(self, case: Case, entries: int, rate: int) -> tuple[int, list[float]]:
        """Append at this rate, and return the seconds from when each was due. Returns the ledger's id too."""

    async def delete(self, ledger_id: int) -> None: ...


OpenSide = Callable[[str, LedgerBench], AbstractAsyncContextManager[Side]]


async def bench_ledger(
    bench: LedgerBench, sides: Sequence[OpenSide], folder: str, on_round: Callable[[], None]
) -> tuple[list[ThroughputRow], list[LatencyRow]]:
    """Measure every case on every side, in turns, with all data in `folder`. Raises what the sides raise."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_side(folder, bench)) for open_side in sides]
        throughput, latency = [], []
        widest = max(bench.cases, key=lambda case: case.quorum[1])  # All bookies are to be warm.
        for side in opened:
            await _warm_up(side, widest, bench.entries_of(widest), bench.warm_up)
        for case in bench.cases:
            for side in opened:
                await _warm_up(side, case, bench.entries_of(case), 1)
            rounds: dict[str, list[Round]] = {side.name: [] for side in opened}
            for _ in range(bench.rounds):
                for side in opened:
                    await _rest(opened)
                    rounds[side.name].append(await _turn(side, bench, case))
                    on_round()
            throughput += throughput_rows(case, rounds)
            latency += latency_rows(case, rounds, rate=bench.rate)
        return throughput, latency


async def _turn(side: Side, bench: LedgerBench, case: Case) -> Round:
    appended, read = await _append_and_read(side, case, bench.entries_of(case))
    ledger_id, waits_s = await side.append_paced(case, bench.paced_entries_of(case), bench.rate)
    await side.delete(ledger_id)
    return Round(appended, read, waits_s)


async def _append_and_read(side: Side, case: Case, entries: int) -> tuple[Work, Work]:
    ledger_id, appended = await side.append(case, entries)
    read = await side.read(ledger_id, case)
    await side.delete(ledger_id)
    return appended, read


async def _warm_up(side: Side, case: Case, ledger_entries: int, entries: int) -> None:
    """The same work, unmeasured. Java compiles what it does often, and had done so after some 300,000 entries."""
    for _ in range(min(-(-entries // ledger_entries), _WARM_UP_LEDGERS_MAX)):
        await _append_and_read(side, case, ledger_entries)


async def _rest(sides: Sequence[Side]) -> None:
    """Wait until no bookie has much left to do for what came before; not for ever, since some never rest."""
    deadline_s = time.monotonic() + _REST_WITHIN_S
    while time.monotonic() < deadline_s:
        before = sum(side.cpu_s() for side in sides)
        await asyncio.sleep(_REST_S)
        if sum(side.cpu_s() for side in sides) - before < _REST_CPU_S * len(sides):
            return


# --- Our side


@asynccontextmanager
async def open_quire(folder: str, bench: LedgerBench) -> AsyncIterator[Side]:
    """Our bookies as processes, and this process as their client."""
    runtime = real_runtime()
    uri = parse_uri(f"sqlite:{folder}/metadata.db")
    settings = LedgerSettings(
        window_entries_max=bench.window,
        window_bytes_max=_WINDOW_BYTES_MAX,
        replica_bytes_max=2 * _WINDOW_BYTES_MAX,  # Nobody is to be replaced because the whole window is sent at once,
        read_timeout_s=_ANSWER_WITHIN_S,  # nor because the machine is busy.
    )
    pool_settings = PoolSettings(channel=ChannelSettings(request_timeout_s=_ANSWER_WITHIN_S))
    async with open_store(uri, runtime=runtime) as store, AsyncExitStack() as stack:
        cluster = await init_cluster(store, uri, runtime)
        bookies = [
            await stack.enter_async_context(running_bookie(runtime, cluster, folder, name=f"b{number}"))
            for number in range(bench.bookies)
        ]
        yield QuireSide(
            await stack.enter_async_context(
                open_ledgers(uri.text, runtime=runtime, settings=settings, pool_settings=pool_settings)
            ),
            bookies,
        )


class QuireSide:
    """What `open_quire` opens."""

    name = "quire"

    def __init__(self, ledgers: LedgerClient, bookies: Sequence[BookieProcess]) -> None:
        self._ledgers, self._bookies = ledgers, bookies

    def cpu_s(self) -> float:
        return sum(bookie.cpu_s() for bookie in self._bookies)

    async def append(self, case: Case, entries: int) -> tuple[int, Work]:
        payloads = [os.urandom(case.entry_bytes)] * _RUN
        async with self._create(case) as ledger:
            before = self._now()
            for sent in range(0, entries, _RUN):
                await ledger.enqueue(payloads[: entries - sent])
            await ledger.flush()
            work = self._since(before, entries)
        return ledger.id, work

    async def read(self, ledger_id: int, case: Case) -> Work:
        async with self._ledgers.open(ledger_id) as ledger:
            before, count = self._now(), 0
            async for _ in ledger.read():
                count += 1
            return self._since(before, count)

    async def append_paced(self, case: Case, entries: int, rate: int) -> tuple[int, list[float]]:
        payload = os.urandom(case.entry_bytes)
        waits_s: list[float] = []
        problems: list[QuireError] = []
        async with self._create(case) as ledger, asyncio.TaskGroup() as tasks:

            async def append(due_s: float) -> None:
                try:
                    await ledger.append(payload)
                    waits_s.append(time.perf_counter() - due_s)
                except QuireError as problem:  # Raised below: the group would wrap it.
                    problems.append(problem)

            await at_rate(entries, rate, lambda due_s: tasks.create_task(append(due_s)))
        if problems:
            raise problems[0]
        return ledger.id, waits_s

    async def delete(self, ledger_id: int) -> None:
        await self._ledgers.delete(ledger_id)

    def _create(self, case: Case) -> AbstractAsyncContextManager[LedgerWriter]:
        ensemble, write_quorum, ack_quorum = case.quorum
        return self._ledgers.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), self.cpu_s()

    def _since(self, before: tuple[float, float, float], entries: int) -> Work:
        return Work(entries, *(after - began for after, began in zip(self._now(), before, strict=True)))


async def at_rate(count: int, rate: int, act: Callable[[float], object]) -> None:
    """Call `act` in the loop at a fixed rate, with the time when it was due.

    A thread keeps the time: the loop's own timers are too coarse, and what is due while the loop is busy is late.
    """
    loop, stop = asyncio.get_running_loop(), threading.Event()

    def keep_time() -> None:
        began_s = time.perf_counter()
        for number in range(count):
            due_s = began_s + number / rate
            while (left_s := due_s - time.perf_counter()) > 0:
                if stop.wait(left_s):
                    return
            loop.call_soon_threadsafe(act, due_s)

    try:
        await asyncio.to_thread(keep_time)
    finally:
        stop.set()
