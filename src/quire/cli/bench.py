"""`quire bench`: what an operation costs, in CPU time of this process, which holds on a noisy machine."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.table import Table

from quire.cli.bench_bookie import BookieBench, bench_bookie, bench_flatness, bench_restart
from quire.cli.bench_figures import Case
from quire.cli.bench_ledger import LedgerBench, OpenSide, bench_ledger, open_quire
from quire.cli.bench_options import Peer, parse_quorum, parse_settings
from quire.cli.bench_proxy import proxy
from quire.cli.bench_spark import spark
from quire.cli.bench_start import start
from quire.cli.bench_stream import stream
from quire.cli.bench_tables import latency_table, ratio_table, throughput_table
from quire.cli.output import counting, out, print_json, run
from quire.metadata import ANY_VERSION, MetadataStore, open_store
from quire.runtime import real_runtime
from quire.values import dataclass

app = typer.Typer(help="Measure what operations cost.", no_args_is_help=True)

_TASKS = 32  # Calls under way at once in the concurrent measurements.


@app.callback()
def end_tidily() -> None:
    """SIGTERM ends a measurement as Ctrl-C does: what it started would go on without it, and its data stay."""
    signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(on_ctrl_c):  # In the background of a shell Ctrl-C is ignored.
        raise KeyboardInterrupt
    on_ctrl_c(number, frame)


@dataclass(frozen=True, slots=True)
class Measured:
    operation: str
    count: int
    cpu_us_each: float
    wall_us_each: float


@app.command(epilog="Example:  quire bench metadata sqlite:./bench.db --count 2000")
def metadata(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="The store to measure. It gets, and loses, a node /bench-….")
    ],
    count: Annotated[int, typer.Option(min=1, help="How often each operation is done.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure the operations of a metadata store: one after the other, and 32 at once."""
    results = run(_measure(uri, count), as_json=json)
    if json:
        print_json({"uri": uri, "results": [asdict(result) for result in results]})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", title=uri, title_justify="left")
    table.add_column("operation")
    for column in ("count", "CPU µs each", "wall µs each"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(result.operation, str(result.count), f"{result.cpu_us_each:.0f}", f"{result.wall_us_each:.0f}")
    out().print(table)


@app.command(epilog="Example:  quire bench bookie --entries 200000 --ledgers 100")
def bookie(
    entries: Annotated[int, typer.Option(min=1, help="How many entries are written, and read back.")] = 100_000,
    entry_bytes: Annotated[int, typer.Option(min=0, metavar="BYTES", help="Payload of an entry.")] = 1024,
    window: Annotated[int, typer.Option(min=1, help="How many adds may wait for their answer.")] = 1000,
    ledgers: Annotated[int, typer.Option(min=1, help="How many ledgers the entries are spread over.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure what an entry costs a bookie: adds with fsync before the answer, and reads that are not in memory."""
    figures = run(bench_bookie(BookieBench(entries, entry_bytes, window, ledgers)), as_json=json)
    if json:
        print_json({"results": [asdict(figure) for figure in figures]})
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("operation")
    for column in ("entries", "bookie CPU µs", "client CPU µs", "entries/s"):
        table.add_column(column, justify="right")
    for figure in figures:
        table.add_row(
            figure.operation,
            f"{figure.entries:,}",
            f"{figure.bookie_cpu_us:.1f}",
            f"{figure.client_cpu_us:.1f}",
            f"{figure.entries_per_s:,.0f}",
        )
    out().print(table)


@app.command(epilog="Example:  quire bench ledger --quorum 3/3/2 --entry-bytes 1024 --peer apache")
def ledger(
    entries: Annotated[
        int, typer.Option(min=1, help="How many entries each ledger gets; fewer where that would be over 64 MiB.")
    ] = 50_000,
    entry_bytes: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="BYTES", help="Payload of an entry. Repeat. Default: 100, 1024, 32768."),
    ] = None,
    quorum: Annotated[
        list[str] | None,
        typer.Option(metavar="E/QW/QA", help="Quorums. Repeat. Default: 1/1/1, 3/3/2, 3/2/2."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, help="How many entries may wait for their quorum; fewer where that is over 32 MiB.")
    ] = 10_000,
    rate: Annotated[int, typer.Option(min=1, help="Entries a second where waits are measured, for up to 5 s.")] = 1000,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often each side has its turn. Default: 1, or 5 with a peer.")
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="ENTRIES",
            help="Written and read before all turns, in up to 8 ledgers. Default: 10000, 300000 with a peer.",
        ),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where bookies keep their data. Default: the system's for /tmp."),
    ] = None,
    peer: Annotated[
        Peer | None, typer.Option(help="Measure this one too, in turns: Apache's Java client on Apache's Java bookies.")
    ] = None,
    peer_classpath: Annotated[
        str,
        typer.Option(
            envvar="QUIRE_PEER_CLASSPATH",
            metavar="JARS",
            help="The peer's jars, as for java -cp, such as 'bookkeeper-server-4.18.0/lib/*'.",
        ),
    ] = "",
    peer_set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the peer's bookies, by its own name. Repeat."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure replicated ledgers: one client and as many bookies as needed, each a process of its own."""
    import uvloop  # As a program that cares for speed would use; the other commands should not wait for it.

    sides: list[OpenSide] = [open_quire]
    if peer is Peer.APACHE:
        if not peer_classpath:
            raise typer.BadParameter("name the jars of Apache BookKeeper's server with --peer-classpath")
        sides.append(_apache(peer_classpath, peer_set or []))
    quorums = [parse_quorum(text) for text in quorum or ("1/1/1", "3/3/2", "3/2/2")]
    bench = LedgerBench(
        cases=tuple(Case(each, size) for size in entry_bytes or (100, 1024, 32_768) for each in quorums),
        entries=entries,
        window=window,
        rate=rate,
        rounds=rounds or (1 if peer is None else 5),
        warm_up=warm_up if warm_up is not None else (10_000 if peer is None else 300_000),
    )
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-", dir=folder) as place,
        counting("turns", quiet=json) as turns,
    ):
        throughput, latency = run(
            bench_ledger(bench, sides, place, turns.step), as_json=json, loop_factory=uvloop.new_event_loop
        )
    if json:
        figures = {"throughput": [asdict(row) for row in throughput], "latency": [asdict(row) for row in latency]}
        print_json({"rounds": bench.rounds, "window": window, **figures})
        return
    tables = throughput_table(throughput), latency_table(latency), ratio_table(throughput, latency)
    for table in tables:
        if table is not None:
            out().print(table, "")


def _apache(class_path: str, settings: list[str]) -> OpenSide:
    from quire.cli.bench_apache import open_apache  # Nobody else needs it.

    return partial(open_apache, class_path=class_path, settings=parse_settings(settings))


app.command(epilog="Example:  quire bench proxy --readers 500")(proxy)
app.command(epilog="Example:  quire bench spark --records 1000000,20000000")(spark)
app.command(epilog="Example:  quire bench start --rounds 10")(start)
app.command(epilog="Example:  quire bench stream --streams 1 --record-bytes 100 --peer apache")(stream)


@app.command(epilog="Example:  quire bench flatness --ledgers 10000")
def flatness(
    ledgers: Annotated[int, typer.Option(min=2, help="How many ledgers are open.")] = 10_000,
    entries: Annotated[int, typer.Option(min=1, help="How many entries each turn adds.")] = 50_000,
    rounds: Annotated[int, typer.Option(min=1, help="How many turns.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure whether adds cost a bookie more when many ledgers are open than when one is, in turns."""
    pairs = run(bench_flatness(BookieBench(entries, 1024, 1000, ledgers), rounds), as_json=json)
    if json:
        print_json({"rounds": [[asdict(one), asdict(many)] for one, many in pairs]})
        return
    for one, many in pairs:
        ratio = many.bookie_cpu_us / one.bookie_cpu_us
        out().print(
            f"1 ledger {one.bookie_cpu_us:5.1f} µs   {ledgers} ledgers {many.bookie_cpu_us:5.1f} µs   × {ratio:.2f}"
        )


@app.command(epilog="Example:  quire bench restart --entries 1000000")
def restart(
    entries: Annotated[int, typer.Option(min=1, help="How many entries the bookie has.")] = 262_144,
    entry_bytes: Annotated[int, typer.Option(min=0, metavar="BYTES", help="Payload of an entry.")] = 4096,
    ledgers: Annotated[int, typer.Option(min=1, help="How many ledgers they are spread over.")] = 100,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure how long a bookie with data, 1 GiB by default, takes from its start to its first answer."""
    figures = run(bench_restart(BookieBench(entries, entry_bytes, 1000, ledgers)), as_json=json)
    if json:
        print_json({"results": [asdict(figure) for figure in figures]})
        return
    for figure in figures:
        what = f"{figure.entries:,} entries, {figure.data_bytes / 2**30:.2f} GiB"
        out().print(f"{what}, after {figure.after}: answers after {figure.ready_s:.2f} s")


async def _measure(uri: str, count: int) -> list[Measured]:
    async with open_store(uri) as store:
        root = f"/bench-{real_runtime().rng.uuid().hex}"
        await store.create(root)
        try:
            return [
                await _watch_delay(uri, store, f"{root}/watched", min(count, 50)),
                await _timed("create", count, 1, _creates(store, f"{root}/one-")),
                await _timed("get", count, 1, _gets(store, f"{root}/one-")),
                await _timed("compare-and-swap", count, 1, _swaps(store, f"{root}/one-")),
                await _timed(f"create, {_TASKS} at once", count, _TASKS, _creates(store, f"{root}/many-")),
                await _timed(f"get, {_TASKS} at once", count, _TASKS, _gets(store, f"{root}/many-")),
                await _timed(f"compare-and-swap, {_TASKS} at once", count, _TASKS, _swaps(store, f"{root}/many-")),
            ]
        finally:
            await store.delete_tree(root)


Operation = Callable[[int], Awaitable[object]]


def _creates(store: MetadataStore, prefix: str) -> Operation:
    return lambda number: store.create(f"{prefix}{number}", b"x" * 100)


def _gets(store: MetadataStore, prefix: str) -> Operation:
    return lambda number: store.get(f"{prefix}{number}")


def _swaps(store: MetadataStore, prefix: str) -> Operation:
    async def swap(number: int) -> None:
        node = await store.get(f"{prefix}{number}")
        await store.set(f"{prefix}{number}", b"y" * 100, expected=node.stat.version)

    return swap


async def _watch_delay(uri: str, store: MetadataStore, path: str, count: int) -> Measured:
    """From a write's return to the waking of a watch, on another handle where the store can be opened twice."""
    await store.create(path)
    async with open_store(uri) as second:
        watcher = second if await second.exists(path) else store
        cpu, waited = time.process_time(), 0.0
        async with watcher.watch(path) as watch:
            for number in range(count):
                await store.set(path, b"%d" % number, expected=ANY_VERSION)
                written = time.perf_counter()
                await watch.wait_changed()
                while (await watcher.get(path)).data != b"%d" % number:  # Woken for an earlier write.
                    await watch.wait_changed()
                waited += time.perf_counter() - written
        return Measured("watch wakes", count, (time.process_time() - cpu) / count * 1e6, waited / count * 1e6)


async def _timed(name: str, count: int, tasks: int, operation: Operation) -> Measured:
    async def share(first: int) -> None:
        for number in range(first, count, tasks):
            await operation(number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(share(first) for first in range(tasks)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Measured(name, count, cpu / count * 1e6, wall / count * 1e6)
