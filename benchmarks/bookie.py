"""`python -m benchmarks bookie`: what one entry costs a bookie, as CPU time of its process.

A bookie runs as a process of its own on a folder of its own, and this one plays the client, on one connection with a
bounded window. Times of the wall are shown for orientation; on a shared machine only the CPU time says something.
"""

import asyncio
import os
import signal
import tempfile
import time
from dataclasses import replace

from benchmarks.processes import BookieProcess, running_bookie
from quire.codec.digest import Crc32cDigest, master_key
from quire.codec.entry import EntryCodec
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.errors import BookieFailed, QuireError
from quire.metadata import init_cluster, open_store, parse_uri
from quire.rpc import AddAnswers
from quire.runtime import real_runtime
from quire.types import EntryId, LedgerId
from quire.values import dataclass

_KEY = master_key(b"")
_READS_AT_ONCE = 200
_COLD_ENTRIES_MIN = 500  # Of one ledger.


@dataclass(frozen=True, slots=True)
class BookieFigure:
    """One way of using a bookie, and what an entry cost it."""

    operation: str
    entries: int
    bookie_cpu_us: float
    client_cpu_us: float
    entries_per_s: float


@dataclass(frozen=True, slots=True)
class BookieBench:
    """What to measure."""

    entries: int
    entry_bytes: int
    window: int
    ledgers: int


async def bench_bookie(bench: BookieBench) -> list[BookieFigure]:
    """Adds in version 2 and 3, then reads of what has to come from the entry logs, if ledgers are long enough for that.

    Raises `BookieFailed`.
    """
    runtime = real_runtime()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        uri = parse_uri(f"sqlite:{folder}/metadata.db")
        async with open_store(uri, runtime=runtime) as store:
            cluster = await init_cluster(store, uri, runtime)
            figures = []
            async with running_bookie(runtime, cluster, folder) as process:
                first_entry = 0
                if bench.ledgers > 1:  # Opening a ledger is not what is measured.
                    first_entry = 1
                    opening = replace(bench, entries=bench.ledgers)
                    await _adds(process, opening, version=2, first_ledger=1)
                    await _adds(process, opening, version=3, first_ledger=1 + bench.ledgers)
                for version, first_ledger in ((2, 1), (3, 1 + bench.ledgers)):
                    figures.append(
                        await _adds(process, bench, version=version, first_ledger=first_ledger, first_entry=first_entry)
                    )
            if bench.entries < _COLD_ENTRIES_MIN * bench.ledgers:
                return figures  # Too short to be read in order: that would measure something else.
            async with running_bookie(runtime, cluster, folder) as process:  # A new one has nothing in memory.
                figures.append(await _reads(process, bench, version=2, first_ledger=1))
                figures.append(await _reads(process, bench, version=3, first_ledger=1 + bench.ledgers))
                figures.append(await _batch_reads(process, bench, first_ledger=1))
            return figures


async def bench_flatness(bench: BookieBench, rounds: int) -> list[tuple[BookieFigure, BookieFigure]]:
    """The same adds to one ledger and spread over many that are open, in turns, so that both meet the same machine."""
    runtime = real_runtime()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        uri = parse_uri(f"sqlite:{folder}/metadata.db")
        async with open_store(uri, runtime=runtime) as store:
            cluster = await init_cluster(store, uri, runtime)
            async with running_bookie(runtime, cluster, folder) as process:
                first, entries_a_round = 10 + rounds, -(-bench.entries // bench.ledgers)
                await _adds(process, replace(bench, entries=bench.ledgers), version=2, first_ledger=first)
                return [
                    (
                        await _adds(process, replace(bench, ledgers=1), version=2, first_ledger=1 + number),
                        await _adds(
                            process, bench, version=2, first_ledger=first, first_entry=1 + number * entries_a_round
                        ),
                    )
                    for number in range(rounds)
                ]


@dataclass(frozen=True, slots=True)
class RestartFigure:
    """How long a bookie with this much data took to answer again."""

    data_bytes: int
    entries: int
    after: str
    ready_s: float


async def bench_restart(bench: BookieBench) -> list[RestartFigure]:
    """Fill a bookie, then start it anew: after an orderly end, and after its process was killed."""
    runtime = real_runtime()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        uri = parse_uri(f"sqlite:{folder}/metadata.db")
        async with open_store(uri, runtime=runtime) as store:
            cluster = await init_cluster(store, uri, runtime)
            figures = []
            async with running_bookie(runtime, cluster, folder) as process:
                await _adds(process, bench, version=2, first_ledger=1)
            port = 0
            for after in ("an orderly end", "kill -9"):
                began = time.perf_counter()
                async with running_bookie(runtime, cluster, folder, old_port=port) as process:
                    channel, port = await process.connect(), process.port
                    await channel.read(LedgerId(1), EntryId(0))
                    ready_s = time.perf_counter() - began
                    figures.append(RestartFigure(bench.entries * bench.entry_bytes, bench.entries, after, ready_s))
                    await channel.aclose()
                    if after == "an orderly end":  # Give the next start something to replay.
                        await _adds(process, replace(bench, entries=5_000), version=2, first_ledger=10**6)
                        os.kill(process.pid, signal.SIGKILL)
            return figures


# --- The client


class _Window:
    """Counts what is on its way, and wakes the sender when there is room. An `AddSink`."""

    def __init__(self, size: int) -> None:
        self.free = size
        self.left = 0
        self.changed = asyncio.Event()
        self.problem: str | None = None

    def on_add_answers(self, answers: AddAnswers) -> None:
        for status, entry_ids in answers:
            if status is not Status.EOK:
                self.problem = f"an add was answered with {status.name}"
            self._done(len(entry_ids))

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        self.problem = str(error)
        self._done(len(entry_ids))

    def _done(self, count: int) -> None:
        self.free += count
        self.left -= count
        self.changed.set()

    async def wait(self) -> None:
        self.changed.clear()
        await self.changed.wait()
        if self.problem is not None:
            raise BookieFailed(self.problem)


async def _adds(
    process: BookieProcess, bench: BookieBench, *, version: int, first_ledger: int, first_entry: int = 0
) -> BookieFigure:
    """Ledgers that are there already go on at `first_entry`: entries that are added again take another way."""
    channel, window = await process.connect(), _Window(bench.window)
    codecs = [EntryCodec(LedgerId(first_ledger + number), Crc32cDigest()) for number in range(bench.ledgers)]
    payload = os.urandom(bench.entry_bytes)
    window.left = bench.entries
    meter = _Meter(process)
    sent = 0
    while sent < bench.entries:
        while window.free == 0:
            await window.wait()
        count = min(window.free, bench.entries - sent)
        window.free -= count
        for number in range(sent, sent + count):
            codec, entry_id = codecs[number % bench.ledgers], EntryId(first_entry + number // bench.ledgers)
            prefix = codec.prefix(entry_id, payload, lac=EntryId(entry_id - 1), length=0)
            if version == 2:
                head = v2.add_request_prefix(_KEY, entry_bytes=len(prefix) + len(payload))
                channel.send_adds(codec.ledger_id, (head, prefix, payload), (entry_id,), window)
            else:
                channel.send_add_v3(codec.ledger_id, entry_id, _KEY, (prefix, payload), window)
        sent += count
    while window.left:
        await window.wait()
    figure = meter.figure(f"add, version {version}", bench.entries)
    await channel.aclose()
    return figure


async def _reads(process: BookieProcess, bench: BookieBench, *, version: int, first_ledger: int) -> BookieFigure:
    channel, meter = await process.connect(), _Meter(process)
    for number in range(bench.ledgers):
        entries = range(len(range(number, bench.entries, bench.ledgers)))
        for start in range(0, len(entries), _READS_AT_ONCE):
            await asyncio.gather(
                *(
                    channel.read(LedgerId(first_ledger + number), EntryId(entry_id), version=3 if version == 3 else 2)
                    for entry_id in entries[start : start + _READS_AT_ONCE]
                )
            )
    figure = meter.figure(f"cold read, version {version}", bench.entries)
    await channel.aclose()
    return figure


async def _batch_reads(process: BookieProcess, bench: BookieBench, *, first_ledger: int) -> BookieFigure:
    channel, meter = await process.connect(), _Meter(process)
    for number in range(bench.ledgers):
        count = len(range(number, bench.entries, bench.ledgers))
        start = 0
        while start < count:
            got = await channel.read_batch(
                LedgerId(first_ledger + number), EntryId(start), entries_max=0, bytes_max=1 << 20
            )
            start += len(got)
    figure = meter.figure("cold batch read, version 2", bench.entries)
    await channel.aclose()
    return figure


class _Meter:
    def __init__(self, process: BookieProcess) -> None:
        self._process = process
        self._began = (process.cpu_s(), time.process_time(), time.perf_counter())

    def figure(self, operation: str, entries: int) -> BookieFigure:
        ended = (self._process.cpu_s(), time.process_time(), time.perf_counter())
        bookie, client, wall = (after - before for after, before in zip(ended, self._began, strict=True))
        return BookieFigure(operation, entries, bookie / entries * 1e6, client / entries * 1e6, entries / wall)
