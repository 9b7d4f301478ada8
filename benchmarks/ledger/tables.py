"""The figures of `python -m benchmarks ledger`, for people."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.ledger.figures import LatencyRow, Ratio, ThroughputRow


def throughput_table(rows: Sequence[ThroughputRow]) -> Table:
    table = _table("operation", "E/Qw/Qa", "side", numbers=["bytes", "entries/s", "client CPU µs", "bookies CPU µs"])
    for row in rows:
        table.add_row(
            row.operation,
            row.quorum,
            row.side,
            str(row.entry_bytes),
            f"{row.entries_per_s:,.0f}",
            f"{row.client_cpu_us:.1f}",
            f"{row.bookies_cpu_us:.1f}",
        )
    return table


def latency_table(rows: Sequence[LatencyRow]) -> Table:
    table = _table("paced at", "E/Qw/Qa", "side", numbers=["bytes", "p50 ms", "p99 ms", "p99.9 ms", "max ms"])
    for row in rows:
        waits = (row.p50_ms, row.p99_ms, row.p999_ms, row.max_ms)
        table.add_row(
            f"{row.entries_per_s:,}/s",
            row.quorum,
            row.side,
            str(row.entry_bytes),
            *(f"{wait:.2f}" for wait in waits),
        )
    return table


def ratio_table(throughput: Sequence[ThroughputRow], latency: Sequence[LatencyRow]) -> Table | None:
    """By what factor the first side is ahead of the second. None if there is but one."""
    found: list[tuple[str, str, int, Ratio | None]] = [
        (f"{row.operation}, entries/s", row.quorum, row.entry_bytes, row.ahead) for row in throughput
    ]
    for row in latency:
        found.append(("paced, p50", row.quorum, row.entry_bytes, row.ahead_p50))
        found.append(("paced, p99", row.quorum, row.entry_bytes, row.ahead_p99))
    table = _table("ahead by a factor", "E/Qw/Qa", numbers=["bytes", "median", "lowest", "highest"])
    for what, quorum, entry_bytes, ratio in found:
        if ratio is not None:
            factors = (f"{factor:.2f}" for factor in (ratio.median, ratio.low, ratio.high))
            table.add_row(what, quorum, str(entry_bytes), *factors)
    return table if table.row_count else None


def _table(*words: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
