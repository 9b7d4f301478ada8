"""`quire replay`: records of a stream, or of Parquet files, into a stream, once."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from quire.cli.archive import until_told
from quire.cli.completion import complete_stream
from quire.cli.ledger_output import plural
from quire.cli.output import checked, counting, err, out, print_json, say_where
from quire.cli.spark_options import LOCALLY, Conf, Master, spark_session, spark_uri
from quire.cli.stream_options import Json, Uri
from quire.errors import InvalidArgument
from quire.spark.replay import ReplayReport, default_checkpoint, replay_parquet, replay_stream

app = typer.Typer(rich_markup_mode="rich")

Target = Annotated[str, typer.Argument(metavar="TARGET", help="The stream to write. It is created if it is missing.")]
FromStream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="NAME",
        help="The stream to read; several with commas, or a pattern with *.",
        autocompletion=complete_stream,
    ),
]
FromParquet = Annotated[
    str | None, typer.Option("--parquet", metavar="PATH", help="The Parquet file, or folder of files, to read.")
]
FromUri = Annotated[
    str | None, typer.Option("--from-uri", metavar="URI", help="Where --stream is, if not where TARGET is.")
]
Start = Annotated[str, typer.Option("--from", metavar="POSITION", help="Where --stream is read from, the first time.")]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What TARGET knows this replay by. Default: its source, as given."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="PATH", help="Where --stream keeps how far it came. Default: a folder of this user."
    ),
]
NewTxids = Annotated[
    bool, typer.Option("--new-txids", help="Give records new txids, as where several streams come together.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come to --stream, until Ctrl-C.")]


@app.command(
    "replay",
    epilog="Examples:  quire replay orders-copy --stream orders  ·  quire replay events --parquet /data/events",
)
def replay_command(
    target: Target,
    stream: FromStream = None,
    parquet: FromParquet = None,
    from_uri: FromUri = None,
    start: Start = "earliest",
    name: Name = None,
    checkpoint: Checkpoint = None,
    new_txids: NewTxids = False,
    follow: Follow = False,
    uri: Uri = None,
    master: Master = LOCALLY,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Copy records of a stream, or of Parquet files, into a stream: each once, in order. A job on Spark.

    Whatever ends it, the same command goes on where it stopped; one that is done changes nothing.
    """

    def work() -> tuple[str, ReplayReport]:
        if (stream is None) == (parquet is None):
            raise InvalidArgument("a replay has one source", hint="Give --stream NAME, or --parquet PATH.")
        where = spark_uri(uri)
        say_where(where, json=json)
        with (
            spark_session(master, conf, name="replay") as spark,
            counting("records", quiet=json) as counter,
            until_told() as stop,
        ):
            if stream is None:
                path = parquet or ""
                return where, replay_parquet(
                    spark, where, path, target, name=name, new_txids=new_txids, on_records=counter.step
                )
            if follow:
                err().print("Copying records as they come, until Ctrl-C.")
            kept = checkpoint or default_checkpoint(where, stream, target, name or stream)
            return where, replay_stream(
                spark,
                where,
                stream,
                target,
                checkpoint=kept,
                name=name,
                source_uri=spark_uri(from_uri) if from_uri else None,
                start=start,
                follow=follow,
                new_txids=new_txids,
                on_records=counter.step,
                until=stop.is_set,
            )

    where, report = checked(work, as_json=json)
    if json:
        print_json({"uri": where, **asdict(report)})
        return
    what = f"{plural(report.records, 'record', 'records')} in {plural(report.steps, 'step', 'steps')}"
    before = f" {plural(report.steps_before, 'step was', 'steps were')} there before." if report.steps_before else ""
    out().print(f"Stream [bold]{escape(report.stream)}[/] got {what}.{before}", soft_wrap=True)
