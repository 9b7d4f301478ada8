"""`python -m benchmarks`: what operations cost, in CPU time, which holds on a noisy machine. Needs what tests need."""

import signal
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
import uvloop
from rich.table import Table

from benchmarks.bookie import BookieBench, bench_bookie, bench_flatness, bench_restart
from benchmarks.ledger.apache import open_apache
from benchmarks.ledger.figures import Case
from benchmarks.ledger.measure import LedgerBench, OpenSide, bench_ledger, open_quire
from benchmarks.ledger.tables import latency_table, ratio_table, throughput_table
from benchmarks.metadata import bench_metadata
from benchmarks.options import Peer, parse_quorum, parse_settings
from benchmarks.proxy.command import proxy
from benchmarks.spark.command import spark
from benchmarks.start import start
from benchmarks.stream.command import stream
from quire.cli.output import counting, out, print_json, run

app = typer.Typer(help="Measure what operations cost.", no_args_is_help=True)


@app.callback()
def end_tidily() -> None:
    """SIGTERM ends a measurement as Ctrl-C does: what it started would go on without it, and its data stay."""
    signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(on_ctrl_c):  # In the background of a shell Ctrl-C is ignored.
        raise KeyboardInterrupt
    on_ctrl_c(number, frame)


@app.command(epilog="Example:  python -m benchmarks metadata sqlite:./bench.db --count 2000")
def metadata(
    uri: Annotated[
        str, typer.Argument(metavar="URI", help="The store to measure. It gets, and loses, a node /bench-….")
    ],
    count: Annotated[int, typer.Option(min=1, help="How often each operation is done.")] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure the operations of a metadata store: one after the other, and 32 at once."""
    results = run(bench_metadata(uri, count), as_json=json)
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


@app.command(epilog="Example:  python -m benchmarks bookie --entries 200000 --ledgers 100")
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


@app.command(epilog="Example:  python -m benchmarks ledger --quorum 3/3/2 --entry-bytes 1024 --peer apache")
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
    peer_set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the peer's bookies, by its own name. Repeat."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure replicated ledgers: one client and as many bookies as needed, each a process of its own."""
    sides: list[OpenSide] = [open_quire]
    if peer is Peer.APACHE:
        sides.append(partial(open_apache, settings=parse_settings(peer_set or [])))
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


app.command(epilog="Example:  python -m benchmarks proxy --readers 500")(proxy)
app.command(epilog="Example:  python -m benchmarks spark --records 1000000,20000000")(spark)
app.command(epilog="Example:  python -m benchmarks start --rounds 10")(start)
app.command(epilog="Example:  python -m benchmarks stream --streams 1 --record-bytes 100 --peer apache")(stream)


@app.command(epilog="Example:  python -m benchmarks flatness --ledgers 10000")
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


@app.command(epilog="Example:  python -m benchmarks restart --entries 1000000")
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


if __name__ == "__main__":
    app()
