"""`python -m benchmarks spark`: the command. What it measures is in `benchmarks.spark.measures`."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.proxy.cluster import running_cluster
from benchmarks.spark.measures import Case, Latency, Rate, SparkBench, parent_of
from quire.cli.output import checked, counting, out, print_json
from quire.cli.spark_options import Conf, Master, spark_session
from quire.errors import InvalidArgument
from quire.spark.failures import spark_errors, told_by


def spark(
    records: Annotated[str, typer.Option(metavar="N,…", help="How many records; several to see how cost grows.")] = (
        "100000"
    ),
    record_bytes: Annotated[str, typer.Option(metavar="N,…", help="How large they are.")] = "100,1024",
    segments: Annotated[str, typer.Option(metavar="N,…", help="In how many segments they are.")] = "4",
    rounds: Annotated[int, typer.Option(min=1, help="How often each way of reading has its turn.")] = 3,
    rate: Annotated[int, typer.Option(min=0, help="Records a second for micro-batches; 0 leaves them out.")] = 1000,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long micro-batches are measured.")] = 10.0,
    folder: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where data is kept. Default: the system's for /tmp.")
    ] = None,
    master: Master = "local[2]",
    conf: Conf = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure Spark on a log of three bookies: source beside Parquet, sink, archiving, and micro-batches.

    Bookies run as processes of their own, on the machine of the driver.
    """

    def work() -> tuple[list[Rate], Latency | None]:
        cases = [
            Case(count, size, parts)
            for count in numbers(records)
            for size in numbers(record_bytes)
            for parts in numbers(segments)
        ]
        # Spark knows its session in this thread only, so the cluster's loop runs before and after.
        with tempfile.TemporaryDirectory(dir=folder, prefix="quire-bench-") as place, asyncio.Runner() as runner:
            stack = AsyncExitStack()
            cluster = runner.run(stack.enter_async_context(running_cluster(place)))
            try:
                return measure(cluster.direct_uri, Path(place), parent_of(cluster.services[0].pid), cases)
            finally:
                runner.run(stack.aclose())

    def measure(uri: str, place: Path, pid: int, cases: Sequence[Case]) -> tuple[list[Rate], Latency | None]:
        found: list[Rate] = []
        with (
            spark_session(master, conf, name="bench", quick=False) as session,
            counting("sizes", quiet=json) as counter,
        ):
            bench = SparkBench(session, uri, place, rounds=rounds, excluded_pid=pid)
            try:
                bench.warm_up(cases[0])
                for case in cases:
                    found += bench.sizes(case)
                    counter.step()
                return found, bench.latency(rate, seconds) if rate else None
            except spark_errors() as error:
                raise told_by(error) from error

    rates, latency = checked(work, as_json=json)
    if json:
        print_json({"rates": [asdict(each) for each in rates], "latency": asdict(latency) if latency else None})
        return
    out().print(_rates_table(rates))
    if latency is not None:
        out().print(
            f"Micro-batches at {latency.rate} records/s: {latency.trigger_ms_p50:.0f} ms (median), "
            f"{latency.trigger_ms_p99:.0f} ms (99 %); records are {latency.age_ms_p50:.0f} ms old when they are read."
        )


def numbers(text: str) -> list[int]:
    """Raises `InvalidArgument`."""
    try:
        found = [int(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InvalidArgument(f"{text!r} are no numbers above 0", hint="Write 100000, or 1000000,20000000.")
    return found


def _rates_table(rates: Sequence[Rate]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("what")
    for column in ("records", "bytes", "segments", "records/s", "MB/s", "CPU µs each"):
        table.add_column(column, justify="right")
    for each in rates:
        sizes = (f"{each.records:,}", str(each.record_bytes), str(each.segments))
        table.add_row(
            each.what, *sizes, f"{each.records_per_s:,.0f}", f"{each.mb_per_s:.1f}", f"{each.cpu_us_per_record:.1f}"
        )
    return table
