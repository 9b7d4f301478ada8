"""`quire audit`: is every copy of every entry where it should be, and what it should be?"""

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from quire.cli.completion import complete_stream
from quire.cli.ledger_output import plural
from quire.cli.output import FAILED, checked, out, print_json
from quire.cli.spark_options import LOCALLY, Conf, Master, bar, spark_session, spark_uri
from quire.cli.stream_options import Json, Uri
from quire.protocol.space import shown_bytes
from quire.spark.audit import AuditReport, audit

app = typer.Typer(rich_markup_mode="rich")

Chosen = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="The streams. Default: all.", autocompletion=complete_stream),
]


@app.command("audit", epilog="Examples:  quire audit orders  ·  quire audit --master spark://host:7077 --json")
def audit_command(
    names: Chosen = None, uri: Uri = None, master: Master = LOCALLY, conf: Conf = None, json: Json = False
) -> None:
    """Read every copy of every entry from its own bookie and verify it. A job on Spark.

    Names every copy that is missing or damaged, and segments whose ledgers are gone. Ends with code 1 if there is one.
    """

    def work() -> AuditReport:
        where = spark_uri(uri)
        with spark_session(master, conf, name="audit") as spark, bar("checking copies", quiet=json) as on_progress:
            return audit(spark, where, names, on_progress=on_progress)

    report = checked(work, as_json=json)
    if json:
        print_json(_facts(report))
    else:
        _print(report)
    if not report.is_sound:
        raise typer.Exit(FAILED)


def _facts(report: AuditReport) -> dict[str, Any]:
    return {"sound": report.is_sound, **asdict(report), "bad_copies": report.bad_copies}


def _print(report: AuditReport) -> None:
    console = out()
    checked_text = f"{plural(report.entries, 'entry', 'entries')} in {plural(report.segments, 'segment', 'segments')}"
    of = plural(len(report.streams), "stream", "streams")
    console.print(f"{checked_text} of {of}: {report.copies} intact copies, {shown_bytes(report.payload_bytes)}.")
    if report.gone_segments:
        console.print(f"{plural(report.gone_segments, 'segment', 'segments')} went while this ran.")
    if report.is_sound:
        console.print("[green]Every copy is there and intact.[/]")
        return
    for lost in report.lost:
        place = f"[bold]{escape(lost.stream)}[/], segment {lost.lssn}: its ledger {lost.ledger} does not exist."
        kept = f" Its records are in {escape(lost.cold_file)}." if lost.cold_file is not None else ""
        console.print(f"[red]lost[/]  {place}{kept}", soft_wrap=True)
    if report.damage:
        _print_damage(report)


def _print_damage(report: AuditReport) -> None:
    console = out()
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("stream", "segment", "ledger", "entries", "bookie", "problem", "detail"):
        table.add_column(column, overflow="fold")
    for each in report.damage:
        entries = f"{each.first_entry}" if each.copies == 1 else f"{each.first_entry}-{each.last_entry}"
        place = (escape(each.stream), str(each.lssn), str(each.ledger), entries, escape(each.bookie))
        table.add_row(*place, f"[red]{each.problem}[/]", escape(each.detail))
    console.print(table)
    console.print(f"[bold red]{plural(report.bad_copies, 'copy', 'copies')} missing or damaged.[/]")
