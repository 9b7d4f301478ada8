"""The figures of `python -m benchmarks stream`, for people."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.ledger.figures import Ratio
from benchmarks.stream.figures import DeliveryRow, StreamThroughputRow, paced
from benchmarks.stream.segments import OpenedReader


def stream_throughput_table(rows: Sequence[StreamThroughputRow]) -> Table:
    """What is counted are records; where streams are opened, streams."""
    numbers = ["bytes", "streams", "each/s", "client\nCPU µs", "bookies\nCPU µs"]
    table = _table("operation", "E/Qw/Qa", "side", numbers=numbers)
    for row in rows:
        table.add_row(
            row.operation,
            row.quorum,
            row.side,
            str(row.record_bytes),
            f"{row.streams:,}",
            f"{row.per_s:,.0f}",
            _cost(row.client_cpu_us),
            _cost(row.bookies_cpu_us),
        )
    return table


def delivery_table(rows: Sequence[DeliveryRow]) -> Table:
    numbers = ["bytes", "streams", "p50 ms", "p99 ms", "p99.9 ms", "max ms"]
    table = _table("paced at", "E/Qw/Qa", "side", numbers=numbers)
    for row in rows:
        waits = (row.p50_ms, row.p99_ms, row.p999_ms, row.max_ms)
        table.add_row(
            paced(row.records_per_s),
            row.quorum,
            row.side,
            str(row.record_bytes),
            f"{row.streams:,}",
            *(f"{wait:.2f}" for wait in waits),
        )
    return table


def stream_ratio_table(throughput: Sequence[StreamThroughputRow], delivery: Sequence[DeliveryRow]) -> Table | None:
    """By what factor the first side is ahead of the second. None if there is but one."""
    found: list[tuple[str, StreamThroughputRow | DeliveryRow, Ratio | None]] = []
    for row in throughput:
        found += [(f"{row.operation}, each/s", row, row.ahead), (f"{row.operation}, CPU", row, row.ahead_cpu)]
    for wait in delivery:
        at = paced(wait.records_per_s)
        found += [(f"{at}, p50", wait, wait.ahead_p50), (f"{at}, p99", wait, wait.ahead_p99)]
    table = _table("ahead by a factor", "E/Qw/Qa", numbers=["bytes", "streams", "median", "lowest", "highest"])
    for what, case, factor in found:
        if factor is not None:
            factors = (f"{number:.2f}" for number in (factor.median, factor.low, factor.high))
            table.add_row(what, case.quorum, str(case.record_bytes), f"{case.streams:,}", *factors)
    return table if table.row_count else None


def segments_table(rows: Sequence[OpenedReader]) -> Table:
    numbers = ["segments", "open\nms", "to 1st\nrecord ms", "CPU\nms", "held\nKiB", "at most\nKiB", "process\nKiB"]
    table = _table("start", numbers=numbers)
    for row in rows:
        table.add_row(
            row.start,
            f"{row.segments:,}",
            f"{row.open_s * 1000:.1f}",
            f"{row.first_record_s * 1000:.1f}" if row.first_record_s is not None else "",
            f"{row.cpu_s * 1000:.1f}",
            *(f"{size / 1024:,.0f}" for size in (row.held_bytes, row.peak_bytes, row.process_growth_bytes)),
        )
    return table


def _cost(us: float) -> str:
    """Records cost a few µs at most, and streams thousands."""
    return f"{us:.2f}" if us < 10 else f"{us:,.1f}"


def _table(*words: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
