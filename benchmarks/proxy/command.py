"""`python -m benchmarks proxy`: the command. What it measures is in `writes.py` and `fan_out.py`."""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.proxy.cluster import running_cluster
from benchmarks.proxy.fan_out import FanOut, FanOutPlan, bench_fan_out
from benchmarks.proxy.tables import added_table, fan_out_cpu_table, fan_out_table, throughput_table, waits_table
from benchmarks.proxy.writes import AddedWait, AppendWaits, WriteThroughput, bench_throughput, bench_waits
from quire.cli.output import counting, out, print_json, run
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class _Bench:
    """What to measure."""

    rate: int
    seconds: float
    rounds: int
    fan_out: FanOutPlan


@dataclass(frozen=True, slots=True)
class _Found:
    waits: list[AppendWaits]
    added: list[AddedWait]
    throughput: list[WriteThroughput]
    fan_out: list[FanOut]


def proxy(
    rate: Annotated[int, typer.Option(min=1, help="Appends a second where waits are measured.")] = 100,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each turn takes.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way of appending has its turn.")] = 3,
    readers: Annotated[
        int, typer.Option(min=0, help="How many follow one stream through the read proxy; with 0 that is left out.")
    ] = 500,
    whole_readers: Annotated[
        int, typer.Option(min=0, help="So many of them decode every record on their own, as programs do.")
    ] = 5,
    readers_per_connection: Annotated[int, typer.Option(min=1, help="How many of the others share one.")] = 50,
    fan_out_rate: Annotated[int, typer.Option(min=1, help="Records a second that they get.")] = 500,
    writing: Annotated[bool, typer.Option(help="Measure appends, too.")] = True,
    folder: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where bookies keep their data. Default: the system's for /tmp."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Measure proxies: what they add to an append, how much goes through one, and many readers of one stream.

    Three bookies, a write proxy and a read proxy run as processes of their own, and so do the many readers.
    """
    import uvloop  # As a program that cares for speed would use; the other commands should not wait for it.

    fan_out = FanOutPlan(readers, whole_readers, readers_per_connection, fan_out_rate, seconds)
    bench = _Bench(rate, seconds, rounds if writing else 0, fan_out)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="quire-bench-", dir=folder) as place,
        counting("steps", quiet=json) as steps,
    ):
        found = run(_measure(bench, place, steps.step), as_json=json, loop_factory=uvloop.new_event_loop)
    if json:
        print_json({"rounds": rounds, "seconds": seconds, **asdict(found)})
        return
    if found.waits:
        for table in (waits_table(found.waits), added_table(found.added), throughput_table(found.throughput)):
            out().print(table, "")
    if found.fan_out:
        out().print(fan_out_table(found.fan_out), "")
        out().print(fan_out_cpu_table(found.fan_out))


async def _measure(bench: _Bench, place: str, on_step: Callable[[], None]) -> _Found:
    found = _Found([], [], [], [])
    async with running_cluster(place) as cluster:
        if bench.rounds:
            waits, added = await bench_waits(cluster, rate=bench.rate, seconds=bench.seconds, rounds=bench.rounds)
            on_step()
            throughput = await bench_throughput(cluster, seconds=bench.seconds, rounds=bench.rounds)
            on_step()
            found = _Found(waits, added, throughput, [])
        if bench.fan_out.readers:
            for stuck_readers in (0, 1):
                found.fan_out.append(await bench_fan_out(cluster, bench.fan_out, stuck_readers=stuck_readers))
                on_step()
    return found
