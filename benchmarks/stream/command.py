"""`python -m benchmarks stream`: the command. What it measures is in `benchmarks.stream.turns`."""

import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from benchmarks.options import Peer, parse_quorum, parse_settings
from benchmarks.stream.apache import open_apache_streams
from benchmarks.stream.figures import StreamCase
from benchmarks.stream.own import open_quire_streams
from benchmarks.stream.segments import OPEN_S_MAX, bench_segments
from benchmarks.stream.tables import delivery_table, segments_table, stream_ratio_table, stream_throughput_table
from benchmarks.stream.turns import OpenStreamSide, StreamBench, bench_stream
from quire.app.pauses import set_startup_aside
from quire.cli.output import counting, out, print_json, run


def stream(
    records: Annotated[
        int,
        typer.Option(min=1, help="How many records a turn writes to its streams; fewer where that is over 64 MiB."),
    ] = 500_000,
    record_bytes: Annotated[
        list[int] | None, typer.Option(min=0, metavar="BYTES", help="Payload of a record. Repeat. Default: 100, 1024.")
    ] = None,
    streams: Annotated[
        list[int] | None,
        typer.Option(min=1, help="How many streams are written and read at once. Repeat. Default: 1, 100, 1000."),
    ] = None,
    quorum: Annotated[
        list[str] | None, typer.Option(metavar="E/QW/QA", help="Quorums. Repeat. Default: 3/3/2.")
    ] = None,
    call_records: Annotated[
        int, typer.Option(min=1, help="How many records are appended with one call; fewer where that is over 64 KiB.")
    ] = 500,
    window: Annotated[
        int, typer.Option(min=1, help="How many records may wait for their quorum, of all streams together.")
    ] = 20_000,
    rate: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Records a second where delivery is measured, for 5 s. Repeat. Default: 100, 1000."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often each side has its turn. Default: 1, or 5 with a peer.")
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="RECORDS",
            help="Written and read before all turns, in up to 12 of them. Default: 100000, 3000000 with a peer.",
        ),
    ] = None,
    segments: Annotated[
        int | None,
        typer.Option(min=2, help="Instead of all that: open readers on a stream with so many segments, such as 10000."),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where bookies keep their data. Default: the system's for /tmp."),
    ] = None,
    peer: Annotated[
        Peer | None,
        typer.Option(help="Measure this one too, in turns: Apache's DistributedLog on Apache's Java bookies."),
    ] = None,
    peer_set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the peer's bookies, by its own name. Repeat."),
    ] = None,
    peer_stream_set: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the peer's streams, by its own name. Repeat."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure streams: writing, reading, and how long a record takes from its writer to a reader at the tail."""
    if segments is not None and peer is not None:
        raise typer.BadParameter("with --segments there is no --peer")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quire-bench-", dir=folder) as place:
        if segments is not None:
            _measure_segments(segments, place, json=json)
            return
        sides: list[OpenStreamSide] = [open_quire_streams]
        if peer is Peer.APACHE:
            sides.append(_apache(peer_set or [], peer_stream_set or []))
        bench = StreamBench(
            cases=tuple(
                StreamCase(parse_quorum(each), size, count)
                for each in quorum or ("3/3/2",)
                for size in record_bytes or (100, 1024)
                for count in streams or (1, 100, 1000)
            ),
            records=records,
            call_records=call_records,
            window=window,
            rates=tuple(rate or (100, 1000)),
            rounds=rounds or (1 if peer is None else 5),
            warm_up=warm_up if warm_up is not None else (100_000 if peer is None else 3_000_000),
        )
        _measure_turns(bench, sides, place, json=json)


def _measure_turns(bench: StreamBench, sides: list[OpenStreamSide], place: str, *, json: bool) -> None:
    set_startup_aside()  # As such a program would do, too.
    with counting("turns", quiet=json) as turns:
        throughput, delivery = run(
            bench_stream(bench, sides, place, turns.step), as_json=json, loop_factory=uvloop.new_event_loop
        )
    if json:
        figures = {"throughput": [asdict(row) for row in throughput], "delivery": [asdict(row) for row in delivery]}
        print_json({"rounds": bench.rounds, "window": bench.window, "call_records": bench.call_records, **figures})
        return
    tables = stream_throughput_table(throughput), delivery_table(delivery), stream_ratio_table(throughput, delivery)
    for table in tables:
        if table is not None:
            out().print(table, "")


def _measure_segments(segments: int, place: str, *, json: bool) -> None:
    with counting("steps", quiet=json) as steps:
        found = run(bench_segments(segments, place, steps.step), as_json=json, loop_factory=uvloop.new_event_loop)
    in_time = all(row.is_in_time for row in found)
    if json:
        print_json({"open_s_max": OPEN_S_MAX, "in_time": in_time, "readers": [asdict(row) for row in found]})
        return
    out().print(segments_table(found), "")
    out().print(f"Each took {'less' if in_time else 'NOT less'} than {OPEN_S_MAX:g} s.")


def _apache(settings: list[str], stream_settings: list[str]) -> OpenStreamSide:
    return partial(
        open_apache_streams,
        settings=parse_settings(settings),
        stream_settings=parse_settings(stream_settings),
    )
