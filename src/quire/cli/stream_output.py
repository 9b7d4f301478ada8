"""Streams as commands show them: their facts for programs, and tables for people."""

from collections.abc import Sequence
from typing import Any, Final

from rich.markup import escape

from quire.cli.ledger_output import plain_table, plural, when
from quire.cli.output import out, print_json
from quire.codec.stream_metadata.segment import Truncation
from quire.protocol.space import shown_bytes
from quire.stream.info import SegmentInfo, StreamInfo
from quire.types import DLSN, Lssn

_TRUNCATION: Final = {Truncation.TRUNCATED: "truncated", Truncation.PARTIALLY_TRUNCATED: "partly truncated"}


def facts(info: StreamInfo) -> dict[str, Any]:
    """What is known of a stream. Records and bytes are those of segments that are counted."""
    return {
        "stream": info.stream,
        "sealed": info.is_sealed,
        "writer": info.owner,
        "records": info.record_count,
        "bytes": _bytes(info),
        "first_dlsn": _text(info.first_dlsn),
        "last_dlsn": _text(info.last_dlsn),
        "first_txid": info.first_txid,
        "last_txid": info.last_txid,
        "segments": [_segment(segment) for segment in info.segments],
        "subscriptions": {name: _text(place) for name, place in info.subscriptions.items()},
    }


def uncounted(info: StreamInfo) -> list[Lssn]:
    """Segments in progress whose bookies were not asked, or did not answer."""
    return [segment.lssn for segment in info.segments if segment.record_count is None]


def _bytes(info: StreamInfo) -> int | None:
    """Of all segments whose size is known. None if none is, such as behind a proxy of an older version."""
    sizes = [segment.size_bytes for segment in info.segments if segment.size_bytes is not None]
    if any(segment.is_completed for segment in info.segments) and not sizes:
        return None
    return sum(sizes)


def _segment(segment: SegmentInfo) -> dict[str, Any]:
    return {
        "lssn": segment.lssn,
        "ledger": segment.ledger_id,
        "state": "completed" if segment.is_completed else "in progress",
        "truncation": _TRUNCATION.get(segment.truncation),
        "records": segment.record_count,
        "bytes": segment.size_bytes,
        "first_dlsn": _text(segment.first_dlsn),
        "last_dlsn": _text(segment.last_dlsn),
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "completed": None if segment.completed_at_ms is None else when(segment.completed_at_ms),
    }


def _text(place: DLSN | None) -> str | None:
    return None if place is None else str(place)


def print_stream(info: StreamInfo, *, json: bool) -> None:
    """One stream with all its segments."""
    found = facts(info)
    if json:
        print_json(found)
        return
    console, more_in = out(), ", ".join(map(str, uncounted(info)))
    console.print(f"[bold]Stream {escape(info.stream)}[/]  {_state(found)}", soft_wrap=True)
    more = f", and those of segment {more_in}, which cannot be counted now" if more_in else ""
    size = "" if found["bytes"] is None else f", {shown_bytes(found['bytes'])}"
    console.print(f"  records  {plural(found['records'], 'record', 'records')}{size}{more}")
    for word in ("first", "last"):
        place, txid = found[f"{word}_dlsn"], found[f"{word}_txid"]
        if place is not None:
            console.print(f"  {word:7}  {place}" + ("" if txid is None else f", txid {txid}"))
    console.print(f"  writer   {escape(found['writer'] or 'none')}", soft_wrap=True)
    for name, place in found["subscriptions"].items():
        console.print(f"  reader   {escape(name)}, goes on at {place or 'the beginning'}", soft_wrap=True)
    if found["segments"]:
        console.print()
        console.print(_segments_table(found["segments"]))


def _state(found: dict[str, Any]) -> str:
    return "[dim]sealed[/]" if found["sealed"] else "[green]open[/]"


def _segments_table(segments: Sequence[dict[str, Any]]) -> Any:
    table = plain_table("segment", "ledger", "records", "size", "last", "first txid", "state")
    for each in segments:
        state = "[green]in progress[/]" if each["completed"] is None else "completed"
        table.add_row(
            str(each["lssn"]),
            str(each["ledger"]),
            "" if each["records"] is None else str(each["records"]),
            "" if each["bytes"] is None else shown_bytes(each["bytes"]),
            each["last_dlsn"] or "",
            str(each["first_txid"]),
            f"[yellow]{each['truncation']}[/]" if each["truncation"] else state,
        )
    return table


def print_streams(found: Sequence[dict[str, Any]]) -> None:
    """Many streams, a line each."""
    table = plain_table("stream", "state", "segments", "records", "first", "last", "writer")
    for each in found:
        table.add_row(
            escape(each["stream"]),
            _state(each),
            str(len(each["segments"])),
            str(each["records"]) + ("+" if any(one["records"] is None for one in each["segments"]) else ""),
            each["first_dlsn"] or "",
            each["last_dlsn"] or "",
            escape(each["writer"] or ""),
        )
    out().print(table)
