"""The figures of `python -m benchmarks proxy`, for people."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.proxy.fan_out import DELIVERY_P99_MS_MAX, FanOut
from benchmarks.proxy.writes import AddedWait, AppendWaits, WriteThroughput

_MET: dict[bool, str] = {True: "met", False: "NOT met"}


def waits_table(rows: Sequence[AppendWaits]) -> Table:
    table = _table("append", numbers=["records/s", "records", "p50 ms", "p99 ms", "max ms"])
    for row in rows:
        waits = (f"{wait:.2f}" for wait in (row.p50_ms, row.p99_ms, row.max_ms))
        table.add_row(row.way, f"{row.records_per_s:,}", f"{row.records:,}", *waits)
    return table


def added_table(rows: Sequence[AddedWait]) -> Table:
    table = _table("the proxy adds", numbers=["median ms", "lowest", "highest", "target", ""])
    for row in rows:
        waits = (f"{wait:.2f}" for wait in (row.added_ms, row.low_ms, row.high_ms, row.target_ms))
        table.add_row(row.share, *waits, _MET[row.is_met])
    return table


def throughput_table(rows: Sequence[WriteThroughput]) -> Table:
    numbers = [
        "bytes",
        "a call",
        "records/s",
        "MB/s",
        "client\nCPU µs",
        "proxy\nCPU µs",
        "bookies\nCPU µs",
        "target",
        "",
    ]
    table = _table("write", numbers=numbers)
    for row in rows:
        target = row.target_records_per_s
        table.add_row(
            row.way,
            str(row.record_bytes),
            str(row.call_records),
            f"{row.records_per_s:,.0f}",
            f"{row.mb_per_s:.1f}",
            *(f"{used:.2f}" for used in (row.client_cpu_us, row.write_proxy_cpu_us, row.bookies_cpu_us)),
            "" if target is None else f"{target:,.0f}",
            "" if target is None else _MET[row.is_met],
        )
    return table


def fan_out_table(rows: Sequence[FanOut]) -> Table:
    waits = ["acked\np99 ms", "p50 ms", "p99 ms", "max ms"]
    numbers = ["stuck", "records", *waits, "reads an\nentry", "messages/s", "MB", "grew\nMB", ""]
    table = _table("readers", numbers=numbers)
    for row in rows:
        table.add_row(
            f"{row.readers:,}",
            str(row.stuck_readers),
            f"{row.records:,}",
            *(f"{wait:.1f}" for wait in (row.acked_p99_ms, row.p50_ms, row.p99_ms, row.max_ms)),
            f"{row.reads_per_entry:.2f}",
            f"{row.messages_per_s:,.0f}",
            *(f"{size / 1e6:.0f}" for size in (row.read_proxy_bytes, row.read_proxy_growth_bytes)),
            _MET[row.is_met],
        )
    table.caption = (
        f"Target: p99 of {DELIVERY_P99_MS_MAX:g} ms, one storage read an entry, every record to every reader."
    )
    return table


def fan_out_cpu_table(rows: Sequence[FanOut]) -> Table:
    used = ["read proxy", "readers", "write proxy", "bookies"]
    table = _table("CPU, of one core", numbers=["stuck", *used, "µs a message:\nread proxy", "readers"])
    for row in rows:
        messages_per_s = max(1.0, row.messages_per_s)
        each_us = [share / messages_per_s * 1e6 for share in (row.read_proxy_cpu_share, row.readers_cpu_share)]
        shares = (row.read_proxy_cpu_share, row.readers_cpu_share, row.write_proxy_cpu_share, row.bookies_cpu_share)
        texts = (*(f"{share:.0%}" for share in shares), *(f"{us:.1f}" for us in each_us))
        table.add_row(f"{row.readers:,} readers", str(row.stuck_readers), *texts)
    return table


def _table(*words: str, numbers: Sequence[str]) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", caption_justify="left", caption_style="dim"
    )
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table
