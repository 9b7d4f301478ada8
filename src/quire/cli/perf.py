"""`quire perf`: how fast a log is from here: writing, reading, and the delay from an append to a reader at the tail.

It works through the client alone, on a stream of its own, so it measures any log in the same way.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.table import Table

from quire.cli.default_uri import stream_uri
from quire.cli.output import Counter, checked, counting, out, print_json
from quire.cli.stream_options import Json, Timeout, on_streams
from quire.client import Client
from quire.stream.client_api import StreamWriter
from quire.values import dataclass

app = typer.Typer()

_CALL_RECORDS: Final = 500
_CALLS_AT_ONCE: Final = 40


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of so many records, one after the other as fast as they go."""

    operation: str
    records: int
    seconds: float
    record_bytes: int

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def mb_per_s(self) -> float:
        return self.records_per_s * self.record_bytes / 1e6


@dataclass(frozen=True, slots=True)
class Delays:
    """From the moment at which an append was due, in milliseconds."""

    until: str
    records_per_s: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@app.command(epilog="Examples:  quire perf  ·  quire perf quire://127.0.0.1:7400/default --record-bytes 1024")
def perf(
    uri: Annotated[
        str | None,
        typer.Argument(
            metavar="[URI]", envvar="QUIRE_URI", help="The log. Default: that of this folder.", show_default=False
        ),
    ] = None,
    records: Annotated[int, typer.Option(min=1, metavar="N", help="How many are written, and read back.")] = 200_000,
    record_bytes: Annotated[int, typer.Option(min=0, metavar="BYTES", help="Payload of a record.")] = 100,
    rate: Annotated[int, typer.Option(min=1, metavar="N", help="Records a second where delays are measured.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long delays are measured.")] = 5.0,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Measure how fast a log is: write, read, delay.

    It creates a stream of its own, and deletes it at the end. Delays are from when an append was due to its
    acknowledgement, and to a reader at the tail.
    """
    where = checked(lambda: stream_uri(uri, creating=True), as_json=json)
    with counting("records", quiet=json) as counter:

        async def work(client: Client) -> tuple[list[Throughput], list[Delays]]:
            async with _stream(client) as name:
                throughput = [await _write(client, name, records, record_bytes, counter)]
                throughput.append(await _read(client, name, records, record_bytes, counter))
                return throughput, await _tail(client, name, rate, seconds, record_bytes, counter)

        throughput, delays = on_streams(where, work, creating=True, json=json, timeout_s=timeout)
    if json:
        rows = [asdict(row) | {"records_per_s": row.records_per_s, "mb_per_s": row.mb_per_s} for row in throughput]
        print_json({"uri": where, "throughput": rows, "delays": [asdict(row) for row in delays]})
        return
    fast = _table(f"{records:,} records of {record_bytes} bytes", "records/s", "MB/s")
    for row in throughput:
        fast.add_row(row.operation, f"{row.records_per_s:,.0f}", f"{row.mb_per_s:,.1f}")
    slow = _table(f"{rate:,} records a second, until", "p50 ms", "p99 ms", "max ms")
    for each in delays:
        slow.add_row(each.until, *(f"{delay:.2f}" for delay in (each.p50_ms, each.p99_ms, each.max_ms)))
    out().print(fast, "", slow)


@asynccontextmanager
async def _stream(client: Client) -> AsyncIterator[str]:
    """A new stream, which is deleted when the block ends."""
    name = f"perf-{uuid.uuid4().hex}"
    await client.create_stream(name)
    try:
        yield name
    finally:
        await client.delete_stream(name)


async def _write(client: Client, name: str, records: int, record_bytes: int, counter: Counter) -> Throughput:
    async with client.open_writer(name) as writer:
        await writer.append(b"")  # The first one also makes the segment.
        payload, left, began_s = bytes(record_bytes), iter(range(0, records, _CALL_RECORDS)), time.perf_counter()

        async def calls() -> None:
            for first in left:
                payloads = [payload] * min(_CALL_RECORDS, records - first)
                await writer.append_many(payloads)
                counter.step(len(payloads))

        async with asyncio.TaskGroup() as group:
            for _ in range(_CALLS_AT_ONCE):
                group.create_task(calls())
        return Throughput("write", records, time.perf_counter() - began_s, record_bytes)


async def _read(client: Client, name: str, records: int, record_bytes: int, counter: Counter) -> Throughput:
    async with client.open_reader(name) as reader:
        await anext(reader)
        began_s = time.perf_counter()
        for number in range(1, records + 1):
            await anext(reader)
            if number % _CALL_RECORDS == 0:
                counter.step(_CALL_RECORDS)
        return Throughput("read", records, time.perf_counter() - began_s, record_bytes)


async def _tail(
    client: Client, name: str, rate: int, seconds: float, record_bytes: int, counter: Counter
) -> list[Delays]:
    """Records at a fixed rate, each timed from when it was due, to its acknowledgement and to a reader."""
    count = max(1, round(rate * seconds))
    acked_s, read_s = list[float](), list[float]()
    async with client.open_writer(name) as writer:
        last = await writer.append(b"")
        async with client.open_reader(name, start=last) as reader:
            await anext(reader)
            began_s = time.perf_counter()

            async def follow() -> None:
                for number in range(count):
                    await anext(reader)
                    read_s.append(time.perf_counter() - began_s - number / rate)

            async with asyncio.TaskGroup() as group:
                group.create_task(follow())
                for number in range(count):
                    due_s = began_s + number / rate
                    await asyncio.sleep(due_s - time.perf_counter())
                    group.create_task(_append(writer, bytes(record_bytes), due_s, acked_s))
                    counter.step(1)
    return [_delays("acknowledged", rate, acked_s), _delays("read at the tail", rate, read_s)]


async def _append(writer: StreamWriter, payload: bytes, due_s: float, acked_s: list[float]) -> None:
    await writer.append(payload)
    acked_s.append(time.perf_counter() - due_s)


def _delays(until: str, rate: int, delays_s: list[float]) -> Delays:
    ordered = sorted(1000 * each for each in delays_s)
    return Delays(until, rate, ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])


def _table(title: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(title, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
