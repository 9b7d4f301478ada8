"""`quire archive`: completed segments to cold storage, once or as they complete, and back."""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from json import dumps
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from quire.cli.audit import Chosen
from quire.cli.ledger_output import plural
from quire.cli.output import FAILED, checked, err, out, print_json, say_where, until_nobody_reads, write_bytes
from quire.cli.spark_options import LOCALLY, Conf, Master, bar, spark_session, spark_uri
from quire.cli.stream_options import Json, Uri
from quire.errors import InvalidArgument
from quire.protocol.space import shown_bytes
from quire.spark.archive import FOLLOW_INTERVAL_S, ArchiveReport, archive, follow, restore
from quire.stream.cold_moves import DropPolicy

app = typer.Typer(rich_markup_mode="rich")

_AGES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

To = Annotated[
    str | None,
    typer.Option(
        "--to",
        envvar="QUIRE_COLD",
        metavar="ROOT",
        help="The cold storage: file:/folder, s3://bucket/prefix, hdfs://namenode:8020/path?http=9870.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as segments complete, until Ctrl-C.")]
Every = Annotated[float, typer.Option("--every", metavar="SECONDS", min=0.1, help="How often --follow looks.")]
DropHot = Annotated[
    bool, typer.Option("--drop-hot", help="Then delete what is archived from the bookies. The last segment stays.")
]
DropAfter = Annotated[
    str | None, typer.Option("--drop-hot-after", metavar="AGE", help="The same for segments that are older: 36h, 7d.")
]
KeepHot = Annotated[
    str | None,
    typer.Option("--keep-hot", metavar="BYTES", help="The same, but keep so much of each stream's end: 500m, 20g."),
]
Restore = Annotated[
    bool, typer.Option("--restore", help="The way back: give segments that are only cold to the bookies again.")
]


@app.command(
    "archive",
    epilog="Examples:  quire archive orders --to file:/mnt/archive  ·  quire archive --to s3://bucket/log --follow "
    "--drop-hot-after 7d  ·  quire archive orders --restore",
)
def archive_command(
    names: Chosen = None,
    to: To = None,
    follow: Follow = False,
    every: Every = FOLLOW_INTERVAL_S,
    drop_hot: DropHot = False,
    drop_hot_after: DropAfter = None,
    keep_hot: KeepHot = None,
    restore: Restore = False,
    uri: Uri = None,
    master: Master = LOCALLY,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Copy completed segments of streams to cold storage, as Parquet. A job on Spark.

    Each file is read back before it counts. Readers go on across bookies and cold storage without noticing.
    """

    def work() -> bool:
        if restore:
            return _restore(names, uri, master, conf, json=json)
        if to is None:
            raise InvalidArgument("where to is missing", hint="Give --to ROOT, such as file:/mnt/archive.")
        chosen = policy(drop_hot, drop_hot_after, keep_hot)
        where = spark_uri(uri)
        say_where(where, json=json)
        with (
            spark_session(master, conf, name="archive") as spark,
            bar("archiving segments", quiet=json or follow) as on_progress,
        ):
            if not follow:
                reports = iter([archive(spark, where, to, names, drop=chosen, on_progress=on_progress)])
            else:
                reports = _following(spark, where, to, names, chosen, every)
            is_whole = True
            with until_nobody_reads():
                for report in reports:
                    _tell(report, where, json=json, follow=follow)
                    is_whole = is_whole and not report.failed
            return is_whole

    if not checked(work, as_json=json, in_lines=follow):
        raise typer.Exit(FAILED)


def _following(
    spark: Any, uri: str, to: str, names: list[str] | None, policy: DropPolicy | None, every: float
) -> Iterator[ArchiveReport]:
    err().print("Archiving segments as they complete, until Ctrl-C.")
    with until_told() as stop:
        yield from follow(spark, uri, to, names, drop=policy, interval_s=every, stop=stop)


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """Set by Ctrl-C, and by whoever stops services: what is being done is finished then."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _restore(names: list[str] | None, uri: str | None, master: str, conf: list[str] | None, *, json: bool) -> bool:
    if not names:
        raise InvalidArgument("which streams to restore is missing", hint="Name them: quire archive orders --restore.")
    where = spark_uri(uri)
    say_where(where, json=json)
    with spark_session(master, conf, name="restore") as spark, bar("restoring streams", quiet=json) as on_progress:
        restored = restore(spark, where, names, on_progress=on_progress)
    if json:
        print_json({"uri": where, "restored": restored})
    for name, lssns in () if json else restored.items():
        out().print(f"Stream [bold]{escape(name)}[/]: {plural(len(lssns), 'segment', 'segments')} restored.")
    return True


def policy(everything: bool, after: str | None, keep: str | None) -> DropPolicy | None:
    """What options say of hot copies. Raises `InvalidArgument`."""
    if not (everything or after or keep):
        return None
    return DropPolicy(older_than_s=_age_s(after) if after else 0.0, keep_bytes=_bytes(keep) if keep else 0)


def _age_s(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip().lower())
    if match is None:
        raise InvalidArgument(f"{text!r} is no age", hint="Write 90s, 30m, 36h or 7d.")
    return float(match[1]) * _AGES[match[2]]


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([kmgt]?)i?b?", text.strip().lower())
    if match is None:
        raise InvalidArgument(f"{text!r} is no number of bytes", hint="Write 1000000, 500m or 20g.")
    return int(match[1]) * _SIZES[match[2]]


def _tell(report: ArchiveReport, where: str, *, json: bool, follow: bool) -> None:
    if json and follow:  # A line for each pass, now: the next one may be hours away.
        write_bytes(dumps({"uri": where, **_facts(report)}, ensure_ascii=False).encode() + b"\n", at_once=True)
    elif json:
        print_json({"uri": where, **_facts(report)})
    else:
        _print(report)


def _facts(report: ArchiveReport) -> dict[str, Any]:
    return {
        "archived": [asdict(each) for each in report.archived],
        "bytes": report.size_bytes,
        "failed": [
            {
                "stream": each.stream,
                "lssn": each.lssn,
                "step": each.step,
                "kind": type(each.error).__name__,
                "message": str(each.error),
            }
            for each in report.failed
        ],
        "dropped": [{"stream": stream, "lssn": lssn} for stream, lssn in report.dropped],
    }


def _print(report: ArchiveReport) -> None:
    console, by_stream = out(), dict.fromkeys(each.stream for each in report.archived)
    for stream in by_stream:
        of = [each for each in report.archived if each.stream == stream]
        records, size = sum(each.records for each in of), sum(each.size_bytes for each in of)
        what = f"{plural(len(of), 'segment', 'segments')}, {plural(records, 'record', 'records')}, {shown_bytes(size)}"
        console.print(f"Stream [bold]{escape(stream)}[/]: {what} archived.", soft_wrap=True)
    for stream in dict.fromkeys(stream for stream, _ in report.dropped):
        count = sum(each == stream for each, _ in report.dropped)
        what = f"{plural(count, 'segment', 'segments')} dropped from the bookies"
        console.print(f"Stream [bold]{escape(stream)}[/]: {what}.", soft_wrap=True)
    if not (report.archived or report.dropped or report.failed):
        console.print("Nothing to do: every completed segment is archived.")
    for failed in report.failed:
        place = "" if failed.lssn is None else f"segment {failed.lssn} of "
        outcome = "is not archived" if failed.step == "archive" else "stays on the bookies"
        what = f"{place}stream {escape(failed.stream)} {outcome}"
        err().print(f"[bold red]error:[/] {what}: {escape(str(failed.error))}", soft_wrap=True)
        if failed.error.hint:
            err().print(f"[bold]hint:[/] {escape(failed.error.hint)}", soft_wrap=True)
